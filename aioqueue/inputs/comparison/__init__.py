"""What a value, a function, a module and some items are when they are compared with those of another
run: for caches and for positions."""

from __future__ import annotations

__all__ = ()
