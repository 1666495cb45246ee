"""``tf.io``: files, decoding, parsing and queues under their later names."""

# ruff: noqa: F403  # a module that has TensorFlow's names and no others is taken whole

from __future__ import annotations

from aioqueue.compat.v1 import gfile
from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.inputs.producers import match_filenames_once
from aioqueue.compat.v1.ops import serializing as _serializing
from aioqueue.compat.v1.ops.csv import decode_csv
from aioqueue.compat.v1.ops.decoding import (
    decode_base64,
    decode_compressed,
    decode_json_example,
    decode_raw,
    encode_base64,
)
from aioqueue.compat.v1.ops.files import matching_files, read_file, write_file
from aioqueue.compat.v1.ops.images import files as _files
from aioqueue.compat.v1.ops.images.files import *
from aioqueue.compat.v1.ops.serializing import *
from aioqueue.compat.v1.parsing import parsing as _parsing
from aioqueue.compat.v1.parsing.parsing import *
from aioqueue.compat.v1.queues.queues import (
    PaddingFIFOQueue,
    PriorityQueue,
    QueueBase,
    RandomShuffleQueue,
)
from aioqueue.compat.v1.readers.records import (
    TFRecordCompressionType,
    TFRecordOptions,
    TFRecordWriter,
    tf_record_iterator,
)

__all__: tuple[str, ...] = (
    "PaddingFIFOQueue",
    "PriorityQueue",
    "QueueBase",
    "RandomShuffleQueue",
    "TFRecordCompressionType",
    "TFRecordOptions",
    "TFRecordWriter",
    "decode_base64",
    "decode_compressed",
    "decode_csv",
    "decode_json_example",
    "decode_raw",
    "encode_base64",
    "gfile",
    "match_filenames_once",
    "matching_files",
    "read_file",
    "tf_record_iterator",
    "write_file",
)
__all__ += _files.__all__
__all__ += _serializing.__all__
__all__ += _parsing.__all__

__getattr__ = names_of(__name__)
