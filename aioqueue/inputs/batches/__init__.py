"""Batching of examples: plain, shuffled, bucketed and broadcast."""

from __future__ import annotations

__all__: tuple[str, ...] = ()
