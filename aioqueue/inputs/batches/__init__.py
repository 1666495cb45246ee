"""Examples in streams made by hand: batched, shuffled, bucketed and shared."""

from __future__ import annotations

__all__: tuple[str, ...] = ()
