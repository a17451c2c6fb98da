"""Metrics in the text format of Prometheus; needs the extra `metrics`.

Owns how names become Prometheus' own. Must not know who counts, or who asks for the text.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from tidelake.env import Counters, Histogram, Recorder
from tidelake.errors import StoreUnavailable, UsageError
from tidelake.exporters.loopback import host_of, is_loopback
from tidelake.metrics import CATALOGUE, Metric

CONTENT_TYPE = CONTENT_TYPE_LATEST
# A request that is not sent within so many seconds is given up.
_REQUEST_S = 10
Wsgi: TypeAlias = Callable[[dict[str, Any], Any], Iterable[bytes]]
Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class RecorderCollector(Collector):
    """What a recorder has counted, for a registry of prometheus-client.

    `REGISTRY.register(RecorderCollector(lake.recorder))` adds it to what a program exports anyway.
    """

    def __init__(self, recorder: Recorder) -> None:
        """Take a recorder."""
        if not isinstance(recorder, Counters):
            raise UsageError(
                f"{type(recorder).__name__} keeps no counts: open the lake with a tidelake.env.Counters"
            )
        self._recorder = recorder

    def collect(self) -> Iterator[Family]:
        """All metrics of the catalogue that were ever told, each with its help."""
        counts, histograms, gauges = self._recorder.taken()
        labelled: dict[str, dict[str, float]] = {}
        for (name, label), value in gauges.items():
            labelled.setdefault(name, {})[label] = value
        for metric in CATALOGUE:
            told = labelled.get(metric.name, {})
            if metric.kind == "histogram":
                if metric.name in histograms:
                    yield _histogram(metric, histograms[metric.name])
            elif metric.kind == "counter":
                total = told.get("", counts.get(metric.name))
                if total is not None:
                    yield CounterMetricFamily(metric.exported, _help(metric), value=total)
            elif told:
                family = GaugeMetricFamily(metric.exported, _help(metric), labels=[metric.label])
                for label, value in sorted(told.items()):
                    family.add_metric([label], value)
                yield family


def text(recorder: Recorder) -> bytes:
    """Everything in a recorder, as `/metrics` gives it."""
    return generate_latest(registry(recorder))


def registry(recorder: Recorder) -> CollectorRegistry:
    """A registry with the metrics of a recorder and no others. Raises as `text`."""
    made = CollectorRegistry()
    made.register(RecorderCollector(recorder))
    return made


def listen(recorder: Recorder, host: str, port: int) -> None:
    """Answer `/metrics` at an address from threads of its own, until the process ends.

    At a loopback address only requests that ask for this machine by its own name are answered: a page of
    another site is not, even if DNS leads its name here.
    """
    collector = RecorderCollector(recorder)
    # It is filled once only those who may ask are answered.
    answered = CollectorRegistry()
    try:
        server, _ = start_http_server(port, host, answered)
    except OSError as error:
        raise StoreUnavailable(
            f"cannot listen at {host}:{port}: {error}; choose another port", False
        ) from error
    # A class of the library, which has no other way to set the attribute of `StreamRequestHandler`.
    handler: Any = server.RequestHandlerClass
    server.RequestHandlerClass = type("Handler", (handler,), {"timeout": _REQUEST_S})
    if is_loopback(host):
        server.set_app(_for_this_machine(make_wsgi_app(answered)))
    answered.register(collector)


def _for_this_machine(app: Wsgi) -> Wsgi:
    """The application, for requests whose `Host` is this machine's own name."""

    def guarded(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        if is_loopback(host_of(environ.get("HTTP_HOST", ""))):
            return app(environ, start)
        start("421 Misdirected Request", [("Content-Type", "text/plain")])
        return [b"ask for this server by the name localhost\n"]

    return guarded


def _help(metric: Metric) -> str:
    return f"{metric.meaning} ({metric.unit})" if metric.unit else metric.meaning


def _histogram(metric: Metric, held: Histogram) -> HistogramMetricFamily:
    buckets, below = [], 0
    for bound, count in zip((*map(str, held.bounds), "+Inf"), held.counts, strict=True):
        below += count
        buckets.append((bound, float(below)))
    return HistogramMetricFamily(metric.exported, _help(metric), buckets=buckets, sum_value=held.total)
