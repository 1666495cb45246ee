"""``tf.io``: files, decoding, parsing and queues under their later names."""

# ruff: noqa: F403  # a module that has TensorFlow's names and no others is taken whole

from __future__ import annotations

from aioqueue.compat.v1 import gfile
from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.inputs.producers import match_filenames_once
from aioqueue.compat.v1.ops.files import matching_files, read_file, write_file
from aioqueue.compat.v1.ops.images.codecs import (
    decode_and_crop_jpeg,
    decode_bmp,
    decode_gif,
    decode_image,
    decode_jpeg,
    decode_png,
    encode_jpeg,
    encode_png,
    extract_jpeg_shape,
    is_jpeg,
)
from aioqueue.compat.v1.ops.serializing import (
    deserialize_many_sparse,
    parse_tensor,
    serialize_many_sparse,
    serialize_sparse,
    serialize_tensor,
)
from aioqueue.compat.v1.ops.text import (
    decode_base64,
    decode_csv,
    decode_raw,
    encode_base64,
)
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
    "decode_and_crop_jpeg",
    "decode_base64",
    "decode_bmp",
    "decode_csv",
    "decode_gif",
    "decode_image",
    "decode_jpeg",
    "decode_png",
    "decode_raw",
    "deserialize_many_sparse",
    "encode_base64",
    "encode_jpeg",
    "encode_png",
    "extract_jpeg_shape",
    "gfile",
    "is_jpeg",
    "match_filenames_once",
    "matching_files",
    "parse_tensor",
    "read_file",
    "serialize_many_sparse",
    "serialize_sparse",
    "serialize_tensor",
    "tf_record_iterator",
    "write_file",
)
__all__ += _parsing.__all__

__getattr__ = names_of(__name__)
