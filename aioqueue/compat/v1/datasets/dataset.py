"""``tf.data.Dataset``: descriptions of elements, which iterators go through in a session."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np

from aioqueue.compat.v1.absent import DATASETS, AbsentNameError
from aioqueue.compat.v1.core.bodies import trace
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.default_graph import get_default_graph
from aioqueue.compat.v1.core.dtypes import bool as tf_bool
from aioqueue.compat.v1.core.dtypes import int64
from aioqueue.compat.v1.core.graph import Body, Tensor
from aioqueue.compat.v1.core.scopes import get_seed
from aioqueue.compat.v1.core.shapes import TensorShape
from aioqueue.compat.v1.datasets import nest, stages
from aioqueue.compat.v1.datasets.counts import at_least_one, check_shard
from aioqueue.compat.v1.datasets.elements import (
    DatasetRun,
    Elements,
    InnerRun,
    Start,
    TensorInfo,
    as_leaf,
)
from aioqueue.compat.v1.datasets.generating import elements_of, generated
from aioqueue.compat.v1.datasets.iterator import Iterator as DatasetIterator
from aioqueue.compat.v1.datasets.iterator import (
    make_initializable_iterator,
    make_one_shot_iterator,
)
from aioqueue.compat.v1.datasets.padding import padded_batches, shape_leaves
from aioqueue.compat.v1.datasets.stages import Row, Rows
from aioqueue.compat.v1.ops.arrays import size
from aioqueue.compat.v1.ops.control import identity, placeholder
from aioqueue.compat.v1.ops.files import existing_files

__all__ = ("Dataset",)


class Dataset(Elements):
    """Elements, one after another: tensors, or tuples and dicts of them in any nesting.

    Made by the static methods, such as `from_tensor_slices`; every other method returns a dataset
    that does something with the elements of this one. An iterator goes through them, in a session.
    """

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
        """A dataset of one element.

        Args:
            tensors: the element.
        """
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
        """A dataset of the slices of tensors along their first axis.

        Args:
            tensors: a tensor, or tuples and dicts of them, of one length.

        Raises:
            ValueError: a tensor is a scalar, or they differ in length.
        """
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
        """A dataset of what a Python function yields.

        Args:
            generator: called anew for each repetition; returns an iterable of elements.
            output_types: the dtypes of an element.
            output_shapes: the static shapes of an element; None for any.
            args: tensors whose values it is called with.

        Raises:
            TypeError: it cannot be called.
        """
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
        """A dataset of the names of files.

        Args:
            file_pattern: a pattern such as ``"/data/*.csv"``, or a vector of them.
            shuffle: whether in random order, another one each time; True if None.
            seed: of the order, see `shuffle`.

        Raises:
            InvalidArgumentError: when it runs: there is no such file.
        """
        names = existing_files(file_pattern)
        dataset = Dataset.from_tensor_slices(names)
        if shuffle is False:
            return dataset
        return dataset.shuffle(size(names, out_type=int64), seed)

    @staticmethod
    def range(*args: Any) -> Dataset:
        """A dataset of int64 numbers.

        Args:
            args: as for Python's `range`: stop; start and stop; or start, stop and step.

        Raises:
            ValueError: their number is wrong.
        """
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
        """A dataset of the elements of several, side by side; it ends with the shortest.

        Args:
            datasets: tuples and dicts of datasets in any nesting, which elements then have.

        Raises:
            TypeError: something else is among them.
        """
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
        """A dataset of what a function makes of each element.

        Args:
            map_func: called once, with tensors, to build what is run for each element; a tuple is
                spread over several arguments.
            num_parallel_calls: without effect: elements are made one after another.

        Raises:
            ValueError: it returns nothing.
        """
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
        """A dataset of the elements of the datasets that a function makes of each element.

        Args:
            map_func: as for `map`, but returns a dataset.

        Raises:
            TypeError: it returns something else.
        """
        return self._made_of_datasets(map_func, stages.Flattened)

    def interleave(
        self,
        map_func: Callable[..., Dataset],
        cycle_length: int,
        block_length: int = 1,
        num_parallel_calls: int | None = None,
    ) -> Dataset:
        """A dataset like that of `flat_map`, whose datasets take turns.

        Args:
            map_func: as for `flat_map`.
            cycle_length: how many datasets take turns.
            block_length: how many elements each gives in its turn.
            num_parallel_calls: without effect: elements are made one after another.

        Raises:
            TypeError: it returns something else.
            ValueError: a length is not positive.
        """
        del num_parallel_calls
        if cycle_length < 1 or block_length < 1:
            raise ValueError("`cycle_length` and `block_length` must be > 0")

        def stage(rows: Rows, make: Callable[[Row], Rows]) -> Rows:
            return stages.Interleaved(rows, make, cycle_length, block_length)

        return self._made_of_datasets(map_func, stage)

    def _made_of_datasets(
        self,
        map_func: Callable[..., Dataset],
        stage: Callable[[Rows, Callable[[Row], Rows]], Rows],
    ) -> Dataset:
        given, body, inner = self._traced(map_func)
        if not isinstance(inner, Dataset):
            raise TypeError("`map_func` must return a `Dataset` object.")
        with get_default_graph().building_in(body):
            body.outputs = [identity(one) for one in inner._sources]

        def begin(run: DatasetRun) -> Start:
            start = self._begin(run)

            def make(row: Row) -> Rows:
                values = run.call(body, given, row)
                return inner._begin(InnerRun(dict(zip(inner._sources, values, strict=True)), run))()

            return lambda: stage(start(), make)

        return Dataset(inner._spec, begin, [self], _captures(body))

    def filter(self, predicate: Callable[..., Any]) -> Dataset:
        """A dataset of the elements for which a function is true.

        Args:
            predicate: as for `map`; returns a scalar bool.

        Raises:
            ValueError: it returns something else.
        """
        return self._choosing(predicate, filter, ValueError)

    def _choosing(
        self,
        predicate: Callable[..., Any],
        choose: Callable[[Callable[[Row], bool], Rows], Rows],
        refusal: type[Exception],
    ) -> Dataset:
        """A dataset of some of the elements, by what a function says of them.

        Args:
            predicate: as for `filter`.
            choose: the rows that are left of some, by what is said of each.
            refusal: what is raised if the function returns something else.
        """
        given, body, result = self._traced(predicate)
        with get_default_graph().building_in(body):
            holds = convert_to_tensor(result)
        if holds.dtype != tf_bool or holds.shape.ndims not in (None, 0):
            raise refusal(
                "Invalid `predicate`. `predicate` must return a `tf.bool` scalar tensor, but its"
                f" return type is {holds.dtype.name} of shape {holds.shape}."
            )
        body.outputs = [holds]

        def begin(run: DatasetRun) -> Start:
            start = self._begin(run)
            return lambda: choose(lambda row: bool(run.call(body, given, row)[0]), start())

        return Dataset(self._spec, begin, [self], _captures(body))

    def _traced(self, function: Callable[..., Any]) -> tuple[list[Tensor], Body, Any]:
        """Call a function with placeholders for an element: those, its body, what it returns."""
        given: list[Tensor] = []

        def call() -> Any:
            infos = nest.flatten(self._spec)
            given.extend(placeholder(info.held[0], info.held[1], "arg") for info in infos)
            leaves = [info.given(one) for info, one in zip(infos, given, strict=True)]
            return function(*nest.arguments(nest.packed(self._spec, leaves)))

        body, result = trace(get_default_graph(), call)
        return given, body, result

    def batch(self, batch_size: Any, drop_remainder: bool = False) -> Dataset:
        """A dataset of batches: elements stacked along a new first axis.

        Args:
            batch_size: how many elements make a batch; an int64 tensor, if it is to be fed.
            drop_remainder: whether to leave out a last batch that is smaller.
        """
        size = convert_to_tensor(batch_size, dtype=int64)
        static = int(batch_size) if drop_remainder and not isinstance(batch_size, Tensor) else None

        def begin(run: DatasetRun) -> Start:
            rows_of = self._begin(run)
            count = at_least_one(run.values[size], "Batch size must be greater than zero.")
            return lambda: stages.Batches(rows_of(), count, drop_remainder)

        def batched(info: TensorInfo) -> TensorInfo:
            shape = TensorShape([static]).concatenate(info.shape)
            return TensorInfo(info.dtype, shape, info.is_sparse)

        return Dataset(nest.mapped(batched, self._spec), begin, [self], [size])

    def padded_batch(
        self,
        batch_size: Any,
        padded_shapes: Any = None,
        padding_values: Any = None,
        drop_remainder: bool = False,
    ) -> Dataset:
        """A dataset of batches of elements that are filled up at their ends to one shape.

        Args:
            batch_size: as for `batch`.
            padded_shapes: the shape that each tensor is padded to, in the nesting of an element. A
                size of None or -1 stands for the largest of the batch. None for all sizes so.
            padding_values: the values to pad with, in the nesting of an element; None for zeros
                and empty strings.
            drop_remainder: as for `batch`.

        Raises:
            ValueError: the nesting is another one.
            TypeError: a tensor is sparse, or a value is of another dtype.
        """
        spec, begin, tensors = padded_batches(
            self, batch_size, padded_shapes, padding_values, drop_remainder
        )
        return Dataset(spec, begin, [self], tensors)

    def shuffle(
        self,
        buffer_size: Any,
        seed: int | None = None,
        reshuffle_each_iteration: bool | None = None,
    ) -> Dataset:
        """A dataset of the same elements in random order, drawn from a buffer.

        The same seed gives the order that TensorFlow gave. Without one here, and with one of the
        graph, the order is the same each time, but another one than TensorFlow's.

        Args:
            buffer_size: how many elements the buffer holds.
            seed: beside the graph's seed, see `tf.set_random_seed`.
            reshuffle_each_iteration: whether each repetition has an order of its own; True if None.
        """
        size = convert_to_tensor(buffer_size, dtype=int64)
        seeds = get_seed(seed)
        again = reshuffle_each_iteration is not False

        def begin(run: DatasetRun) -> Start:
            rows_of = self._begin(run)
            count = at_least_one(run.values[size], "buffer_size must be greater than zero.")
            pair = _fresh_seeds() if seeds[0] is None or seeds[1] is None else (seeds[0], seeds[1])
            of_epochs = stages.random_words(*pair)

            def start() -> Rows:
                own = (next(of_epochs), next(of_epochs)) if again else pair
                return stages.Shuffled(rows_of(), count, stages.random_words(*own))

            return start

        return Dataset(self._spec, begin, [self], [size])

    def repeat(self, count: Any = None) -> Dataset:
        """A dataset of the same elements several times.

        Args:
            count: how many times; None or -1 for ever.
        """
        times = convert_to_tensor(-1 if count is None else count, dtype=int64)

        def begin(run: DatasetRun) -> Start:
            start = self._begin(run)
            return lambda: stages.Repeated(start, int(run.values[times]))

        return Dataset(self._spec, begin, [self], [times])

    def take(self, count: Any) -> Dataset:
        """A dataset of the first elements.

        Args:
            count: how many; -1 for all of them.
        """
        return self._counted(stages.Taken, count)

    def skip(self, count: Any) -> Dataset:
        """A dataset of all elements but the first.

        Args:
            count: how many are left out; -1 for all of them.
        """
        return self._counted(stages.Skipped, count)

    def _counted(self, stage: Callable[[Rows, int], Rows], count: Any) -> Dataset:
        number = convert_to_tensor(count, dtype=int64)

        def begin(run: DatasetRun) -> Start:
            start = self._begin(run)
            return lambda: stage(start(), int(run.values[number]))

        return Dataset(self._spec, begin, [self], [number])

    def enumerate(self, start: Any = 0) -> Dataset:
        """A dataset of pairs: the number of an element, and the element.

        Args:
            start: the number of the first.
        """
        return Dataset.zip((Dataset.range(start, int64.max), self))

    def cache(self, filename: Any = "") -> Dataset:
        """A dataset that remembers its elements, once all of them have been there.

        Args:
            filename: without effect: they are kept in memory.
        """
        del filename

        def begin(run: DatasetRun) -> Start:
            return stages.Cache(self._begin(run))

        return Dataset(self._spec, begin, [self])

    def shard(self, num_shards: Any, index: Any) -> Dataset:
        """A dataset of every so many-th element: a worker's part.

        Args:
            num_shards: how many parts there are.
            index: which of them this is, from 0.

        Raises:
            InvalidArgumentError: when it runs: there is no such part.
        """
        numbers = [convert_to_tensor(one, dtype=int64) for one in (num_shards, index)]

        def begin(run: DatasetRun) -> Start:
            start = self._begin(run)
            count, place = (int(run.values[one]) for one in numbers)
            check_shard(count, place)
            return lambda: stages.Sharded(start(), count, place)

        return Dataset(self._spec, begin, [self], numbers)

    def concatenate(self, dataset: Dataset) -> Dataset:
        """A dataset of these elements, and then those of another one.

        Args:
            dataset: the other one, of the same types.

        Raises:
            TypeError: it has other types.
        """
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
        """The same dataset: elements are made when they are asked for.

        To make them ahead, let a `tf.train.QueueRunner` put them into a queue.

        Args:
            buffer_size: without effect.
        """
        del buffer_size
        return self

    def apply(self, transformation_func: Callable[[Dataset], Dataset]) -> Dataset:
        """What a function makes of this dataset.

        Args:
            transformation_func: takes a dataset and returns one.
        """
        return transformation_func(self)

    def unbatch(self) -> Dataset:
        """A dataset of the rows of each element, along its first axis."""

        def rows(*element: Any) -> Dataset:
            return Dataset.from_tensor_slices(element if len(element) > 1 else element[0])

        return self.flat_map(rows)

    # Iterators.

    def make_one_shot_iterator(self) -> DatasetIterator:
        """An iterator that needs no initialisation, and goes through the elements once.

        Raises:
            ValueError: the dataset depends on a placeholder.
        """
        return make_one_shot_iterator(self)

    def make_initializable_iterator(self, shared_name: str | None = None) -> DatasetIterator:
        """An iterator that begins at the first element whenever its ``initializer`` is run.

        Args:
            shared_name: without effect.
        """
        return make_initializable_iterator(self, shared_name)


def _captures(body: Body) -> list[Tensor]:
    """The tensors from outside that a body needs, whose values are those at initialisation."""
    return list(body.captures)


def _fresh_seeds() -> tuple[int, int]:
    return secrets.randbits(32), secrets.randbits(32)
