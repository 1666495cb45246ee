"""``tf.audio``: sound files."""

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.ops.audio import decode_wav, encode_wav

__all__ = ("decode_wav", "encode_wav")

__getattr__ = names_of(__name__)
