"""Batch streams outside a pipeline: plain, shuffled, bucketed and broadcast."""

from __future__ import annotations
