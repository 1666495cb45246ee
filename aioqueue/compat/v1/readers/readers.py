"""``tf.ReaderBase`` and the readers: methods that build ops, which a session runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.core import default_graph
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.dtypes import DType, int64, resource, string
from aioqueue.compat.v1.core.graph import Operation, Tensor
from aioqueue.compat.v1.core.shapes import TensorShape
from aioqueue.compat.v1.queues.resources import QueueResource
from aioqueue.compat.v1.readers import formats
from aioqueue.compat.v1.readers.formats import Opener
from aioqueue.compat.v1.readers.records import TFRecordOptions
from aioqueue.compat.v1.readers.work import ReaderResource

__all__ = (
    "FixedLengthRecordReader",
    "IdentityReader",
    "ReaderBase",
    "TFRecordReader",
    "TextLineReader",
    "WholeFileReader",
)

SCALAR = TensorShape([])
VECTOR = TensorShape([None])


class _KeyAndValue(NamedTuple):
    """What `ReaderBase.read` returns.

    Attributes:
        key: a string tensor: which record it is.
        value: a string tensor: the record.
    """

    key: Tensor
    value: Tensor


class _KeysAndValues(NamedTuple):
    """What `ReaderBase.read_up_to` returns.

    Attributes:
        keys: a vector of strings: which records they are.
        values: a vector of strings: the records.
    """

    keys: Tensor
    values: Tensor


class ReaderBase:
    """Turns strings from a queue, usually names of files, into records.

    Each run of a `read` gives the next record; a file is taken from the queue when the one before
    has been read. One run at a time uses a reader: others wait, also while it waits for the queue.

    Args:
        reader_ref: the tensor that stands for the reader itself.
        supports_serialize: whether its state can be serialized.
    """

    def __init__(self, reader_ref: Tensor, supports_serialize: bool = False) -> None:
        self._reader_ref = reader_ref
        self._supports_serialize = supports_serialize

    def __repr__(self) -> str:
        return f"<tf.{type(self).__name__} '{self._reader_ref.op.name}'>"

    @property
    def reader_ref(self) -> Tensor:
        """The tensor that stands for the reader itself."""
        return self._reader_ref

    @property
    def supports_serialize(self) -> bool:
        """Whether its state can be serialized."""
        return self._supports_serialize

    def read(self, queue: Any, name: str | None = None) -> _KeyAndValue:
        """Tensors of the next record; running them waits for work in the queue if need be.

        Running it raises `tf.errors.OutOfRangeError` when the queue is closed and empty, and the
        error of a file that cannot be read; what is read next depends on the reader.

        Args:
            queue: a queue whose elements are one string, or the tensor that stands for it.
            name: of the op.

        Returns:
            A pair of string tensors: key and value.
        """

        def kernel(step: Any, reader: ReaderResource, source: QueueResource) -> Any:
            return reader.use(lambda: reader.read(source, source.dequeue))

        def try_now(step: Any, reader: ReaderResource, source: QueueResource) -> Any:
            return reader.try_use(lambda: reader.read(source, source.try_dequeue))

        made = self._op(
            "ReaderReadV2", [_ref(queue)], [(string, SCALAR)] * 2, kernel, name, try_now
        )
        return _KeyAndValue(*made.outputs)

    def read_up_to(self, queue: Any, num_records: Any, name: str | None = None) -> _KeysAndValues:
        """Tensors of the next records, all of one file; they may be fewer than asked for.

        Running it raises as `read` does.

        Args:
            queue: a queue whose elements are one string, or the tensor that stands for it.
            num_records: how many at most, an int64.
            name: of the op.

        Returns:
            A pair of vectors of strings: keys and values.
        """
        count = convert_to_tensor(num_records, dtype=int64, name="num_records")

        def kernel(step: Any, reader: ReaderResource, source: QueueResource, most: Any) -> Any:
            return reader.use(lambda: reader.read_up_to(source, source.dequeue, int(most)))

        def try_now(step: Any, reader: ReaderResource, source: QueueResource, most: Any) -> Any:
            return reader.try_use(lambda: reader.read_up_to(source, source.try_dequeue, int(most)))

        outputs = [(string, VECTOR)] * 2
        made = self._op("ReaderReadUpToV2", [_ref(queue), count], outputs, kernel, name, try_now)
        return _KeysAndValues(*made.outputs)

    def num_records_produced(self, name: str | None = None) -> Tensor:
        """An int64 tensor: how many records it has produced."""
        return self._look("ReaderNumRecordsProducedV2", ReaderResource.produced, int64, name)

    def num_work_units_completed(self, name: str | None = None) -> Tensor:
        """An int64 tensor: how many files it has noticed the end of, or other items of work."""
        return self._look("ReaderNumWorkUnitsCompletedV2", ReaderResource.completed, int64, name)

    def serialize_state(self, name: str | None = None) -> Tensor:
        """A string tensor: its state. Running it raises `UnimplementedError` if not supported."""
        action = ReaderResource.serialize if self._supports_serialize else _unable("SerializeState")
        return self._look("ReaderSerializeStateV2", action, string, name)

    def restore_state(self, state: Any, name: str | None = None) -> Operation:
        """An op that puts it into a state that `serialize_state` has given.

        Running it raises `tf.errors.InvalidArgumentError` if there is something wrong with the
        state, and the reader is as new then; and `UnimplementedError` if not supported.

        Args:
            state: a scalar string.
            name: of the op.

        Raises:
            ValueError: it is no scalar.
        """
        data = convert_to_tensor(state, dtype=string, name="state")
        if data.shape.ndims not in (None, 0):
            raise ValueError(f"Shape must be rank 0 but is rank {data.shape.ndims} for the state")
        if not self._supports_serialize:
            return self._change("ReaderRestoreStateV2", _unable("RestoreState"), name, data)
        return self._change("ReaderRestoreStateV2", ReaderResource.restore, name, data)

    def reset(self, name: str | None = None) -> Operation:
        """An op that makes it as new; work in progress is forgotten, the queue left as it is."""
        return self._change("ReaderResetV2", ReaderResource.reset, name)

    def _look(
        self,
        op_type: str,
        action: Callable[[ReaderResource], Any],
        dtype: DType,
        name: str | None,
    ) -> Tensor:
        def kernel(step: Any, reader: ReaderResource) -> Any:
            return reader.use(lambda: action(reader))

        def try_now(step: Any, reader: ReaderResource) -> Any:
            return reader.try_use(lambda: action(reader))

        return self._op(op_type, [], [(dtype, SCALAR)], kernel, name, try_now).outputs[0]

    def _change(
        self, op_type: str, action: Callable[..., Any], name: str | None, *inputs: Tensor
    ) -> Operation:
        def kernel(step: Any, reader: ReaderResource, *values: Any) -> Any:
            return reader.use(lambda: action(reader, *values))

        def try_now(step: Any, reader: ReaderResource, *values: Any) -> Any:
            return reader.try_use(lambda: action(reader, *values))

        return self._op(op_type, inputs, [], kernel, name, try_now)

    def _op(
        self,
        op_type: str,
        inputs: Any,
        outputs: list[tuple[DType, TensorShape]],
        kernel: Callable[..., Any],
        name: str | None,
        try_now: Callable[..., Any],
    ) -> Operation:
        return default_graph.op(
            op_type,
            [self._reader_ref, *inputs],
            outputs,
            kernel,
            name=name,
            waits=True,
            attrs={"try_now": try_now},
        )


class WholeFileReader(ReaderBase):
    """Gives whole files: the key is the name, the value the contents.

    A file that cannot be read is tried again by every read, until `reset`.

    Args:
        name: of the op that makes it.
    """

    def __init__(self, name: str | None = None) -> None:
        ref = _make("WholeFileReader", name, lambda: formats.whole_file, ends_at_once=True)
        super().__init__(ref, supports_serialize=True)


class TextLineReader(ReaderBase):
    r"""Gives lines of text files, without their ends (``\n`` or ``\r\n``).

    Keys are ``file:number``, from 1. A file that cannot be opened is skipped by the next read.

    Args:
        skip_header_lines: how many lines to leave out at the start of each file.
        name: of the op that makes it.
    """

    def __init__(self, skip_header_lines: int | None = None, name: str | None = None) -> None:
        def prepare() -> Opener:
            return formats.lines(**_sizes(skip_header_lines=skip_header_lines))

        super().__init__(_make("TextLineReader", name, prepare))


class FixedLengthRecordReader(ReaderBase):
    """Gives records of one length, from binary files.

    Keys are ``file:number``, from 0. What is left at the end of a file is dropped if it is no whole
    record. A file that cannot be opened is skipped by the next read.

    Args:
        record_bytes: how long a record is.
        header_bytes: how much to leave out at the start of each file.
        footer_bytes: how much to leave out at its end.
        hop_bytes: from the start of one record to that of the next; 0 for ``record_bytes``.
        name: of the op that makes it.
        encoding: ``"GZIP"`` or ``"ZLIB"`` if files are compressed.
    """

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
                raise _invalid("record_bytes must be > 0: a record of 0 bytes would never end")
            return formats.fixed_length_records(**sizes, encoding=encoding or "")

        super().__init__(_make("FixedLengthRecordReader", name, prepare))


class TFRecordReader(ReaderBase):
    """Gives the records of TFRecord files. Needs the extra ``tfrecord``.

    Keys are ``file:offset``, in bytes. Damaged data is not got past: every read raises
    `tf.errors.DataLossError`, until `reset`. A file that cannot be opened is skipped.

    Args:
        name: of the op that makes it.
        options: a `TFRecordOptions`, if files are compressed.
    """

    def __init__(self, name: str | None = None, options: Any = None) -> None:
        compression = TFRecordOptions.get_compression_type_string(options)
        super().__init__(_make("TFRecordReader", name, lambda: formats.tf_records(compression)))


class IdentityReader(ReaderBase):
    """Gives each element of the queue as both key and value.

    Args:
        name: of the op that makes it.
    """

    def __init__(self, name: str | None = None) -> None:
        ref = _make("IdentityReader", name, lambda: formats.identity, ends_at_once=True)
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


def _sizes(**sizes: int | None) -> dict[str, int]:
    """Numbers of bytes or lines; None for 0."""
    for name, size in sizes.items():
        if size is not None and size < 0:
            raise _invalid(f"{name} must be >= 0 not {size}")
    return {name: int(size or 0) for name, size in sizes.items()}


def _unable(what: str) -> Callable[..., Any]:
    def action(reader: ReaderResource, *values: Any) -> Any:
        if values:  # a state that cannot be restored leaves it as new, as a wrong one does
            reader.reset()
        raise errors.UnimplementedError(None, None, f"Reader {what}")

    return action


def _invalid(message: str) -> errors.InvalidArgumentError:
    return errors.InvalidArgumentError(None, None, message)
