"""The input pipeline: sources, readers, prepared examples, batches."""

from __future__ import annotations

__all__ = ()
