"""Pictures: decoding, turning, cropping, resizing, colours and boxes, as ``tf.image`` has them.

What is integer is TensorFlow's to the last bit; floats are its own up to rounding. `resampling` and
`colours` are plain functions of arrays, `jpeg` of files; the others make ops of them.
"""

from __future__ import annotations

__all__ = ()
