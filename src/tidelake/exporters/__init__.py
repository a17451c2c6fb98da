"""Metrics for other programs: Prometheus (the extra `metrics`) and OpenTelemetry (the extra `otel`).

The modules are imported where they are: `from tidelake.exporters import prometheus`.
"""
