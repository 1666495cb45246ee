"""The input pipeline: sources, readers, prepared examples and batches.

Start with a `Pipeline`: a source (or reader) and its stages in one expression. Iterate over it with
``for`` or ``async for``, epoch after epoch (`Pipeline.epochs`). `save_position` and `load_position`
store its position, `merge_positions` converts positions to another number of ranks, and
`Preemption` tells your loop that the process is about to be ended.

The parts of a pipeline are public too, for programs with queues and workers of their own. They
compose with plain ``for`` and ``async for``. They stop, close and report through the coordinator,
as queue runners do:

* **sources** of items: `items`, `numbers`, `arrays`, `files`, `from_iterable`, `kafka`,
  `huggingface_dataset`, `ray_dataset`, and mixtures of them;
* **readers** of files: `read_lines`, `read_csv`, `read_json_lines`, `read_records`,
  `read_tfrecords`, `read_tar`, `read_parquet`, `read_arrow`, `read_whole_files`;
* `prepare`: calls a function for each item on tasks, threads or processes, with a failure policy;
* **batchers**: `batch`, `shuffle_batch`, `bucket_by_sequence_length`;
* `broadcast`: the same batches for several consumers;
* **sinks**, for `Pipeline.write`: `to_parquet`, `to_json_lines`, `to_tar`, `to_tfrecord`.

There is one set of names for coroutines and for threads: with an async queue or coordinator you
await the results, and with one of `aioqueue.sync` the calls block.
"""

from __future__ import annotations

import typing as _typing

from aioqueue.public_names import PublicNames as _PublicNames

if _typing.TYPE_CHECKING:
    from aioqueue.inputs.batches.batch import batch, shuffle_batch
    from aioqueue.inputs.batches.broadcast import broadcast
    from aioqueue.inputs.batches.bucketing import bucket_by_sequence_length
    from aioqueue.inputs.core.items import Entry, Origin, PlacedEntry, Quarantined
    from aioqueue.inputs.core.iteration import AsyncBatchStream, BatchStream
    from aioqueue.inputs.core.journal import Journal, JournalEntry, read_journal
    from aioqueue.inputs.core.positions import Position, load_position, save_position
    from aioqueue.inputs.core.shuffling import rng
    from aioqueue.inputs.core.sink import Sink
    from aioqueue.inputs.pipeline.description import ArraySpec
    from aioqueue.inputs.pipeline.epochs import Epoch, Epochs
    from aioqueue.inputs.pipeline.pipeline import Pipeline
    from aioqueue.inputs.pipeline.rank_merge import merge_positions
    from aioqueue.inputs.pipeline.writing import Written
    from aioqueue.inputs.preemption import Notice, Preemption, aws_notice, azure_notice, gcp_notice
    from aioqueue.inputs.prepare.runner import AsyncPrepareRunner, PrepareRunner, prepare
    from aioqueue.inputs.prepare_options import PrepareOptions, Rate, Retry, per_minute, per_second
    from aioqueue.inputs.readers.csv import read_csv
    from aioqueue.inputs.readers.datasets import RayDataset, huggingface_dataset, ray_dataset
    from aioqueue.inputs.readers.files import files
    from aioqueue.inputs.readers.kafka import Kafka, KafkaRecord, kafka
    from aioqueue.inputs.readers.lines import read_json_lines, read_lines
    from aioqueue.inputs.readers.parquet import read_arrow, read_parquet
    from aioqueue.inputs.readers.reader import Reader, read_records, read_whole_files
    from aioqueue.inputs.readers.tar import read_tar
    from aioqueue.inputs.readers.tfrecord import TFRecordWriter, read_tfrecords
    from aioqueue.inputs.sinks.json_lines import to_json_lines
    from aioqueue.inputs.sinks.parquet import to_parquet
    from aioqueue.inputs.sinks.tar import to_tar
    from aioqueue.inputs.sinks.tfrecord import to_tfrecord
    from aioqueue.inputs.sources.iterables import from_iterable
    from aioqueue.inputs.sources.mixture import mix
    from aioqueue.inputs.sources.sequences import arrays, items, numbers
    from aioqueue.inputs.sources.source import QuarantinedItems, Source, read_quarantine
    from aioqueue.inputs.statistics import (
        BatchStatistics,
        BucketStatistics,
        ConsumerStatistics,
        PrepareStatistics,
        StageStatistics,
    )

__all__ = (
    "ArraySpec",
    "AsyncBatchStream",
    "AsyncPrepareRunner",
    "BatchStatistics",
    "BatchStream",
    "BucketStatistics",
    "ConsumerStatistics",
    "Entry",
    "Epoch",
    "Epochs",
    "Journal",
    "JournalEntry",
    "Kafka",
    "KafkaRecord",
    "Notice",
    "Origin",
    "Pipeline",
    "PlacedEntry",
    "Position",
    "Preemption",
    "PrepareOptions",
    "PrepareRunner",
    "PrepareStatistics",
    "Quarantined",
    "QuarantinedItems",
    "Rate",
    "RayDataset",
    "Reader",
    "Retry",
    "Sink",
    "Source",
    "StageStatistics",
    "TFRecordWriter",
    "Written",
    "arrays",
    "aws_notice",
    "azure_notice",
    "batch",
    "broadcast",
    "bucket_by_sequence_length",
    "files",
    "from_iterable",
    "gcp_notice",
    "huggingface_dataset",
    "items",
    "kafka",
    "load_position",
    "merge_positions",
    "mix",
    "numbers",
    "per_minute",
    "per_second",
    "prepare",
    "ray_dataset",
    "read_arrow",
    "read_csv",
    "read_journal",
    "read_json_lines",
    "read_lines",
    "read_parquet",
    "read_quarantine",
    "read_records",
    "read_tar",
    "read_tfrecords",
    "read_whole_files",
    "rng",
    "save_position",
    "shuffle_batch",
    "to_json_lines",
    "to_parquet",
    "to_tar",
    "to_tfrecord",
)


def _options() -> dict[str, tuple[str, ...]]:
    """What ``**options`` stands for: a function checks them when it calls `prepare`, too late."""
    from aioqueue.inputs.prepare_options import PrepareOptions

    with_options = ("batch", "bucket_by_sequence_length", "shuffle_batch")
    return dict.fromkeys(with_options, tuple(PrepareOptions.__optional_keys__))


_names = _PublicNames(
    __name__,
    {
        "aioqueue.inputs.batches.batch": "batch shuffle_batch",
        "aioqueue.inputs.batches.broadcast": "broadcast",
        "aioqueue.inputs.batches.bucketing": "bucket_by_sequence_length",
        "aioqueue.inputs.core.items": "Entry Origin PlacedEntry Quarantined",
        "aioqueue.inputs.core.iteration": "AsyncBatchStream BatchStream",
        "aioqueue.inputs.core.journal": "Journal JournalEntry read_journal",
        "aioqueue.inputs.core.positions": "Position load_position save_position",
        "aioqueue.inputs.core.shuffling": "rng",
        "aioqueue.inputs.core.sink": "Sink",
        "aioqueue.inputs.prepare_options": "PrepareOptions Rate Retry per_minute per_second",
        "aioqueue.inputs.pipeline.description": "ArraySpec",
        "aioqueue.inputs.pipeline.epochs": "Epoch Epochs",
        "aioqueue.inputs.pipeline.pipeline": "Pipeline",
        "aioqueue.inputs.pipeline.rank_merge": "merge_positions",
        "aioqueue.inputs.pipeline.writing": "Written",
        "aioqueue.inputs.preemption": "Notice Preemption aws_notice azure_notice gcp_notice",
        "aioqueue.inputs.prepare.runner": "AsyncPrepareRunner PrepareRunner prepare",
        "aioqueue.inputs.readers.csv": "read_csv",
        "aioqueue.inputs.readers.files": "files",
        "aioqueue.inputs.readers.kafka": "Kafka KafkaRecord kafka",
        "aioqueue.inputs.readers.parquet": "read_arrow read_parquet",
        "aioqueue.inputs.readers.datasets": "RayDataset huggingface_dataset ray_dataset",
        "aioqueue.inputs.readers.reader": "Reader read_records read_whole_files",
        "aioqueue.inputs.readers.tar": "read_tar",
        "aioqueue.inputs.readers.lines": "read_json_lines read_lines",
        "aioqueue.inputs.readers.tfrecord": "TFRecordWriter read_tfrecords",
        "aioqueue.inputs.sinks.json_lines": "to_json_lines",
        "aioqueue.inputs.sinks.parquet": "to_parquet",
        "aioqueue.inputs.sinks.tar": "to_tar",
        "aioqueue.inputs.sinks.tfrecord": "to_tfrecord",
        "aioqueue.inputs.sources.iterables": "from_iterable",
        "aioqueue.inputs.sources.mixture": "mix",
        "aioqueue.inputs.sources.sequences": "arrays items numbers",
        "aioqueue.inputs.sources.source": "QuarantinedItems Source read_quarantine",
        "aioqueue.inputs.statistics": """
            BatchStatistics BucketStatistics ConsumerStatistics PrepareStatistics StageStatistics
        """,
    },
    hints="inputs",
    options=_options,
)

if not _typing.TYPE_CHECKING:
    # Python binds the name of a folder at its first import, and never again. The name is that of
    # the function.
    from aioqueue.inputs import prepare

    del prepare
    __getattr__ = _names.get


def __dir__() -> list[str]:
    """Return the public names, without the modules that define them."""
    return sorted(__all__)
