"""Coordinators and queue runners: start workers, stop them together, join them, report failures."""

from __future__ import annotations
