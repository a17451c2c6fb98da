"""Metrics for OpenTelemetry; needs the extra `otel`.

`tidelake.open(place, recorder=OpenTelemetryRecorder())` tells all metrics to the meter provider that the
program has set up.
"""

from opentelemetry.metrics import Counter, Histogram, MeterProvider, get_meter_provider

from tidelake.env import Counters
from tidelake.metrics import BOUNDS, CATALOGUE

_UNITS = {"bytes": "By", "seconds": "s", "milliseconds": "ms", "": "1"}


class OpenTelemetryRecorder(Counters):
    """A recorder that tells an OpenTelemetry meter, and keeps its counts in memory too. Thread-safe."""

    def __init__(self, provider: MeterProvider | None = None) -> None:
        """Make an instrument for each metric of the catalogue."""
        super().__init__()
        meter = (provider or get_meter_provider()).get_meter("tidelake")
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._gauges = {}
        self._labels = {metric.name: metric.label for metric in CATALOGUE}
        self._told: dict[str, float] = {}
        for metric in CATALOGUE:
            name, about = (
                metric.exported.replace("_", ".", 1),
                {"unit": _UNITS[metric.unit], "description": metric.meaning},
            )
            match metric.kind:
                case "counter":
                    self._counters[metric.name] = meter.create_counter(name, **about)
                case "histogram":
                    self._histograms[metric.name] = meter.create_histogram(
                        name, explicit_bucket_boundaries_advisory=BOUNDS[metric.unit], **about
                    )
                case "gauge":
                    self._gauges[metric.name] = meter.create_gauge(name, **about)

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter; see `Recorder.count`."""
        super().count(name, amount)
        if name in self._counters:
            self._counters[name].add(amount)

    def observe(self, name: str, value: float) -> None:
        """Add a value to a histogram; see `Recorder.observe`."""
        super().observe(name, value)
        self._histograms[name].record(value)

    def gauge(self, name: str, value: float | None, label: str = "") -> None:
        """Set a gauge; see `Recorder.gauge`. OpenTelemetry forgets none: its last value stays."""
        before = self.gauges.get((name, label), 0.0)
        super().gauge(name, value, label)
        if value is None:
            return
        if name in self._counters:
            # A total that something else keeps.
            self._counters[name].add(max(0.0, value - before))
        else:
            of = self._labels[name]
            self._gauges[name].set(value, {of: label} if of else {})
