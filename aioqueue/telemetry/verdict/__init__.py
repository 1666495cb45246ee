"""Which part of a run is its bottleneck, and what would help."""

from __future__ import annotations
