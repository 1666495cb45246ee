"""``tf.contrib``: the parts of it that queues need."""

from __future__ import annotations

from aioqueue.compat.v1 import nest
from aioqueue.compat.v1.absent import names_of, namespace
from aioqueue.compat.v1.contrib.hparam import HParams
from aioqueue.compat.v1.contrib.providers import slim
from aioqueue.compat.v1.datasets import dataset as _datasets
from aioqueue.compat.v1.datasets.iterator import Iterator
from aioqueue.compat.v1.inputs.buckets import bucket, bucket_by_sequence_length
from aioqueue.compat.v1.ops import tables as _tables
from aioqueue.compat.v1.ops import variables as _variables
from aioqueue.compat.v1.ops.sparse import is_tensor
from aioqueue.compat.v1.ops.static import constant_value
from aioqueue.compat.v1.queues.staging import StagingArea

__all__ = ("data", "framework", "lookup", "slim", "staging", "training", "util")

data = namespace(
    f"{__name__}.data",
    "``tf.contrib.data``: functions for `Dataset.apply`.",
    _datasets.Dataset,
    _datasets.TFRecordDataset,
    _datasets.TextLineDataset,
    _datasets.batch_and_drop_remainder,
    _datasets.bucket_by_sequence_length,
    _datasets.group_by_window,
    _datasets.map_and_batch,
    _datasets.parallel_interleave,
    _datasets.shuffle_and_repeat,
    _datasets.unbatch,
    Iterator,
)
framework = namespace(
    f"{__name__}.framework",
    "``tf.contrib.framework``: the global step, under its old names.",
    *(
        _variables.assert_global_step,
        _variables.create_global_step,
        _variables.get_global_step,
        _variables.get_or_create_global_step,
    ),
    *(is_tensor, nest),
)
lookup = namespace(
    f"{__name__}.lookup",
    "``tf.contrib.lookup``: tables, and index tables of vocabularies.",
    *(_tables.HashTable, _tables.IdTableWithHashBuckets),
    *(_tables.KeyValueTensorInitializer, _tables.TextFileIndex, _tables.TextFileInitializer),
    *(_tables.index_table_from_file, _tables.index_table_from_tensor),
    *(_tables.index_to_string_table_from_file, _tables.index_to_string_table_from_tensor),
)
staging = namespace(
    f"{__name__}.staging", "``tf.contrib.staging``: where the next batches wait.", StagingArea
)
training = namespace(
    f"{__name__}.training",
    "``tf.contrib.training``: buckets by length, and parameters by name.",
    *(HParams, bucket, bucket_by_sequence_length),
)
util = namespace(f"{__name__}.util", "``tf.contrib.util``: what is constant.", constant_value)

__getattr__ = names_of(__name__)
