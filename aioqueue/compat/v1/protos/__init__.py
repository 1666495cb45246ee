"""TensorFlow's protobuf messages, made at run time."""

from __future__ import annotations

__all__ = ()
