"""``tf.io``: files, decoding, parsing and queues under their later names."""

# ruff: noqa: F403  # a module that has TensorFlow's names and no others is taken whole

from __future__ import annotations

from aioqueue.compat.v1 import gfile, python_io
from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.inputs.producers import match_filenames_once
from aioqueue.compat.v1.ops import files as _files
from aioqueue.compat.v1.ops import serializing as _serializing
from aioqueue.compat.v1.ops.files import *
from aioqueue.compat.v1.ops.images import codecs as _codecs
from aioqueue.compat.v1.ops.images.codecs import *
from aioqueue.compat.v1.ops.serializing import *
from aioqueue.compat.v1.ops.text import decode_base64, decode_csv, decode_raw, encode_base64
from aioqueue.compat.v1.parsing import parsing as _parsing
from aioqueue.compat.v1.parsing.parsing import *
from aioqueue.compat.v1.python_io import *
from aioqueue.compat.v1.queues.queues import (
    PaddingFIFOQueue,
    PriorityQueue,
    QueueBase,
    RandomShuffleQueue,
)

__all__: tuple[str, ...] = (
    "PaddingFIFOQueue", "PriorityQueue", "QueueBase", "RandomShuffleQueue", "decode_base64",
    "decode_csv", "decode_raw", "encode_base64", "gfile", "match_filenames_once",
)  # fmt: skip
__all__ += _codecs.__all__
__all__ += _files.__all__
__all__ += _parsing.__all__
__all__ += _serializing.__all__
__all__ += python_io.__all__

__getattr__ = names_of(__name__)
