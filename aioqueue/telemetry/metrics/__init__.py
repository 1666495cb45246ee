"""The numbers of a run: counters that only grow, and intervals between two readings."""

from __future__ import annotations
