"""Examples put together: batches, shuffled, bucketed and shared."""

from __future__ import annotations

__all__: tuple[str, ...] = ()
