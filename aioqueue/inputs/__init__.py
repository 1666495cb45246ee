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

from aioqueue.base.public_names import PublicNames as _PublicNames

if _typing.TYPE_CHECKING:
    from aioqueue.items.item import Entry, Origin, PlacedEntry
    from aioqueue.items.journal import Journal, JournalEntry, read_journal
    from aioqueue.items.position_file import Position, load_position, save_position
    from aioqueue.items.quarantined import Quarantined
    from aioqueue.pipeline.array_spec import ArraySpec
    from aioqueue.pipeline.epochs import Epoch, Epochs
    from aioqueue.pipeline.pipeline import Pipeline
    from aioqueue.pipeline.sink import Sink
    from aioqueue.pipeline.state.ranks.merge import merge_positions
    from aioqueue.pipeline.stream import AsyncBatchStream, BatchStream
    from aioqueue.pipeline.streams.batch import batch, shuffle_batch
    from aioqueue.pipeline.streams.broadcast import broadcast
    from aioqueue.pipeline.streams.bucketing import bucket_by_sequence_length
    from aioqueue.pipeline.write import Written
    from aioqueue.preemption import Notice, Preemption, aws_notice, azure_notice, gcp_notice
    from aioqueue.readers.csv import read_csv
    from aioqueue.readers.datasets import RayDataset, huggingface_dataset, ray_dataset
    from aioqueue.readers.files import files
    from aioqueue.readers.kafka import Kafka, KafkaRecord, kafka
    from aioqueue.readers.lines import read_json_lines, read_lines
    from aioqueue.readers.parquet import read_arrow, read_parquet
    from aioqueue.readers.reader import Reader, read_records, read_whole_files
    from aioqueue.readers.tar import read_tar
    from aioqueue.readers.tfrecord import TFRecordWriter, read_tfrecords
    from aioqueue.sinks.json_lines import to_json_lines
    from aioqueue.sinks.parquet import to_parquet
    from aioqueue.sinks.tar import to_tar
    from aioqueue.sinks.tfrecord import to_tfrecord
    from aioqueue.sources.kinds.iterables import from_iterable
    from aioqueue.sources.kinds.mixture import mix
    from aioqueue.sources.kinds.sequences import arrays, items, numbers
    from aioqueue.sources.kinds.source import QuarantinedItems, Source, read_quarantine
    from aioqueue.sources.shuffling import rng
    from aioqueue.workers.options import PrepareOptions, Retry
    from aioqueue.workers.rates import AdaptiveRate, Rate, per_minute, per_second
    from aioqueue.workers.runner import AsyncPrepareRunner, PrepareRunner, prepare
    from aioqueue.workers.statistics import (
        BatchStatistics,
        BucketStatistics,
        ConsumerStatistics,
        PrepareStatistics,
        StageStatistics,
    )

__all__ = (
    "AdaptiveRate",
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
    """Return what ``**options`` stands for: a function checks them too late, in `prepare`."""
    from aioqueue.workers.options import PrepareOptions

    with_options = ("batch", "bucket_by_sequence_length", "shuffle_batch")
    return dict.fromkeys(with_options, tuple(PrepareOptions.__optional_keys__))


def _imported_by_name() -> None:
    """Say what registries import by name, to tools that follow import statements: PyInstaller, say.

    A test compares it with the folders.
    """
    from aioqueue.pipeline.stages import (  # noqa: F401
        base,
        batch,
        bucket,
        carry,
        chain,
        combining,
        concat,
        counted,
        draw,
        enumerate,
        filter,
        flat,
        lengths,
        map_batches,
        mix,
        pack,
        prefetch,
        prepare,
        read,
        shard,
        shuffle,
        skip,
        take,
        to_device,
        transform,
        unbatch,
        window,
        zip,
    )
    from aioqueue.workers.executors import (  # noqa: F401
        chunks,
        interpreters,
        process_child,
        processes,
        ray,
        ray_actor,
        ray_cluster,
        tasks,
        threads,
        timed_threads,
        worker_threads,
    )


_names = _PublicNames(
    __name__,
    {
        "aioqueue.items.item": "Entry Origin PlacedEntry",
        "aioqueue.items.journal": "Journal JournalEntry read_journal",
        "aioqueue.items.position_file": "Position load_position save_position",
        "aioqueue.items.quarantined": "Quarantined",
        "aioqueue.pipeline.array_spec": "ArraySpec",
        "aioqueue.pipeline.epochs": "Epoch Epochs",
        "aioqueue.pipeline.pipeline": "Pipeline",
        "aioqueue.pipeline.sink": "Sink",
        "aioqueue.pipeline.state.ranks.merge": "merge_positions",
        "aioqueue.pipeline.streams.batch": "batch shuffle_batch",
        "aioqueue.pipeline.streams.broadcast": "broadcast",
        "aioqueue.pipeline.streams.bucketing": "bucket_by_sequence_length",
        "aioqueue.pipeline.stream": "AsyncBatchStream BatchStream",
        "aioqueue.pipeline.write": "Written",
        "aioqueue.preemption": "Notice Preemption aws_notice azure_notice gcp_notice",
        "aioqueue.readers.csv": "read_csv",
        "aioqueue.readers.datasets": "RayDataset huggingface_dataset ray_dataset",
        "aioqueue.readers.files": "files",
        "aioqueue.readers.kafka": "Kafka KafkaRecord kafka",
        "aioqueue.readers.lines": "read_json_lines read_lines",
        "aioqueue.readers.parquet": "read_arrow read_parquet",
        "aioqueue.readers.reader": "Reader read_records read_whole_files",
        "aioqueue.readers.tar": "read_tar",
        "aioqueue.readers.tfrecord": "TFRecordWriter read_tfrecords",
        "aioqueue.sinks.json_lines": "to_json_lines",
        "aioqueue.sinks.parquet": "to_parquet",
        "aioqueue.sinks.tar": "to_tar",
        "aioqueue.sinks.tfrecord": "to_tfrecord",
        "aioqueue.sources.kinds.iterables": "from_iterable",
        "aioqueue.sources.kinds.mixture": "mix",
        "aioqueue.sources.kinds.sequences": "arrays items numbers",
        "aioqueue.sources.shuffling": "rng",
        "aioqueue.sources.kinds.source": "QuarantinedItems Source read_quarantine",
        "aioqueue.workers.options": "PrepareOptions Retry",
        "aioqueue.workers.rates": "AdaptiveRate Rate per_minute per_second",
        "aioqueue.workers.runner": "AsyncPrepareRunner PrepareRunner prepare",
        "aioqueue.workers.statistics": """
            BatchStatistics BucketStatistics ConsumerStatistics PrepareStatistics StageStatistics
        """,
    },
    hints="inputs",
    options=_options,
)

if not _typing.TYPE_CHECKING:
    __getattr__ = _names.get


def __dir__() -> list[str]:
    """Return the public names, without the modules that define them."""
    return sorted(__all__)
