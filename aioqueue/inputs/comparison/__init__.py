"""What values, functions, modules and items are when another run compares them: for caches, and for
positions."""

from __future__ import annotations

__all__ = ()
