"""The graph layer: dtypes, static shapes, graphs, scopes, and conversion to tensors."""

from __future__ import annotations

__all__ = ()
