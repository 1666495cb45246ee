"""The readers and `RecordInput`: ops that read files, and what is behind them in a session."""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections.abc import Callable, Generator, Iterator
from functools import cache
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np

import aioqueue
from aioqueue import sync
from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.core import default_graph, dtypes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.default_graph import op
from aioqueue.compat.v1.core.dtypes import DType, int64, resource, string
from aioqueue.compat.v1.core.graph import WOULD_WAIT, Operation, Tensor
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.core.shapes import TensorShape
from aioqueue.compat.v1.ops.arrays import reshape, split
from aioqueue.compat.v1.ops.building import invalid
from aioqueue.compat.v1.ops.files import glob_files
from aioqueue.compat.v1.protos import message_classes
from aioqueue.compat.v1.queues.resources import QueueResource
from aioqueue.compat.v1.readers.records import (
    Opener,
    Record,
    TFRecordOptions,
    WholeFile,
    fixed_length_file,
    identity,
    line_file,
    opener,
    tf_record_file,
)

__all__ = (
    "FixedLengthRecordReader", "IdentityReader", "ReaderBase", "TFRecordReader", "TextLineReader",
    "WholeFileReader",
)  # fmt: skip

T = TypeVar("T")


class ReaderResource:
    """A reader in a session, or on a server, for one caller at a time."""

    def __init__(self, kind: str, name: str, open_work: Opener, *, ends_at_once: bool) -> None:
        self.kind = kind
        self.name = name
        self._open_work = open_work
        self._ends_at_once = ends_at_once
        # A lock whose waiters can be cancelled, as those of a queue can: the token in this queue.
        self._turn = sync.FIFOQueue(1)
        self._turn.enqueue(None)
        self._closed = False
        self._records: Iterator[Record] | None = None
        self._forget()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.kind} '{self.name}'>"

    def use(self, action: Callable[[], T]) -> T:
        """Have it alone for a call, waiting for others."""
        self._turn.dequeue()
        return self._used(action)

    def try_use(self, action: Callable[[], Any]) -> Any:
        """Have it alone for a call; `WOULD_WAIT` if somebody else has it."""
        try:
            self._turn.dequeue_nowait()
        except aioqueue.QueueEmpty:
            return WOULD_WAIT
        return self._used(action)

    def _used(self, action: Callable[[], T]) -> T:
        try:
            return action()
        finally:
            self._turn.enqueue_nowait(None)
            # The session ended meanwhile, and could not close the file: this caller had the turn.
            if self._closed:
                self.close()

    def read(self, queue: QueueResource, take: Callable[[], Any]) -> Any:
        """One record, from the next items of work if need be."""
        found = self._read(queue, take, 1)
        return found if found is WOULD_WAIT else found[0]

    def read_up_to(self, queue: QueueResource, take: Callable[[], Any], count: int) -> Any:
        """Some records of one item of work, as arrays of keys and of values."""
        if count < 0:
            raise invalid(f"num_records: got {count}; expected an int >= 0")
        found = self._read(queue, take, count) if count else []
        if found is WOULD_WAIT:
            return found
        arrays = np.empty((2, len(found)), object)
        for at, record in enumerate(found):
            arrays[:, at] = record
        return arrays[0], arrays[1]

    def _read(self, queue: QueueResource, take: Callable[[], Any], count: int) -> Any:
        while True:
            # A restored state may say that more work has ended than begun. TensorFlow trusts it, so
            # `>=`, not `==`.
            if self._records is None or self._finished >= self._started:
                try:
                    item = take()
                except errors.OpError:
                    self._work = b""  # there is no current work, as its state is to say
                    raise
                if item is WOULD_WAIT:
                    return WOULD_WAIT
                self._begin(_checked_work(queue, item))
            assert self._records is not None
            found, is_over = _some(self._records, count)
            if is_over or self._ends_at_once:
                self._finish()
            if found:
                self._produced += len(found)
                return found

    def _begin(self, work: bytes) -> None:
        self._drop()
        self._records = self._open_work(work)
        self._work = work
        self._started += 1

    def _finish(self) -> None:
        self._finished = self._started  # which a restored state may have said less of
        self._drop()

    def _drop(self) -> None:
        records, self._records = self._records, None
        close = getattr(records, "close", None)
        if close is not None:
            close()

    def reset(self) -> None:
        """Be as new; the work in progress is forgotten."""
        self._drop()
        self._forget()

    def _forget(self) -> None:
        self._started = self._finished = self._produced = 0
        self._work = b""

    def close(self) -> None:
        """Close the file in progress, now or when its user is done: the session has ended."""
        self._closed = True
        if self._records is not None:
            self.try_use(self._drop)

    def produced(self) -> Any:
        """How many records it has produced."""
        return np.int64(self._produced)

    def completed(self) -> Any:
        """How many items of work it has noticed the end of."""
        return np.int64(self._finished)

    def serialize(self) -> bytes:
        """Its state, as TensorFlow's ``ReaderBaseState`` message."""
        state = _state_class()(
            work_started=self._started,
            work_finished=self._finished,
            num_records_produced=self._produced,
            current_work=self._work,
        )
        data: bytes = state.SerializeToString()
        return data

    def restore(self, data: bytes) -> None:
        """Be in a state that was serialized; if there is something wrong with it, as new."""
        self.reset()
        state = _state_class()()
        try:
            state.ParseFromString(data)
        except Exception as error:  # DecodeError; its place differs between versions of protobuf
            text = data.decode(errors="backslashreplace")
            message = f"Could not parse state for {self.kind} '{self.name}': {text}"
            raise invalid(message) from error
        numbers = state.work_started, state.work_finished, state.num_records_produced
        if min(numbers) < 0:
            raise invalid(
                f"Unexpected negative value when restoring in {self.kind} '{self.name}': {state}"
            )
        if state.work_started > state.work_finished:
            raise invalid(
                "Inconsistent work started vs. finished when restoring in"
                f" {self.kind} '{self.name}': {state}"
            )
        self._started, self._finished, self._produced = numbers
        self._work = state.current_work


def _some(records: Iterator[Record], count: int) -> tuple[list[Record], bool]:
    """Some records, and whether there are no more; a failure after the first waits its turn."""
    found: list[Record] = []
    try:
        for record in islice(records, count):
            found.append(record)  # noqa: PERF402  # those before a failure must stay
    except errors.OpError:
        if not found:
            raise
        return found, False
    return found, len(found) < count


def _checked_work(queue: QueueResource, item: Any) -> bytes:
    """The string in an element of the queue, which has been taken out of it."""
    types = queue.plan.types
    if len(types) != 1:
        raise invalid("Expected single component queue")
    if types[0].name != "string":
        raise invalid("Expected queue with single string component")
    if isinstance(item, np.ndarray):
        if item.size != 1:
            raise invalid("Expected to dequeue a one-element string tensor")
        item = item.item()
    work: bytes = item
    return work


@cache
def _state_class() -> Any:
    schema = {
        "ReaderBaseState": "work_started int64, work_finished int64, num_records_produced int64,"
        " current_work bytes"
    }
    return message_classes("tensorflow/core/framework/reader_base.proto", schema)["ReaderBaseState"]


class RecordInput:
    """Records of TFRecord files for ever, each once an epoch, in an order that the seed decides."""

    def __init__(
        self,
        file_pattern: str,
        batch_size: int = 1,
        buffer_size: int = 1,
        parallelism: int = 1,
        shift_ratio: float = 0,
        seed: int = 0,
        name: str | None = None,
        batches: int | None = None,
        compression_type: Any = None,
    ) -> None:
        self._file_pattern = file_pattern
        self._batch_size = batch_size if batches is None else batch_size * batches
        self._batches = batches
        self._buffer_size = buffer_size
        self._shift_ratio = shift_ratio
        self._seed = seed
        self._name = name
        self._compression = TFRecordOptions.get_compression_type_string(compression_type)

    def get_yield_op(self) -> Any:
        """A string tensor of the next records; running it raises for files that cannot be read."""
        size, key = self._batch_size, object()

        def kernel(step: Any) -> Any:
            shuffled = step.own_resources.get_or_create(
                ("record_input", key), self._shuffled, _Shuffled.close
            )
            batch = np.empty(size, object)
            batch[:] = shuffled.take(size)
            return batch

        outputs = [(dtypes.string, TensorShape([size]))]
        (records,) = op(
            "RecordInput", [], outputs, kernel, name=self._name or "RecordInput"
        ).outputs
        if self._batches is None:
            return records
        with name_scope(self._name, "RecordInput"):
            scalars = [reshape(one, []) for one in split(records, size, 0)]
        return [scalars[number :: self._batches] for number in range(self._batches)]

    def _shuffled(self) -> _Shuffled:
        return _Shuffled(self._records(), self._buffer_size, self._seed)

    def _records(self) -> Iterator[Iterator[bytes]]:
        for epoch in itertools.count(1):
            paths = glob_files(self._file_pattern)
            if not paths:
                raise errors.NotFoundError(
                    None, None, f"Found no files at {os.fsdecode(self._file_pattern)}"
                )
            random.Random(f"{self._seed} {epoch}").shuffle(paths)
            if 0 <= self._shift_ratio < 1:
                shift = int(self._shift_ratio * len(paths))
                paths = paths[shift:] + paths[:shift]
            yield (
                record.value for path in paths for record in tf_record_file(path, self._compression)
            )


class _Shuffled:
    """The records of one session, drawn at random from a buffer."""

    def __init__(self, epochs: Iterator[Iterator[bytes]], size: int, seed: int) -> None:
        self._lock = threading.Lock()  # guards all below
        self._random = random.Random(seed)
        self._failure: tuple[Any, str] | None = None
        self._drawn = self._drawn_from(epochs, max(1, size))

    def take(self, count: int) -> list[bytes]:
        """The next records; what a failure ended fails again."""
        with self._lock:
            if self._failure is not None:
                kind, message = self._failure
                raise kind(None, None, message)
            try:
                return list(itertools.islice(self._drawn, count))
            except errors.OpError as error:
                self._failure = type(error), error.message
                raise

    def close(self) -> None:
        with self._lock:
            self._failure = errors.CancelledError, "Session has been closed."
            self._drawn.close()

    def _drawn_from(
        self, epochs: Iterator[Iterator[bytes]], size: int
    ) -> Generator[bytes, None, None]:
        for records in epochs:
            yield from self._shuffled(records, size)

    def _shuffled(self, records: Iterator[bytes], size: int) -> Iterator[bytes]:
        """The records of one epoch: a buffer that is kept full gives a random one of its own."""
        buffer = list(itertools.islice(records, size))
        if not buffer:
            raise errors.OutOfRangeError(None, None, "The files have no records")
        for record in records:
            place = self._random.randrange(size)
            drawn, buffer[place] = buffer[place], record
            yield drawn
        self._random.shuffle(buffer)
        yield from buffer


SCALAR = TensorShape([])
VECTOR = TensorShape([None])


class _KeyAndValue(NamedTuple):
    """What `ReaderBase.read` returns."""

    key: Tensor
    value: Tensor


class _KeysAndValues(NamedTuple):
    """What `ReaderBase.read_up_to` returns."""

    keys: Tensor
    values: Tensor


class ReaderBase:
    """Turns strings from a queue, usually names of files, into records; one run at a time."""

    def __init__(self, reader_ref: Tensor, supports_serialize: bool = False) -> None:
        self.reader_ref: Tensor = reader_ref
        self.supports_serialize: bool = supports_serialize

    def __repr__(self) -> str:
        return f"<tf.{type(self).__name__} '{self.reader_ref.op.name}'>"

    def read(self, queue: Any, name: str | None = None) -> _KeyAndValue:
        """Tensors of the next record; running them waits for work in the queue if need be."""

        def read(reader: ReaderResource, waits: bool, source: QueueResource) -> Any:
            return reader.read(source, source.dequeue if waits else source.try_dequeue)

        made = self._op("ReaderReadV2", [_ref(queue)], [(string, SCALAR)] * 2, read, name)
        return _KeyAndValue(*made.outputs)

    def read_up_to(self, queue: Any, num_records: Any, name: str | None = None) -> _KeysAndValues:
        """Tensors of the next records, all of one file; they may be fewer than asked for."""

        def read(reader: ReaderResource, waits: bool, source: QueueResource, most: Any) -> Any:
            take = source.dequeue if waits else source.try_dequeue
            return reader.read_up_to(source, take, int(most))

        outputs = [(string, VECTOR)] * 2
        with name_scope(name, "ReaderReadUpToV2") as scope:
            count = convert_to_tensor(num_records, dtype=int64, name="num_records")
            made = self._op("ReaderReadUpToV2", [_ref(queue), count], outputs, read, scope)
        return _KeysAndValues(*made.outputs)

    def num_records_produced(self, name: str | None = None) -> Tensor:
        """An int64 tensor: how many records it has produced."""
        return self._number("ReaderNumRecordsProducedV2", ReaderResource.produced, name)

    def num_work_units_completed(self, name: str | None = None) -> Tensor:
        """An int64 tensor: how many files it has noticed the end of, or other items of work."""
        return self._number("ReaderNumWorkUnitsCompletedV2", ReaderResource.completed, name)

    def _number(
        self, op_type: str, of: Callable[[ReaderResource], Any], name: str | None
    ) -> Tensor:
        outputs = [(int64, SCALAR)]
        return self._op(op_type, [], outputs, lambda reader, waits: of(reader), name).outputs[0]

    def serialize_state(self, name: str | None = None) -> Tensor:
        """A string tensor: its state. Running it raises `UnimplementedError` if not supported."""
        action = ReaderResource.serialize if self.supports_serialize else _unable("SerializeState")
        outputs = [(string, SCALAR)]
        made = self._op(
            "ReaderSerializeStateV2", [], outputs, lambda reader, waits: action(reader), name
        )
        return made.outputs[0]

    def restore_state(self, state: Any, name: str | None = None) -> Operation:
        """An op that puts it into a serialized state; a wrong one leaves it as new."""
        data = convert_to_tensor(state, dtype=string, name="state")
        if data.shape.ndims not in (None, 0):
            raise ValueError(f"Shape must be rank 0 but is rank {data.shape.ndims} for the state")
        action = ReaderResource.restore if self.supports_serialize else _unable("RestoreState")
        restore = lambda reader, waits, value: action(reader, value)  # noqa: E731
        return self._op("ReaderRestoreStateV2", [data], [], restore, name)

    def reset(self, name: str | None = None) -> Operation:
        """An op that makes it as new; work in progress is forgotten, the queue left as it is."""
        return self._op("ReaderResetV2", [], [], lambda reader, waits: reader.reset(), name)

    def _op(
        self,
        op_type: str,
        inputs: list[Tensor],
        outputs: list[tuple[DType, TensorShape]],
        action: Callable[..., Any],
        name: str | None,
    ) -> Operation:
        """An op that has the reader to itself: ``action(reader, whether it may wait, *values)``."""

        def kernel(step: Any, reader: ReaderResource, *values: Any) -> Any:
            return reader.use(lambda: action(reader, True, *values))

        def try_now(step: Any, reader: ReaderResource, *values: Any) -> Any:
            return reader.try_use(lambda: action(reader, False, *values))

        given, attrs = [self.reader_ref, *inputs], {"try_now": try_now}
        return default_graph.op(op_type, given, outputs, kernel, name=name, waits=True, attrs=attrs)


class WholeFileReader(ReaderBase):
    """Whole files by their names; one that cannot be read is tried again, until `reset`."""

    def __init__(self, name: str | None = None) -> None:
        ref = _make("WholeFileReader", name, lambda: WholeFile, ends_at_once=True)
        super().__init__(ref, supports_serialize=True)


class TextLineReader(ReaderBase):
    """Lines of text files, without their ends; keys are ``file:number``, from 1."""

    def __init__(self, skip_header_lines: int | None = None, name: str | None = None) -> None:
        def prepare() -> Opener:
            (skip,) = _sizes(skip_header_lines=skip_header_lines)
            return opener(lambda path: line_file(path, skip, ""))

        super().__init__(_make("TextLineReader", name, prepare))


class FixedLengthRecordReader(ReaderBase):
    """Records of one length of binary files; keys are ``file:number``, from 0."""

    def __init__(
        self,
        record_bytes: int,
        header_bytes: int | None = None,
        footer_bytes: int | None = None,
        hop_bytes: int | None = None,
        name: str | None = None,
        encoding: str | None = None,
    ) -> None:
        def prepare() -> Opener:
            sizes = _sizes(
                record_bytes=record_bytes,
                header_bytes=header_bytes,
                footer_bytes=footer_bytes,
                hop_bytes=hop_bytes,
            )
            if not record_bytes:
                raise invalid("record_bytes must be > 0: a record of 0 bytes would never end")
            return opener(lambda path: fixed_length_file(path, encoding or "", *sizes))

        super().__init__(_make("FixedLengthRecordReader", name, prepare))


class TFRecordReader(ReaderBase):
    """The records of TFRecord files; keys are ``file:offset``. Needs the extra ``tfrecord``.

    Damaged data ends it: every read raises `tf.errors.DataLossError`, until `reset`.
    """

    def __init__(self, name: str | None = None, options: Any = None) -> None:
        compression = TFRecordOptions.get_compression_type_string(options)

        def prepare() -> Opener:
            return opener(lambda path: tf_record_file(path, compression))

        super().__init__(_make("TFRecordReader", name, prepare))


class IdentityReader(ReaderBase):
    """Gives each element of the queue as both key and value."""

    def __init__(self, name: str | None = None) -> None:
        ref = _make("IdentityReader", name, lambda: identity, ends_at_once=True)
        super().__init__(ref, supports_serialize=True)


def _make(
    kind: str, name: str | None, prepare: Callable[[], Opener], *, ends_at_once: bool = False
) -> Tensor:
    """An op that finds the reader in the session, or makes it there."""
    handle = object()

    def kernel(step: Any) -> ReaderResource:
        def make() -> ReaderResource:
            return ReaderResource(kind, made.name, prepare(), ends_at_once=ends_at_once)

        found: ReaderResource = step.resources.get_or_create(
            ("reader", handle), make, ReaderResource.close, made.attrs["container"]
        )
        return found

    attrs = {"container": ""}  # the graph says which
    made = default_graph.op(f"{kind}V2", [], [(resource, SCALAR)], kernel, name=name, attrs=attrs)
    return made.outputs[0]


def _ref(queue: Any) -> Tensor:
    ref: Tensor = queue if isinstance(queue, Tensor) else queue.queue_ref
    return ref


def _sizes(**sizes: int | None) -> list[int]:
    """Numbers of bytes or lines; None for 0."""
    for name, size in sizes.items():
        if size is not None and size < 0:
            raise invalid(f"{name} must be >= 0 not {size}")
    return [int(size or 0) for size in sizes.values()]


def _unable(what: str) -> Callable[..., Any]:
    def action(reader: ReaderResource, *values: Any) -> Any:
        if values:  # a state that cannot be restored leaves it as new, as a wrong one does
            reader.reset()
        raise errors.UnimplementedError(None, None, f"Reader {what}")

    return action
