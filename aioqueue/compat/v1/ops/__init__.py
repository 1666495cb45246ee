"""The operations: one module per family, each a thin layer over NumPy."""

from __future__ import annotations

__all__ = ()
