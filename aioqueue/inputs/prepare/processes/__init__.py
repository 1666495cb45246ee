"""Workers that are processes: the parent, the child, and what lies between them."""

from __future__ import annotations

__all__: tuple[str, ...] = ()
