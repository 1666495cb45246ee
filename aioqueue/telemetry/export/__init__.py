"""The numbers of a run, sent to TensorBoard, OpenTelemetry and Prometheus."""

from __future__ import annotations
