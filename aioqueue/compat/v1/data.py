"""``tf.data``: as far as scripts with queues use it."""

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of, namespace
from aioqueue.compat.v1.datasets.dataset import (
    Dataset,
    FixedLengthRecordDataset,
    TextLineDataset,
    TFRecordDataset,
    bucket_by_sequence_length,
    group_by_window,
    map_and_batch,
    parallel_interleave,
    shuffle_and_repeat,
    unbatch,
)
from aioqueue.compat.v1.datasets.iterator import (
    Iterator,
    get_output_classes,
    get_output_shapes,
    get_output_types,
    make_initializable_iterator,
    make_one_shot_iterator,
)

__all__ = (
    "Dataset", "FixedLengthRecordDataset", "Iterator", "TFRecordDataset", "TextLineDataset",
    "experimental", "get_output_classes", "get_output_shapes", "get_output_types",
    "make_initializable_iterator", "make_one_shot_iterator",
)  # fmt: skip

experimental = namespace(
    f"{__name__}.experimental",
    "``tf.data.experimental``: functions for `Dataset.apply`.",
    *(bucket_by_sequence_length, group_by_window, map_and_batch),
    *(parallel_interleave, shuffle_and_repeat, unbatch),
)

__getattr__ = names_of(__name__)
