"""``tf.data.Dataset``: descriptions of elements, which iterators go through in a session."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np

from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.absent import DATASETS, AbsentNameError
from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import as_value, convert_to_tensor
from aioqueue.compat.v1.core.default_graph import get_default_graph, op
from aioqueue.compat.v1.core.dtypes import bool as tf_bool
from aioqueue.compat.v1.core.dtypes import int64, string
from aioqueue.compat.v1.core.graph import Body, Tensor, trace
from aioqueue.compat.v1.core.scopes import get_seed
from aioqueue.compat.v1.core.shapes import TensorShape, as_shape
from aioqueue.compat.v1.datasets import nest, stages
from aioqueue.compat.v1.datasets.elements import (
    DatasetRun,
    Elements,
    InnerRun,
    Start,
    TensorInfo,
    as_leaf,
    at_least_one,
    check_shard,
)
from aioqueue.compat.v1.datasets.iterator import Iterator as DatasetIterator
from aioqueue.compat.v1.datasets.iterator import make_initializable_iterator, make_one_shot_iterator
from aioqueue.compat.v1.datasets.stages import Interleaved, Row, Rows, Windows
from aioqueue.compat.v1.ops.arrays import size
from aioqueue.compat.v1.ops.building import call_python, invalid
from aioqueue.compat.v1.ops.casting import cast
from aioqueue.compat.v1.ops.control import identity, placeholder
from aioqueue.compat.v1.ops.files import existing_files, file_errors
from aioqueue.compat.v1.ops.static import shape_value
from aioqueue.compat.v1.readers import records

__all__ = ("Dataset", "FixedLengthRecordDataset", "TFRecordDataset", "TextLineDataset")


def _target(info: TensorInfo, shape: Any) -> Tensor:
    """The sizes that a tensor is filled up to, -1 where they are those of the batch."""
    if isinstance(shape, Tensor):
        return shape
    sizes = as_shape([None if one == -1 else one for one in shape] if _is_listed(shape) else shape)
    if sizes.ndims is None:
        raise ValueError(f"padded_shapes: the rank of {info.shape} is not known; give its sizes")
    if info.shape.ndims not in (None, sizes.ndims) or any(
        mine is not None and theirs is not None and mine > theirs
        for mine, theirs in zip(info.shape.as_tuple() or (), sizes.as_list(), strict=False)
    ):
        raise ValueError(
            f"The padded shape {sizes} is not compatible with the shape {info.shape} of the"
            " corresponding input component."
        )
    listed = [-1 if one is None else one for one in sizes.as_list()]
    return convert_to_tensor(np.array(listed, np.int64), int64)


def _is_listed(shape: Any) -> bool:
    return isinstance(shape, list | tuple) and all(isinstance(one, int | None) for one in shape)


def _filler(info: TensorInfo, value: Any) -> Tensor:
    """What a tensor is filled up with: zero or the empty string, if nothing was asked for."""
    if value is None:
        value = b"" if info.dtype == string else np.zeros((), info.dtype.numpy)[()]
    if isinstance(value, Tensor) and value.dtype != info.dtype:
        raise TypeError(
            f"Padding value tensor ({value}) does not match output type: {info.dtype.name}"
        )
    return convert_to_tensor(value, info.dtype)


def shape_leaves(shapes: Any) -> list[Any]:
    """The leaves of a nest of shapes, in which a tuple of sizes is one shape."""
    if isinstance(shapes, TensorShape | Tensor | list) or shapes is None:
        return [shapes]
    if isinstance(shapes, Mapping):
        return [leaf for key in sorted(shapes) for leaf in shape_leaves(shapes[key])]
    if all(one is None or isinstance(one, int) for one in shapes):
        return [shapes]
    return [leaf for one in shapes for leaf in shape_leaves(one)]


_END: Any = object()


def elements_of(generator: Callable[..., Iterable[Any]], arguments: Sequence[Any]) -> Iterator[Any]:
    """What a user's function yields; an error of another run that it raises is not this one's."""
    iterator = call_python(lambda: iter(generator(*arguments)))
    while (element := call_python(next, iterator, _END)) is not _END:
        yield element


def generated(spec: Any, infos: Sequence[TensorInfo], element: Any) -> Row:
    """A row of what a generator has yielded."""
    leaves = _leaves_like(spec, element)
    if len(leaves) != len(infos):
        expected = nest.mapped(lambda info: info.dtype.name, spec)
        raise TypeError(
            "`generator` yielded an element that did not match the expected structure. The"
            f" expected structure was {expected}, but the yielded element was {element!r}."
        )
    return tuple(_yielded(info, leaf) for info, leaf in zip(infos, leaves, strict=True))


def _leaves_like(spec: Any, element: Any) -> list[Any]:
    """The leaves of an element that has about the nesting of a spec: a list may be a tuple."""
    if isinstance(spec, tuple):
        if not isinstance(element, tuple | list) or len(element) != len(spec):
            return []
        pairs = zip(spec, element, strict=True)
        return [leaf for part, one in pairs for leaf in _leaves_like(part, one)]
    if isinstance(spec, Mapping):
        if not isinstance(element, Mapping) or set(element) != set(spec):
            return []
        return [leaf for key in sorted(spec) for leaf in _leaves_like(spec[key], element[key])]
    return [element]


def _yielded(info: TensorInfo, leaf: Any) -> Any:
    try:
        value = as_value(leaf, info.dtype)
    except (TypeError, ValueError) as error:
        raise TypeError(
            "`generator` yielded an element that could not be converted to the expected type. The"
            f" expected type was {info.dtype.name}, but the yielded element was {leaf!r}."
        ) from error
    if not info.shape.is_compatible_with(np.shape(value)):
        raise TypeError(
            f"`generator` yielded an element of shape {np.shape(value)} where an element of shape"
            f" {info.shape} was expected."
        )
    return value


class Dataset(Elements):
    """Elements, one after another: tensors, or tuples and dicts of them in any nesting."""

    def __repr__(self) -> str:
        return f"<tf.data.Dataset shapes: {self.output_shapes}, types: {self.output_types}>"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise AbsentNameError(f"tf.data.Dataset.{name} is not in aioqueue.compat.v1: {DATASETS}")

    def __iter__(self) -> NoReturn:
        raise RuntimeError(
            "`tf.data.Dataset` has no values until a session runs it: make_one_shot_iterator()"
            ".get_next() is an element"
        )

    # Sources.

    @staticmethod
    def from_tensors(tensors: Any) -> Dataset:
        """A dataset of one element."""
        pairs = [as_leaf(one) for one in nest.flatten(tensors)]
        leaves = [tensor for _, tensor in pairs]
        spec = nest.packed(tensors, [info for info, _ in pairs])
        return Dataset(
            spec,
            lambda run: lambda: iter([tuple(run.values[one] for one in leaves)]),
            tensors=leaves,
        )

    @staticmethod
    def from_tensor_slices(tensors: Any) -> Dataset:
        """A dataset of the slices of tensors along their first axis."""
        found = nest.mapped(convert_to_tensor, tensors)
        leaves = nest.flatten(found)
        length = leaves[0].shape.with_rank_at_least(1)[0] if leaves[0].shape.ndims else None
        for one in leaves:
            if one.shape.ndims == 0:
                raise ValueError("Unbatching a tensor is only supported for rank >= 1")
            if one.shape.ndims is not None and length is not None:
                length = length.merge_with(one.shape[0])
        spec = nest.mapped(lambda one: TensorInfo(one.dtype, one.shape[1:]), found)
        return Dataset(
            spec,
            lambda run: lambda: stages.slices(tuple(run.values[one] for one in leaves)),
            tensors=leaves,
        )

    @staticmethod
    def from_generator(
        generator: Callable[..., Iterable[Any]],
        output_types: Any,
        output_shapes: Any = None,
        args: Sequence[Any] | None = None,
    ) -> Dataset:
        """A dataset of what a Python function yields."""
        if not callable(generator):
            raise TypeError("`generator` must be callable.")
        leaves = [convert_to_tensor(one) for one in args or ()]
        types = nest.flatten(output_types)
        shapes = [None] * len(types) if output_shapes is None else shape_leaves(output_shapes)
        infos = [TensorInfo(*pair) for pair in zip(types, shapes, strict=True)]
        spec = nest.packed(output_types, infos)

        def begin(run: DatasetRun) -> Start:
            def start() -> Rows:
                elements = elements_of(generator, [run.values[one] for one in leaves])
                return map(partial(generated, spec, infos), elements)

            return start

        return Dataset(spec, begin, tensors=leaves)

    @staticmethod
    def list_files(
        file_pattern: Any, shuffle: bool | None = None, seed: int | None = None
    ) -> Dataset:
        """A dataset of the names of files."""
        names = existing_files(file_pattern)
        dataset = Dataset.from_tensor_slices(names)
        if shuffle is False:
            return dataset
        return dataset.shuffle(size(names, out_type=int64), seed)

    @staticmethod
    def range(*args: Any) -> Dataset:
        """A dataset of int64 numbers."""
        if not 1 <= len(args) <= 3:
            raise ValueError(f"Invalid arguments to RangeDataset: {args}")
        numbers = [convert_to_tensor(one, dtype=int64) for one in args]
        return Dataset(
            TensorInfo(int64, ()),
            lambda run: (
                lambda: (
                    (np.int64(one),)
                    for one in range(*(int(run.values[number]) for number in numbers))
                )
            ),
            tensors=numbers,
        )

    @staticmethod
    def zip(datasets: Any) -> Dataset:
        """A dataset of the elements of several, side by side; it ends with the shortest."""
        leaves = nest.flatten(datasets)
        for one in leaves:
            if not isinstance(one, Dataset):
                raise TypeError(
                    "The argument to `Dataset.zip()` must be a nested structure of `Dataset`"
                    f" objects, not {one!r}."
                )

        def begin(run: DatasetRun) -> Start:
            starts = [one._begin(run) for one in leaves]
            return lambda: stages.Zipped([start() for start in starts])

        return Dataset(nest.mapped(lambda one: one._spec, datasets), begin, leaves)

    # Stages.

    def map(self, map_func: Callable[..., Any], num_parallel_calls: int | None = None) -> Dataset:
        """A dataset of what a function makes of each element."""
        given, body, result = self._traced(map_func)
        if isinstance(result, list):
            result = tuple(result)
        if result is None or not nest.flatten(result):
            raise ValueError("map_func: it must return at least one tensor, got none")
        with get_default_graph().building_in(body):
            pairs = [as_leaf(one) for one in nest.flatten(result)]
        body.outputs = [tensor for _, tensor in pairs]
        spec = nest.packed(result, [info for info, _ in pairs])

        def begin(run: DatasetRun) -> Start:
            start = self._begin(run)
            return lambda: map(partial(run.call, body, given), start())

        return Dataset(spec, begin, [self], _captures(body))

    def flat_map(self, map_func: Callable[..., Dataset]) -> Dataset:
        """A dataset of the elements of the datasets that a function makes of each element."""
        return self.interleave(map_func, cycle_length=1)

    def interleave(
        self,
        map_func: Callable[..., Dataset],
        cycle_length: int,
        block_length: int = 1,
        num_parallel_calls: int | None = None,
    ) -> Dataset:
        """A dataset like that of `flat_map`, whose datasets take turns."""
        if cycle_length < 1 or block_length < 1:
            raise ValueError("`cycle_length` and `block_length` must be > 0")
        given, body, inner = self._traced(map_func)
        begin_inner = _traced_dataset(body, given, inner, "map_func")

        def begin(run: DatasetRun) -> Start:
            start = self._begin(run)
            return lambda: stages.Interleaved(
                start(), partial(begin_inner, run), cycle_length, block_length
            )

        return Dataset(inner._spec, begin, [self], _captures(body))

    def filter(self, predicate: Callable[..., Any]) -> Dataset:
        """A dataset of the elements for which a function is true."""
        given, body, result = self._traced(predicate)
        with get_default_graph().building_in(body):
            holds = convert_to_tensor(result)
        if holds.dtype != tf_bool or holds.shape.ndims not in (None, 0):
            raise ValueError(
                "Invalid `predicate`. `predicate` must return a `tf.bool` scalar tensor, but its"
                f" return type is {holds.dtype.name} of shape {holds.shape}."
            )
        body.outputs = [holds]

        def begin(run: DatasetRun) -> Start:
            start = self._begin(run)
            return lambda: filter(lambda row: bool(run.call(body, given, row)[0]), start())

        return Dataset(self._spec, begin, [self], _captures(body))

    def _traced(self, function: Callable[..., Any]) -> tuple[list[Tensor], Body, Any]:
        """Call a function with placeholders for an element: those, its body, what it returns."""
        infos = nest.flatten(self._spec)

        def call(*given: Tensor) -> Any:
            leaves = [info.given(one) for info, one in zip(infos, given, strict=True)]
            return function(*nest.arguments(nest.packed(self._spec, leaves)))

        return _traced_with([(*info.held, "arg") for info in infos], call)

    def _stage(self, make: Callable[..., Start], *numbers: Any, spec: Any = None) -> Dataset:
        """A dataset of what `make` begins with these rows and the values of int64 scalars."""
        tensors = [convert_to_tensor(one, dtype=int64) for one in numbers]

        def begin(run: DatasetRun) -> Start:
            return make(self._begin(run), *(int(run.values[one]) for one in tensors))

        return Dataset(self._spec if spec is None else spec, begin, [self], tensors)

    def batch(self, batch_size: Any, drop_remainder: bool = False) -> Dataset:
        """A dataset of batches: elements stacked along a new first axis."""
        static = int(batch_size) if drop_remainder and not isinstance(batch_size, Tensor) else None

        def make(start: Start, size: int) -> Start:
            at_least_one(size, "Batch size must be greater than zero.")
            return lambda: stages.Batches(start(), size, drop_remainder)

        def batched(info: TensorInfo) -> TensorInfo:
            shape = TensorShape([static]).concatenate(info.shape)
            return TensorInfo(info.dtype, shape, info.is_sparse)

        return self._stage(make, batch_size, spec=nest.mapped(batched, self._spec))

    def padded_batch(
        self,
        batch_size: Any,
        padded_shapes: Any = None,
        padding_values: Any = None,
        drop_remainder: bool = False,
    ) -> Dataset:
        """A dataset of batches of elements that are filled up at their ends to one shape."""
        infos = nest.flatten(self._spec)
        if any(info.is_sparse for info in infos):
            raise TypeError("Batching of padded sparse tensors is not currently supported")
        size = convert_to_tensor(batch_size, dtype=int64)
        wanted = (
            [info.shape for info in infos] if padded_shapes is None else shape_leaves(padded_shapes)
        )
        if len(wanted) != len(infos):
            raise ValueError(
                f"padded_shapes: got {len(wanted)} shapes; expected one for each of the"
                f" {len(infos)} tensors of an element"
            )
        targets = [_target(info, one) for info, one in zip(infos, wanted, strict=True)]
        given = [None] * len(infos) if padding_values is None else nest.flatten(padding_values)
        values = [_filler(info, one) for info, one in zip(infos, given, strict=True)]
        rows = int(batch_size) if drop_remainder and not isinstance(batch_size, Tensor) else None

        def begin(run: DatasetRun) -> Start:
            start = self._begin(run)
            count = at_least_one(run.values[size], "Batch size must be greater than zero.")

            def stack(place: int, column: tuple[Any, ...]) -> Any:
                sizes = tuple(None if one < 0 else int(one) for one in run.values[targets[place]])
                return stages.padded(place, column, sizes, run.values[values[place]])

            return lambda: stages.Batches(start(), count, drop_remainder, stack)

        spec = [
            TensorInfo(info.dtype, TensorShape([rows]).concatenate(as_shape(shape_value(target))))
            for info, target in zip(infos, targets, strict=True)
        ]
        tensors = [size, *targets, *values]
        return Dataset(nest.packed(self._spec, spec), begin, [self], tensors)

    def shuffle(
        self,
        buffer_size: Any,
        seed: int | None = None,
        reshuffle_each_iteration: bool | None = None,
    ) -> Dataset:
        """Elements drawn from a buffer: TensorFlow's order, for an op's seed."""
        seeds = get_seed(seed)
        again = reshuffle_each_iteration is not False

        def make(start: Start, size: int) -> Start:
            at_least_one(size, "buffer_size must be greater than zero.")
            pair = _fresh_seeds() if seeds[0] is None or seeds[1] is None else (seeds[0], seeds[1])
            of_epochs = stages.random_words(*pair)

            def shuffled() -> Rows:
                epoch = (next(of_epochs), next(of_epochs)) if again else pair
                return stages.Shuffled(start(), size, stages.random_words(*epoch))

            return shuffled

        return self._stage(make, buffer_size)

    def repeat(self, count: Any = None) -> Dataset:
        """A dataset of the same elements several times."""
        return self._stage(
            lambda start, times: lambda: stages.Repeated(start, times),
            -1 if count is None else count,
        )

    def take(self, count: Any) -> Dataset:
        """A dataset of the first elements."""
        return self._stage(lambda start, number: lambda: stages.Taken(start(), number), count)

    def skip(self, count: Any) -> Dataset:
        """A dataset of all elements but the first."""
        return self._stage(lambda start, number: lambda: stages.Sharded(start(), 1, number), count)

    def enumerate(self, start: Any = 0) -> Dataset:
        """A dataset of pairs: the number of an element, and the element."""
        return Dataset.zip((Dataset.range(start, int64.max), self))

    def cache(self, filename: Any = "") -> Dataset:
        """A dataset that remembers its elements, once all of them have been there."""
        return self._stage(stages.Cache)

    def shard(self, num_shards: Any, index: Any) -> Dataset:
        """A dataset of every so many-th element: a worker's part."""

        def make(start: Start, count: int, place: int) -> Start:
            check_shard(count, place)
            return lambda: stages.Sharded(start(), count, place)

        return self._stage(make, num_shards, index)

    def concatenate(self, dataset: Dataset) -> Dataset:
        """A dataset of these elements, and then those of another one."""
        if self.output_types != dataset.output_types:
            raise TypeError(
                f"Two datasets to concatenate have different types {self.output_types} and"
                f" {dataset.output_types}"
            )
        pairs = zip(nest.flatten(self._spec), nest.flatten(dataset._spec), strict=True)
        infos = [
            TensorInfo(
                one.dtype, one.shape.most_general_compatible_shape(other.shape), one.is_sparse
            )
            for one, other in pairs
        ]

        def begin(run: DatasetRun) -> Start:
            first, second = self._begin(run), dataset._begin(run)
            return lambda: stages.Chain(first(), second)

        return Dataset(nest.packed(self._spec, infos), begin, [self, dataset])

    def prefetch(self, buffer_size: Any) -> Dataset:
        """The same dataset: only a `tf.train.QueueRunner` makes elements ahead."""
        return self

    def apply(self, transformation_func: Callable[[Dataset], Dataset]) -> Dataset:
        """What a function makes of this dataset."""
        return transformation_func(self)

    def unbatch(self) -> Dataset:
        """A dataset of the rows of each element, along its first axis."""

        def rows(*element: Any) -> Dataset:
            return Dataset.from_tensor_slices(element if len(element) > 1 else element[0])

        return self.flat_map(rows)

    # Iterators.

    def make_one_shot_iterator(self) -> DatasetIterator:
        """An iterator that needs no initialisation, and goes through the elements once."""
        return make_one_shot_iterator(self)

    def make_initializable_iterator(self, shared_name: str | None = None) -> DatasetIterator:
        """An iterator that begins at the first element whenever its ``initializer`` is run."""
        return make_initializable_iterator(self, shared_name)


def _captures(body: Body) -> list[Tensor]:
    """The tensors from outside that a body needs, whose values are those at initialisation."""
    return list(body.captures)


def _traced_with(
    arguments: Sequence[tuple[Any, Any, str]], function: Callable[..., Any]
) -> tuple[list[Tensor], Body, Any]:
    """Call a function with placeholders (dtype, shape, name): those, its body, what it returns."""
    given: list[Tensor] = []

    def call() -> Any:
        given.extend(placeholder(*one) for one in arguments)
        return function(*given)

    body, result = trace(get_default_graph(), call)
    return given, body, result


def _traced_dataset(
    body: Body, given: Sequence[Tensor], inner: Any, what: str
) -> Callable[[DatasetRun, Row], Rows]:
    """What begins with the rows of a dataset that a traced function has returned."""
    if not isinstance(inner, Dataset):
        raise TypeError(f"`{what}` must return a `Dataset` object.")
    with get_default_graph().building_in(body):
        body.outputs = [identity(one) for one in inner._sources]

    def begin(run: DatasetRun, row: Row) -> Rows:
        values = run.call(body, given, row)
        return inner._begin(InnerRun(dict(zip(inner._sources, values, strict=True)), run))()

    return begin


def _fresh_seeds() -> tuple[int, int]:
    return secrets.randbits(32), secrets.randbits(32)


class TextLineDataset(Dataset):
    r"""The lines of text files, without their ends (``\n`` or ``\r\n``)."""

    def __init__(
        self,
        filenames: Any,
        compression_type: str | None = None,
        buffer_size: Any = None,
        num_parallel_reads: Any = None,
    ) -> None:
        compression = records.TFRecordOptions.get_compression_type_string(compression_type)
        _of_files(self, filenames, lambda path: records.line_file(path, 0, compression))


class TFRecordDataset(Dataset):
    """The records of TFRecord files. Needs the extra ``tfrecord``."""

    def __init__(
        self,
        filenames: Any,
        compression_type: str | None = None,
        buffer_size: Any = None,
        num_parallel_reads: Any = None,
    ) -> None:
        compression = records.TFRecordOptions.get_compression_type_string(compression_type)
        _of_files(
            self,
            filenames,
            lambda path: records.tf_record_file(path, compression),
            keeps_damaged=False,
        )


class FixedLengthRecordDataset(Dataset):
    """The records of binary files, which all have the same length."""

    def __init__(
        self,
        filenames: Any,
        record_bytes: int,
        header_bytes: int | None = None,
        footer_bytes: int | None = None,
        buffer_size: Any = None,
        compression_type: str | None = None,
        num_parallel_reads: Any = None,
    ) -> None:
        compression = records.TFRecordOptions.get_compression_type_string(compression_type)
        header, footer = header_bytes or 0, footer_bytes or 0

        def read(path: str) -> Iterator[records.Record]:
            if record_bytes < 1:
                raise invalid("`record_bytes` must be > 0")
            for name, count in (("header_bytes", header), ("footer_bytes", footer)):
                if count < 0:
                    raise invalid(f"`{name}` must be >= 0")
            if not compression and "://" not in path:
                _check_multiple(path, record_bytes, header, footer)
            return records.fixed_length_file(path, compression, record_bytes, header, footer, 0)

        _of_files(self, filenames, read)


def _check_multiple(path: str, record: int, header: int, footer: int) -> None:
    with file_errors(path):
        body = os.path.getsize(path) - header - footer
    if body < 0 or body % record:
        raise invalid(
            f"Excluding the header ({header} bytes) and footer ({footer} bytes), input file"
            f' "{path}" has body length {body} bytes, which is not an exact multiple of the record'
            f" length ({record} bytes)."
        )


def _of_files(
    dataset: Dataset,
    filenames: Any,
    read: Callable[[str], Iterator[records.Record]],
    keeps_damaged: bool = True,
) -> None:
    """Make a dataset of the records of files; the arguments are those of `_Records`."""
    names = convert_to_tensor(filenames, dtype=string)

    def begin(run: DatasetRun) -> Start:
        def start() -> Rows:
            paths = map(os.fsdecode, np.ravel(np.asarray(run.values[names], object)).tolist())
            return _Records(list(paths), read, keeps_damaged)

        return start

    Dataset.__init__(dataset, TensorInfo(string, ()), begin, tensors=[names])


class _Records(Iterator[Row]):
    """Records of one file after another; only one that failed at once is tried again."""

    def __init__(
        self, paths: list[str], read: Callable[[str], Iterator[records.Record]], keeps_damaged: bool
    ) -> None:
        self._paths = paths
        self._read = read
        self._keeps_damaged = keeps_damaged
        self._place = 0
        self._records: Iterator[records.Record] | None = None
        self._has_begun = False

    def __next__(self) -> Row:
        while self._place < len(self._paths):
            try:
                if self._records is None:
                    self._records = self._read(self._paths[self._place])
                record = next(self._records)
            except StopIteration:
                self._pass_on()
            except errors.OpError as error:
                self._records = None
                if self._has_begun or self._is_final(error):
                    self._pass_on()
                raise
            else:
                self._has_begun = True
                return (record.value,)
        raise StopIteration

    def _is_final(self, error: errors.OpError) -> bool:
        return isinstance(error, errors.DataLossError) and not self._keeps_damaged

    def _pass_on(self) -> None:
        self._place += 1
        self._records, self._has_begun = None, False


Transformation = Callable[[Dataset], Dataset]

SCALAR = TensorShape([])


class _Window:
    """The rows of a group as one value."""

    __slots__ = ("rows",)

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows


def group_by_window(
    key_func: Callable[..., Any],
    reduce_func: Callable[[Any, Dataset], Dataset],
    window_size: int | None = None,
    window_size_func: Callable[[Any], Any] | None = None,
) -> Transformation:
    """For `Dataset.apply`: groups of elements with one key, and what a function makes of each."""
    if (window_size is None) == (window_size_func is None):
        raise ValueError("Must pass either `window_size` or `window_size_func`.")

    def size_of(key: Any) -> Any:
        return window_size if window_size_func is None else window_size_func(key)

    def apply(dataset: Dataset) -> Dataset:
        def reduced(key: Tensor, window: Tensor) -> Dataset:
            rows = Dataset(
                dataset._spec, lambda run: lambda: iter(run.values[window].rows), tensors=[window]
            )
            return reduce_func(key, rows)

        number: tuple[Any, Any, str] = (dtypes.int64, [], "key")
        given, key_body, key = dataset._traced(key_func)
        _returns_number(key_body, key, "key_func")
        size_given, size_body, size = _traced_with([number], size_of)
        _returns_number(size_body, size, "window_size_func")
        pair, reduce_body, inner = _traced_with([number, (dtypes.variant, [], "window")], reduced)
        begin_inner = _traced_dataset(reduce_body, pair, inner, "reduce_func")

        def begin(run: DatasetRun) -> Start:
            start = dataset._begin(run)

            def key_of(row: Row) -> int:
                return int(run.call(key_body, given, row)[0])

            def size_for(key: int) -> int:
                return int(run.call(size_body, size_given, (np.int64(key),))[0])

            def make(group: Any) -> Rows:
                key, rows = group
                return begin_inner(run, (np.int64(key), _Window(rows)))

            return lambda: Interleaved(Windows(start(), key_of, size_for), make, 1, 1)

        captures = [*key_body.captures, *size_body.captures, *reduce_body.captures]
        return Dataset(inner._spec, begin, [dataset], captures)

    return apply


def _returns_number(body: Body, result: Any, what: str) -> None:
    """Make a function's body give an int64 scalar."""
    with get_default_graph().building_in(body):
        found = convert_to_tensor(result, preferred_dtype=dtypes.int64)
        if not found.dtype.is_integer or found.shape.ndims not in (None, 0):
            raise ValueError(
                f"Invalid `{what}`. `{what}` must return a single `tf.int64` scalar tensor, but its"
                f" return type is {found.dtype.name} of shape {found.shape}."
            )
        body.outputs = [identity(cast(found, dtypes.int64))]


def bucket_by_sequence_length(
    element_length_func: Callable[..., Any],
    bucket_boundaries: Sequence[int],
    bucket_batch_sizes: Sequence[int],
    padded_shapes: Any = None,
    padding_values: Any = None,
    pad_to_bucket_boundary: bool = False,
    no_padding: bool = False,
    drop_remainder: bool = False,
) -> Transformation:
    """For `Dataset.apply`: batches of elements whose lengths have the same boundaries around."""
    if len(bucket_batch_sizes) != len(bucket_boundaries) + 1:
        raise ValueError("len(bucket_batch_sizes) must equal len(bucket_boundaries) + 1")
    edges = np.array(bucket_boundaries, np.int64)
    sizes = np.array(bucket_batch_sizes, np.int64)

    def bucket_of(*element: Any) -> Tensor:
        length = convert_to_tensor(element_length_func(*element))

        def kernel(step: Any, value: Any) -> Any:
            return np.int64(np.searchsorted(edges, np.ravel(value)[0], side="right"))

        return op("Bucketize", [length], [(dtypes.int64, SCALAR)], kernel).outputs[0]

    def size_of(bucket: Any) -> Tensor:
        def kernel(step: Any, number: Any) -> Any:
            return sizes[number]

        return op("Gather", [bucket], [(dtypes.int64, SCALAR)], kernel).outputs[0]

    def batches(bucket: Any, window: Dataset) -> Dataset:
        size = size_of(bucket)
        if no_padding:
            return window.batch(size, drop_remainder=drop_remainder)
        shapes = padded_shapes
        if pad_to_bucket_boundary:
            shapes = _up_to_boundary(window, padded_shapes, bucket, edges)
        return window.padded_batch(size, shapes, padding_values, drop_remainder)

    return group_by_window(bucket_of, batches, window_size_func=size_of)


def _up_to_boundary(window: Dataset, shapes: Any, bucket: Tensor, edges: Any) -> Any:
    """The shapes with the boundary of a bucket, less one, in the place of unknown sizes."""

    def target(shape: Any) -> Tensor:
        listed = [-1 if one is None else one for one in TensorShape(shape).as_list()]

        def kernel(step: Any, number: Any) -> Any:
            if number >= len(edges):
                raise invalid(
                    "When pad_to_bucket_boundary=True, elements must have length <"
                    " max(bucket_boundaries)."
                )
            return np.array([edges[number] - 1 if one < 0 else one for one in listed], np.int64)

        outputs = [(dtypes.int64, TensorShape([len(listed)]))]
        return op("Select", [bucket], outputs, kernel).outputs[0]

    given = window.output_shapes if shapes is None else shapes
    return nest.mapped(target, given) if not _is_shape(given) else target(given)


def _is_shape(value: Any) -> bool:
    return isinstance(value, TensorShape | list) or (
        isinstance(value, tuple) and all(isinstance(one, int | None) for one in value)
    )


# Short forms.


def map_and_batch(
    map_func: Callable[..., Any],
    batch_size: Any,
    num_parallel_batches: int | None = None,
    drop_remainder: bool = False,
    num_parallel_calls: int | None = None,
) -> Transformation:
    """For `Dataset.apply`: `Dataset.map`, then `Dataset.batch`."""
    return lambda dataset: dataset.map(map_func).batch(batch_size, drop_remainder)


def shuffle_and_repeat(
    buffer_size: Any, count: Any = None, seed: int | None = None
) -> Transformation:
    """For `Dataset.apply`: `Dataset.shuffle`, then `Dataset.repeat`."""
    return lambda dataset: dataset.shuffle(buffer_size, seed).repeat(count)


def batch_and_drop_remainder(batch_size: Any) -> Transformation:
    """For `Dataset.apply`: `Dataset.batch` without a smaller last one."""
    return lambda dataset: dataset.batch(batch_size, drop_remainder=True)


def parallel_interleave(
    map_func: Callable[..., Dataset],
    cycle_length: int,
    block_length: int = 1,
    sloppy: bool = False,
    buffer_output_elements: int | None = None,
    prefetch_input_elements: int | None = None,
) -> Transformation:
    """For `Dataset.apply`: `Dataset.interleave`; nothing is made ahead."""
    return lambda dataset: dataset.interleave(map_func, cycle_length, block_length)


def unbatch() -> Transformation:
    """For `Dataset.apply`: the rows of each element, along its first axis, as elements."""
    return Dataset.unbatch
