"""Stopping together, and keeping queues filled, with TensorFlow 1's names."""

from __future__ import annotations

__all__ = ()
