"""``tf.contrib.slim``: its data sets, decoders and readers; layers belong to your framework."""

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.contrib.slim import (
    data_decoder,
    data_provider,
    dataset,
    dataset_data_provider,
    parallel_reader,
    prefetch_queue,
    queues,
    tfexample_decoder,
)
from aioqueue.compat.v1.ops.variables import (
    create_global_step,
    get_global_step,
    get_or_create_global_step,
)

__all__ = (
    "create_global_step",
    "data_decoder",
    "data_provider",
    "dataset",
    "dataset_data_provider",
    "get_global_step",
    "get_or_create_global_step",
    "parallel_reader",
    "prefetch_queue",
    "queues",
    "tfexample_decoder",
)

__getattr__ = names_of(__name__)
