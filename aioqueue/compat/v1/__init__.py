"""The TensorFlow 1 names of the queue system, on NumPy: ``import aioqueue.compat.v1 as tf``."""

from __future__ import annotations

__all__ = ()
