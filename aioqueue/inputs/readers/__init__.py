"""Files, as sources of what is in them."""

from __future__ import annotations

__all__: tuple[str, ...] = ()
