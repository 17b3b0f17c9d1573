"""Figures for Prometheus. Knows the table of names; measures and decides nothing."""

from eplb_service.metrics.exposition import MetricsServer
from eplb_service.metrics.recorder import PrometheusRecorder

__all__ = ["MetricsServer", "PrometheusRecorder"]
