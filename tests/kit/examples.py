"""A small example of each kind of stage, source, file format, sink and executor, by its class.

`tests/contracts` asks the same questions of each; the random pipelines of
`tests/pipeline/test_epochs_resume_anything.py` are made of the same examples. A kind without an
example is reported by its name. To give one, add an entry to the table of its family. Its first
variant is asked everything, the others are in random pipelines as well.

An example may be excepted from a question, with the reason. The questions are the names of the
files of `tests/contracts`: ``"resume"``, ``"leaving"``, and so on; ``"*"`` is all of them.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import numpy as np

from aioqueue import inputs
from aioqueue.inputs import Retry, arrays, from_iterable, items, mix, numbers, read_lines
from aioqueue.pipeline.stages.batch import Batch
from aioqueue.pipeline.stages.bucket import Bucket
from aioqueue.pipeline.stages.carry import Carry
from aioqueue.pipeline.stages.concat import Concat
from aioqueue.pipeline.stages.draw import Draw
from aioqueue.pipeline.stages.enumerate import Enumerate
from aioqueue.pipeline.stages.filter import Filter
from aioqueue.pipeline.stages.flat import Flat
from aioqueue.pipeline.stages.map_batches import MapBatches
from aioqueue.pipeline.stages.mix import Mix
from aioqueue.pipeline.stages.pack import Pack
from aioqueue.pipeline.stages.prefetch import Prefetch
from aioqueue.pipeline.stages.prepare import Prepare
from aioqueue.pipeline.stages.read import Read
from aioqueue.pipeline.stages.shard import Shard
from aioqueue.pipeline.stages.shuffle import Shuffle
from aioqueue.pipeline.stages.skip import SkipRows
from aioqueue.pipeline.stages.take import TakeRows
from aioqueue.pipeline.stages.to_device import ToDevice
from aioqueue.pipeline.stages.unbatch import Unbatch
from aioqueue.pipeline.stages.window import Window
from aioqueue.pipeline.stages.zip import Zip
from aioqueue.readers.csv import CsvFormat
from aioqueue.readers.datasets import HuggingFaceRows, HuggingFaceStream, RayDataset
from aioqueue.readers.files import Files
from aioqueue.readers.kafka import Kafka
from aioqueue.readers.lines import JsonLineFormat, LineFormat
from aioqueue.readers.parquet import ArrowFormat, ParquetFormat
from aioqueue.readers.reader import Reader, RecordFormat, WholeFileFormat
from aioqueue.readers.tar import TarFormat
from aioqueue.readers.tfrecord import TFRecordFormat
from aioqueue.sinks import json_lines as json_lines_sink
from aioqueue.sinks import parquet as parquet_sink
from aioqueue.sinks import tar as tar_sink
from aioqueue.sinks import tfrecord as tfrecord_sink
from aioqueue.sources.kinds import sequences, source
from aioqueue.sources.kinds.iterables import OfIterable
from aioqueue.sources.kinds.mixture import Interleaved, Mixture
from aioqueue.sources.kinds.sequences import Sequential
from aioqueue.sources.kinds.source import QuarantinedItems, Resumed
from aioqueue.workers.executors.interpreters import InterpreterExecutor
from aioqueue.workers.executors.processes import ProcessExecutor
from aioqueue.workers.executors.ray import RayExecutor
from aioqueue.workers.executors.tasks import TaskExecutor
from aioqueue.workers.executors.threads import ThreadExecutor
from aioqueue.workers.executors.timed_threads import TimedThreadExecutor
from tests.kit.exact import plain_form
from tests.kit.going import packed
from tests.kit.resuming import How, of_every_kind, rows_in, write_files

HAS_PYARROW = importlib.util.find_spec("pyarrow") is not None

Exceptions = Mapping[str, str]
"""Why an example is not asked a question, by the question."""


# Elements: numbers, and trees that stand for numbers.


def tree_of(leaf: Any) -> Any:
    """An element that has the same number, or the same sequence, in each of its leaves."""
    return {"a": leaf, "b": (leaf, {"c": leaf})}


def is_tree(value: Any) -> bool:
    """Whether it is such an element, or a batch of them."""
    return isinstance(value, dict) and value.keys() >= {"a", "b"}


def collapsed(value: Any) -> Any:
    """A value with one leaf in the place of each tree; the leaves of a tree are the same."""
    if is_tree(value):
        leaf, (other, inner) = collapsed(value["a"]), value["b"]
        assert plain_form(leaf) == plain_form(collapsed(other)) == plain_form(collapsed(inner["c"]))
        added = [one for name, one in value.items() if name not in ("a", "b")]  # by `pack`
        return (leaf, *added) if added else leaf
    if isinstance(value, dict):
        return {key: collapsed(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(collapsed, value))
    return value


def numbers_in(value: Any) -> Iterator[Any]:
    """All leaves of a value, one by one."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        for one in value:
            yield from numbers_in(one)
    else:
        yield value


# Functions of the user. They take any value, because random pipelines put them anywhere.


def sum_of(value: Any) -> int:
    """A number that any value has, whatever it is made of; that of a tree is that of its leaf."""
    return zlib.crc32(json.dumps(plain_form(collapsed(value))).encode())


def same(value: Any) -> Any:
    return value


def noised(value: Any, rng: np.random.Generator) -> tuple[int, float]:
    return sum_of(value), float(rng.random())


async def noised_in_a_task(value: Any, rng: np.random.Generator) -> tuple[int, float]:
    await anyio.lowlevel.checkpoint()
    return noised(value, rng)


def rich(value: Any, rng: np.random.Generator) -> dict[str, Any]:
    return of_every_kind(sum_of(value) % 100, rng)


def sequence(value: Any, rng: np.random.Generator) -> Any:
    found = np.full(int(rng.integers(0, 12)), sum_of(value) % 1000)
    return tree_of(found) if is_tree(value) else found


def short_sequence(value: Any) -> Any:
    found = np.full(1 + sum_of(value) % 5, sum_of(value) % 1000)
    return tree_of(found) if is_tree(value) else found


def copies(value: Any, rng: np.random.Generator) -> Iterator[tuple[int, float]]:
    for _ in range(sum_of(value) % 3):
        yield noised(value, rng)


def mostly(value: Any, rng: np.random.Generator) -> tuple[int, float] | None:
    """Some fail, some are left out."""
    kind = sum_of(value) % 5
    if not kind:
        raise ValueError("none of these")
    return None if kind == 1 else noised(value, rng)


def rarely_failing(value: Any, rng: np.random.Generator) -> tuple[int, float]:
    if not sum_of(value) % 4:
        raise ValueError("not this one")
    return noised(value, rng)


def is_wanted(value: Any) -> bool:
    return bool(sum_of(value) % 4)


def tokens(value: Any) -> int:
    return sum_of(value) % 7


# Stages.

Add = Callable[[Any, How, int], Any]
"""Puts a stage behind a pipeline, with a number that changes its options."""
Combine = Callable[[Any, Any, int], Any]
"""Combines a pipeline with another one."""


@dataclass(frozen=True)
class StageExample:
    """An example of a stage.

    Args:
        variants: ways to use it, by name: `Combine` for a stage that combines, else `Add`.
        exceptions: the questions that it is not asked.
        rows: the examples in one of its values; ranks together have each once.
        is_method: whether the user adds it, by a method of its name.
        is_random: whether random pipelines have it.
    """

    variants: Mapping[str, Any]
    exceptions: Exceptions = field(default_factory=dict)
    rows: Callable[[Any], Iterable[Any]] = numbers_in
    is_method: bool = True
    is_random: bool = True


class Asynchronous:
    """An iterable for tasks alone, whose iterators have no state."""

    async def __aiter__(self) -> AsyncIterator[int]:
        for number in range(8):
            await anyio.lowlevel.checkpoint()
            yield number


STAGES: dict[type[Any], StageExample] = {
    Batch: StageExample(
        {
            "batch": lambda one, how, n: one.batch(n, collate=list),
            "arrays": lambda one, how, n: one.batch(n),
            "rich batch": lambda one, how, n: how.prepare(one, rich).batch(n),
            "whole batches": lambda one, how, n: one.batch(n, collate=list, drop_remainder=True),
            "across epochs": lambda one, how, n: one.batch(n, collate=list, across_epochs=True),
        },
        {"options": "batches of another size may continue"},
    ),
    Bucket: StageExample(
        {
            "bucket": lambda one, how, n: how.prepare(one, sequence).bucket([4, 8], n),
            "tokens": lambda one, how, n: how.prepare(one, sequence).bucket(
                [4, 8], tokens_per_batch=20
            ),
        },
        rows=rows_in,
    ),
    Carry: StageExample(
        {"carry": lambda one, how, n: one._pipeline()._with(Carry(n))},
        is_method=False,
        is_random=False,
    ),
    Concat: StageExample({"concat": lambda one, other, n: one.concat(other)}),
    Draw: StageExample(
        {"draw": lambda one, how, n: one._pipeline()._with(Draw(n, 5))},
        is_method=False,
        is_random=False,
    ),
    Enumerate: StageExample({"enumerate": lambda one, how, n: one.enumerate(n)}),
    Filter: StageExample({"filter": lambda one, how, n: one.filter(is_wanted)}),
    Flat: StageExample({"flat": lambda one, how, n: one.flat(copies, workers=how.workers)}),
    MapBatches: StageExample(
        {
            "batches as they are": lambda one, how, n: one.batch(n, collate=list).map_batches(
                same, workers=how.workers
            ),
            "map_batches": lambda one, how, n: one.batch(n, collate=list).map_batches(
                noised, workers=how.workers, max_in_flight=how.limit
            ),
        }
    ),
    Mix: StageExample(
        {
            "mix": lambda one, other, n: one.mix(other, weights=[n, 2]),
            "mix, first": lambda one, other, n: one.mix(other, weights=[n, 2], stop="first"),
            "mix, tokens": lambda one, other, n: one.mix(other, weights=[n, 2], tokens=tokens),
        }
    ),
    Pack: StageExample(
        {
            "pack": lambda one, how, n: packed(how.prepare(one, sequence), 12, n),
            "pieces": lambda one, how, n: packed(
                how.prepare(one, sequence), 5, n, on_too_long="split"
            ),
            "cut": lambda one, how, n: how.prepare(one, sequence).pack(
                5 + n, cut=True, loss_mask=True
            ),
        },
        rows=lambda row: rows_in(tuple(np.asarray(part)[None] for part in row)),
    ),
    Prefetch: StageExample(
        {"prefetch": lambda one, how, n: one.prefetch(n)},
        {"options": "how many values are ready does not change them"},
    ),
    Prepare: StageExample(
        {
            "prepare": lambda one, how, n: how.prepare(one, noised),
            "tasks": lambda one, how, n: one.prepare(
                noised_in_a_task, workers=how.workers, max_in_flight=how.limit
            ),
            "generators": lambda one, how, n: how.prepare(one, copies),
            "skips": lambda one, how, n: how.prepare(one, mostly, on_error="skip", drop_none=True),
            "retries": lambda one, how, n: how.prepare(
                one, rarely_failing, on_error=Retry(1, then="skip")
            ),
            "rich": lambda one, how, n: how.prepare(one, rich),
        }
    ),
    Read: StageExample(
        {"read": lambda one, how, n: from_iterable(Asynchronous(), seed=0).shuffle(n)},
        {
            "resume": "only an iterator with a state resumes, see test_iterables",
            "leaving": "an iterable for tasks, which threads cannot read",
            "failing": "it begins a pipeline, whose source is its own",
            "finishing": "it begins a pipeline, whose source is its own",
            "ranks": "no order in common, see test_elastic",
            "trees": "it begins a pipeline, whose source is its own",
            "determinism": "it has one worker",
            "lengths": "its length is unknown",
            "options": "only an iterator with a state resumes, see test_iterables",
            "worlds": "threads cannot read it",
        },
        is_method=False,
        is_random=False,
    ),
    Shard: StageExample(
        {"shard": lambda one, how, n: one.shard(0, 2, uneven="allow")},
        {"ranks": "it says which rank a pipeline is of"},
        is_random=False,
    ),
    Shuffle: StageExample(
        {
            "shuffle": lambda one, how, n: one.shuffle(3 * n),
            "large shuffle": lambda one, how, n: one.shuffle(100),
        }
    ),
    SkipRows: StageExample({"skip": lambda one, how, n: one.skip(2 * n)}),
    TakeRows: StageExample({"take": lambda one, how, n: one.take(4 * n)}),
    ToDevice: StageExample(
        {"to_device": lambda one, how, n: one.batch(n).to_device("cpu")},
        {}
        if importlib.util.find_spec("torch") or importlib.util.find_spec("jax")
        else {"*": "neither torch nor jax is installed"},
        is_random=False,
    ),
    Unbatch: StageExample(
        {
            "unbatch": lambda one, how, n: one.batch(n, collate=list).unbatch(),
            "rich unbatch": lambda one, how, n: how.prepare(one, rich).batch(n).unbatch(),
        }
    ),
    Window: StageExample(
        {
            "window": lambda one, how, n: one.window(n, 1 + n % 4, collate=list),
            "short windows": lambda one, how, n: one.window(
                n, 1 + n % 3, collate=list, drop_remainder=False
            ),
        }
    ),
    Zip: StageExample({"zip": lambda one, other, n: one.zip(other)}),
}


# Sources.

Make = Callable[[Path], Any]
"""Makes a source of the files in a folder; see `Folder`."""


@dataclass(frozen=True)
class SourceExample:
    """An example of a source: ways to make it, and the questions that it is not asked."""

    variants: Mapping[str, Make]
    exceptions: Exceptions = field(default_factory=dict)
    is_random: bool = True


def lines(folder: Path, seed: int = 0) -> Any:
    """Lines of several files, which come in a random order."""
    paths = sorted(map(str, text_files(folder)))
    return read_lines(items(paths, shuffle=True, seed=seed))


def text_files(folder: Path) -> list[Path]:
    """Files of lines, one of them empty."""
    files = folder / "lines"
    if not files.is_dir():
        files.mkdir()
        write_files(files)
    return sorted(files.iterdir())


def damaged_text(folder: Path) -> str:
    """A file with a line that is no ASCII."""
    path = folder / "damaged.txt"
    path.write_bytes(b"sound 1\nsound 2\n\xff\nlost\n")
    return str(path)


def quarantined(folder: Path) -> Any:
    """Items that have failed."""
    path = folder / "quarantine.jsonl"
    if not path.exists():
        pipeline = numbers(12, seed=3).prepare(rarely_failing, on_error="skip", quarantine=path)
        list(pipeline)
    return inputs.read_quarantine(path)


def behind_two(made: Any) -> Any:
    """The rest of a source behind its second item."""
    taken = iter(made.placed())
    next(taken)
    return made.after(made.position(next(taken).place))


class Stateful:
    """An iterable whose iterators have a state."""

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Stateful:
        return Stateful()

    def __next__(self) -> int:
        if self.next == 9:
            raise StopIteration
        self.next += 1
        return self.next - 1

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.next = state["next"]


def dataset_rows() -> Any:
    """A dataset of Hugging Face."""
    import datasets

    return datasets.Dataset.from_dict({"a": list(range(9))})


WITHOUT_DATASETS: Exceptions = (
    {} if importlib.util.find_spec("datasets") else {"*": "the library datasets is not installed"}
)

SOURCES: dict[type[Any], SourceExample] = {
    Sequential: SourceExample(
        {
            "numbers": lambda folder: numbers(9, shuffle=True, seed=3),
            "more numbers": lambda folder: numbers(30, shuffle=True, seed=3),
            "one": lambda folder: numbers(1, seed=3),
            "arrays": lambda folder: arrays(
                {"x": np.arange(17, dtype=np.int16), "y": np.arange(17) / 3}, seed=1
            ),
        }
    ),
    sequences._SequencePart: SourceExample(
        {"part": lambda folder: numbers(20, shuffle=True, seed=3).split([0.6, 0.4])[0]}
    ),
    source._SourcePart: SourceExample(
        {"part of lines": lambda folder: lines(folder, 2).split([0.4, 0.6])[0]}
    ),
    source._Repeated: SourceExample(
        {
            "repeated": lambda folder: numbers(5, shuffle=True, seed=3).repeat(2),
            "repeated lines": lambda folder: lines(folder, 5).split([0.7, 0.3])[1].repeat(2),
        }
    ),
    source._OneEpoch: SourceExample(
        {"one epoch": lambda folder: numbers(9, shuffle=True, seed=3).epoch(2)},
    ),
    Resumed: SourceExample(
        {"after": lambda folder: behind_two(numbers(9, shuffle=True, seed=3))},
        {"*": "no source of a pipeline, see tests/items/test_positions.py"},
        is_random=False,
    ),
    QuarantinedItems: SourceExample({"quarantined": quarantined}, is_random=False),
    Reader: SourceExample(
        {"with keys": lambda folder: lines(folder, 4).with_keys()}, is_random=False
    ),
    Interleaved: SourceExample({"files in turn": lambda folder: lines(folder, 6).interleave(2)}),
    Mixture: SourceExample(
        {
            "mixture": lambda folder: mix(
                [numbers(9, shuffle=True, seed=1), numbers(5, seed=4)], [2, 1], seed=5
            ),
            "mixture of lines": lambda folder: mix(
                [numbers(20, shuffle=True, seed=1), lines(folder, 4)], [2, 1], seed=5
            ),
            "mixture that stops": lambda folder: mix(
                [lines(folder, 7), numbers(9, seed=2)], stop="first", seed=6
            ),
        }
    ),
    OfIterable: SourceExample(
        {"iterable": lambda folder: from_iterable(Stateful(), seed=2)},
        is_random=False,
    ),
    Files: SourceExample(
        {
            "files": lambda folder: (
                text_files(folder),
                inputs.files(folder / "lines/*.txt", seed=1),
            )[1]
        },
        is_random=False,
    ),
    HuggingFaceRows: SourceExample(
        {"rows": lambda folder: inputs.huggingface_dataset(dataset_rows(), shuffle=True, seed=1)},
        WITHOUT_DATASETS,
        is_random=False,
    ),
    HuggingFaceStream: SourceExample(
        {
            "stream": lambda folder: inputs.huggingface_dataset(
                dataset_rows().to_iterable_dataset(num_shards=3), seed=1
            )
        },
        WITHOUT_DATASETS,
        is_random=False,
    ),
    Kafka: SourceExample(
        {}, {"*": "it needs a broker, see tests/readers/test_kafka.py"}, is_random=False
    ),
    RayDataset: SourceExample({}, {"*": "it needs Ray, see tests/ray"}, is_random=False),
}


# File formats.


@dataclass(frozen=True)
class FormatExample:
    """An example of a file format.

    Args:
        write: writes a file with rows into a folder; called with its name, without the suffix.
        options: of the function that reads it.
        exceptions: the questions that it is not asked.
        variants: further ways to make a source of it.
        is_random: whether random pipelines have these variants.
        shows_cuts: whether a file that is cut short shows it.
    """

    write: Callable[[Path, str], Path]
    options: Mapping[str, Any] = field(default_factory=dict)
    exceptions: Exceptions = field(default_factory=dict)
    variants: Mapping[str, Make] = field(default_factory=dict)
    is_random: bool = False
    shows_cuts: bool = True

    def paths(self, folder: Path) -> list[str]:
        """Two files of it."""
        files = folder / self.write.__name__
        if not files.is_dir():
            files.mkdir()
            for name in ("a", "b"):
                self.write(files, name)
        return sorted(map(str, files.iterdir()))


ROWS = 7
"""In a file of an example."""


def _rows(name: str) -> list[dict[str, Any]]:
    return [{"n": number, "text": f"{name}{number}"} for number in range(ROWS)]


def text(folder: Path, name: str) -> Path:
    path = folder / f"{name}.txt"
    path.write_text("".join(f"{name}{number}\n" for number in range(ROWS)))
    return path


def json_lines(folder: Path, name: str) -> Path:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in _rows(name)))
    return path


def csv(folder: Path, name: str) -> Path:
    path = folder / f"{name}.csv"
    path.write_text("n,text\n" + "".join(f"{row['n']},{row['text']}\n" for row in _rows(name)))
    return path


def parquet(folder: Path, name: str) -> Path:
    import pyarrow as pa
    from pyarrow import parquet as files

    path = folder / f"{name}.parquet"
    files.write_table(pa.Table.from_pylist(_rows(name)), path, row_group_size=3)
    return path


def arrow(folder: Path, name: str) -> Path:
    import pyarrow as pa

    path = folder / f"{name}.arrow"
    table = pa.Table.from_pylist(_rows(name))
    with pa.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table, max_chunksize=3)
    return path


def arrow_stream(folder: Path) -> Path:
    import pyarrow as pa

    path = folder / "stream.arrows"
    table = pa.Table.from_pylist(_rows("s"))
    with pa.ipc.new_stream(str(path), table.schema) as file:
        file.write_table(table, max_chunksize=3)
    return path


def fixed(folder: Path, name: str) -> Path:
    path = folder / f"{name}.bin"
    path.write_bytes(b"head" + b"".join(b"%s%d" % (name.encode(), n) for n in range(ROWS)))
    return path


def whole(folder: Path, name: str) -> Path:
    path = folder / f"{name}.raw"
    path.write_bytes(name.encode() * 5)
    return path


def _written(folder: Path, name: str, sink: Any, rows: Iterable[Any], suffix: str) -> Path:
    target = folder.parent / f"{folder.name}-{name}"
    items(list(rows)).write(sink(target))
    (made,) = target.glob(f"*{suffix}")
    return made.rename(folder / f"{name}{suffix}")


def tar(folder: Path, name: str) -> Path:
    samples = [{"txt": row["text"].encode()} for row in _rows(name)]
    return _written(folder, name, inputs.to_tar, samples, ".tar")


def tfrecord(folder: Path, name: str) -> Path:
    rows = [row["text"].encode() for row in _rows(name)]
    return _written(folder, name, inputs.to_tfrecord, rows, ".tfrecord")


WITHOUT_PYARROW: Exceptions = {} if HAS_PYARROW else {"*": "pyarrow is not installed"}
WITHOUT_CRC: Exceptions = (
    {} if importlib.util.find_spec("google_crc32c") else {"*": "google-crc32c is not installed"}
)

FORMATS: dict[type[Any], FormatExample] = {
    LineFormat: FormatExample(
        text,
        is_random=True,
        shows_cuts=False,
        variants={
            "lines": lines,
            "damaged files": lambda folder: read_lines(
                [*map(str, text_files(folder)), damaged_text(folder), str(text_files(folder)[0])],
                encoding="ascii",
                seed=8,
                on_error="skip",
            ),
        },
    ),
    JsonLineFormat: FormatExample(json_lines),
    CsvFormat: FormatExample(
        csv, {"dtypes": {"n": int, "text": str}, "skip_header_lines": 1}, shows_cuts=False
    ),
    ParquetFormat: FormatExample(
        parquet,
        exceptions=WITHOUT_PYARROW,
        variants={
            "parquet batches": lambda folder: inputs.read_parquet(
                FORMATS[ParquetFormat].paths(folder), batch_size=2, seed=1
            ),
            "parquet union": lambda folder: inputs.read_parquet(
                FORMATS[ParquetFormat].paths(folder),
                schema="union",
                filters=[("n", ">", 3)],
                seed=1,
            ),
        },
    ),
    ArrowFormat: FormatExample(
        arrow,
        exceptions=WITHOUT_PYARROW,
        variants={
            "arrow stream": lambda folder: inputs.read_arrow(
                str(arrow_stream(folder)), batch_size=2, seed=1
            )
        },
    ),
    RecordFormat: FormatExample(fixed, {"record_bytes": 2, "header_bytes": 4}),
    WholeFileFormat: FormatExample(whole, shows_cuts=False),
    TarFormat: FormatExample(tar),
    TFRecordFormat: FormatExample(tfrecord, exceptions=WITHOUT_CRC),
}


# Executors.


@dataclass(frozen=True)
class ExecutorExample:
    """An example of an executor.

    Args:
        exceptions: the questions that it is not asked.
        is_slow: whether its workers take long to start.
    """

    exceptions: Exceptions = field(default_factory=dict)
    is_slow: bool = False


EXECUTORS: dict[type[Any], ExecutorExample] = {
    ThreadExecutor: ExecutorExample(),
    TimedThreadExecutor: ExecutorExample(),
    TaskExecutor: ExecutorExample(),
    ProcessExecutor: ExecutorExample(is_slow=True),
    InterpreterExecutor: ExecutorExample(
        {} if sys.version_info >= (3, 14) else {"*": "it needs Python 3.14"}, is_slow=True
    ),
    RayExecutor: ExecutorExample({"*": "it needs Ray, see tests/workers/ray"}),
}


def executed(cls: Any, how: How, functions: tuple[Any, Any], before: Any, **options: Any) -> Any:
    """A stage whose workers are those of an executor.

    Args:
        cls: its class.
        how: how many workers, and what is in flight.
        functions: a plain function and a coroutine function; the executor runs one of them.
        before: the pipeline before the stage.
        options: more options of the `prepare`.
    """
    if cls.is_timed:
        options["item_timeout"] = 60
    return before.prepare(
        functions[cls.is_async],
        workers=how.workers,
        where=cls.where,
        max_in_flight=how.limit,
        **options,
    )


# Random pipelines.


def random_stages(*, combines: bool = False) -> dict[str, Any]:
    """Ways to use the stages of random pipelines, by name.

    Args:
        combines: those of stages that combine, which are a `Combine`; else each is an `Add`.
    """
    return {
        name: add
        for cls, example in STAGES.items()
        if example.is_random and cls.combines is combines and "*" not in example.exceptions
        for name, add in example.variants.items()
    }


def elastic_stages() -> list[str]:
    """Of the random stages those that give examples one by one, which any number of ranks can
    continue."""
    found = []
    several = [
        name for one in STAGES.values() if one.rows is not numbers_in for name in one.variants
    ]
    for name, add in random_stages().items():
        stages = add(numbers(9, seed=1), How(1), 3)._pipeline().stages
        if all(stage.is_elastic() and stage.makes_batches() is None for stage in stages):
            found += [] if name in several else [name]
    return found


def random_sources() -> dict[str, Make]:
    """Ways to make the sources with which random pipelines begin, by name."""
    examples = [
        one
        for table in (SOURCES, FORMATS)
        for one in table.values()
        if one.is_random and "*" not in one.exceptions
    ]
    return {name: make for one in examples for name, make in one.variants.items()}


def damage(path: Path, *, is_compressed: bool) -> Path:
    """Cut off the end of a file, which is compressed before if its readers can decompress."""
    content = path.read_bytes()
    if is_compressed:
        path = path.rename(f"{path}.gz")
        content = gzip.compress(content)
    path.write_bytes(content[: len(content) - 9])
    return path


# Sinks.


@dataclass(frozen=True)
class SinkExample:
    """An example of a sink.

    Args:
        row: a row that it can write, with a number.
        unfit: a row that does not fit into its format.
        options: of the function that makes it.
        exceptions: the questions that it is not asked.
        variants: further options, by what is special about them.
        read_options: of the function that reads its files.
    """

    row: Callable[[int], Any]
    unfit: Any
    options: Mapping[str, Any] = field(default_factory=dict)
    exceptions: Exceptions = field(default_factory=dict)
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    read_options: Mapping[str, Any] = field(default_factory=dict)


class Unfit:
    """Nothing that a file can hold."""


SINKS: dict[type[Any], SinkExample] = {
    json_lines_sink._JsonLines: SinkExample(
        lambda n: {"n": n},
        {"n": Unfit()},
        variants={"gzip": {"compression": "gzip"}, "xz": {"compression": "xz"}},
    ),
    parquet_sink._Parquet: SinkExample(
        lambda n: {"n": n}, {"n": Unfit()}, exceptions=WITHOUT_PYARROW
    ),
    tar_sink._Tar: SinkExample(
        lambda n: {"txt": b"%d" % n},
        {"txt": Unfit()},
        variants={"bz2": {"compression": "bz2"}},
    ),
    tfrecord_sink._TFRecord: SinkExample(lambda n: b"%d" % n, Unfit(), exceptions=WITHOUT_CRC),
}
