"""How examples are put together: stacked, padded, sorted by length."""

from __future__ import annotations

__all__: tuple[str, ...] = ()
