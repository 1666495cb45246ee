"""``tf.data.experimental``: functions for `Dataset.apply`."""

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.datasets.grouping import (
    bucket_by_sequence_length,
    group_by_window,
    map_and_batch,
    parallel_interleave,
    shuffle_and_repeat,
    unbatch,
)
from aioqueue.compat.v1.datasets.options import AUTOTUNE, OptimizationOptions, ThreadingOptions
from aioqueue.compat.v1.datasets.transforming import (
    choose_from_datasets,
    copy_to_device,
    enumerate_dataset,
    ignore_errors,
    parse_example_dataset,
    prefetch_to_device,
    take_while,
)
from aioqueue.compat.v1.datasets.transforming import counter as Counter  # noqa: N812

__all__ = (
    "AUTOTUNE",
    "Counter",
    "OptimizationOptions",
    "ThreadingOptions",
    "bucket_by_sequence_length",
    "choose_from_datasets",
    "copy_to_device",
    "enumerate_dataset",
    "group_by_window",
    "ignore_errors",
    "map_and_batch",
    "parallel_interleave",
    "parse_example_dataset",
    "prefetch_to_device",
    "shuffle_and_repeat",
    "take_while",
    "unbatch",
)

__getattr__ = names_of(__name__)
