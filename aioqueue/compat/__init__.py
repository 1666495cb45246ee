"""Other systems' names for aioqueue."""

from __future__ import annotations

__all__ = ()
