"""``tf.parse_example`` and its like: serialized examples to tensors."""

from __future__ import annotations

__all__ = ()
