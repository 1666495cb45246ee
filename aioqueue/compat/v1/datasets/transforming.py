"""Functions for `Dataset.apply` and others of ``tf.data.experimental``: errors, ends, choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.dtypes import int64
from aioqueue.compat.v1.datasets import nest, stages
from aioqueue.compat.v1.datasets.dataset import Dataset
from aioqueue.compat.v1.datasets.elements import DatasetRun, ForgivingRun, Start
from aioqueue.compat.v1.ops.casting import cast
from aioqueue.compat.v1.parsing.parsing import parse_example

__all__ = (
    "choose_from_datasets",
    "copy_to_device",
    "counter",
    "enumerate_dataset",
    "ignore_errors",
    "parse_example_dataset",
    "prefetch_to_device",
    "take_while",
)

Transformation = Callable[[Dataset], Dataset]


def ignore_errors(log_warning: bool = False) -> Transformation:
    """For `Dataset.apply`: the elements that can be made; those that cannot are left out.

    So is a file that cannot be opened, on which TensorFlow tries again for ever.

    Args:
        log_warning: without effect.
    """
    del log_warning

    def apply(dataset: Dataset) -> Dataset:
        def begin(run: DatasetRun) -> Start:
            start = dataset._begin(ForgivingRun(run))
            return lambda: stages.WithoutErrors(start())

        return Dataset(dataset._spec, begin, [dataset])

    return apply


def enumerate_dataset(start: Any = 0) -> Transformation:
    """For `Dataset.apply`: pairs of a number, counted from `start`, and an element."""
    return lambda dataset: dataset.enumerate(start)


def counter(start: Any = 0, step: Any = 1, dtype: Any = int64) -> Dataset:
    """A dataset of numbers that has no end.

    Args:
        start: the first.
        step: how much larger each is than the one before it.
        dtype: of the numbers.
    """
    first, width = convert_to_tensor(start, dtype), convert_to_tensor(step, dtype)
    numbers = Dataset.range(0, int64.max)
    return numbers.map(lambda number: cast(number, dtype) * width + first)


def take_while(predicate: Callable[..., Any]) -> Transformation:
    """For `Dataset.apply`: the elements up to the first for which a function is false.

    Args:
        predicate: takes an element; returns a scalar bool.

    Raises:
        TypeError: it returns something else.
    """

    def apply(dataset: Dataset) -> Dataset:
        return dataset._choosing(predicate, stages.While, TypeError)

    return apply


def choose_from_datasets(datasets: Sequence[Dataset], choice_dataset: Dataset) -> Dataset:
    """A dataset whose elements are those of several, in the order that another one says.

    Those of a dataset that has ended are left out.

    Args:
        datasets: of elements of the same types.
        choice_dataset: of int64 scalars: the number of the dataset that is next.

    Raises:
        TypeError: the types differ, or the choices are no int64 scalars.
    """
    types = [one.output_types for one in datasets]
    if any(one != types[0] for one in types):
        raise TypeError(f"datasets: got elements of types {types}; expected the same of all")
    chosen = nest.flatten(choice_dataset._spec)
    if len(chosen) != 1 or chosen[0].dtype != int64 or chosen[0].shape.ndims not in (None, 0):
        raise TypeError(
            "`choice_dataset` must be a dataset of scalar `tf.int64` tensors, not"
            f" {choice_dataset!r}"
        )

    def begin(run: DatasetRun) -> Start:
        choices, starts = choice_dataset._begin(run), [one._begin(run) for one in datasets]
        return lambda: stages.Chosen(choices(), [start() for start in starts])

    joined = datasets[0]
    for one in datasets[1:]:
        joined = joined.concatenate(one)  # its spec has what all have in common
    return Dataset(joined._spec, begin, [choice_dataset, *datasets])


def parse_example_dataset(
    features: Mapping[str, Any], num_parallel_calls: int | None = 1
) -> Transformation:
    """For `Dataset.apply`: batches of serialized examples, parsed as by `tf.parse_example`.

    Args:
        features: as there.
        num_parallel_calls: without effect.
    """
    del num_parallel_calls
    return lambda dataset: dataset.map(lambda serialized: parse_example(serialized, features))


def prefetch_to_device(device: Any, buffer_size: Any = None) -> Transformation:
    """For `Dataset.apply`: the same dataset; there is one device, and nothing is made ahead."""
    del device, buffer_size
    return lambda dataset: dataset


def copy_to_device(target_device: Any, source_device: Any = "/cpu:0") -> Transformation:
    """For `Dataset.apply`: the same dataset; there is one device."""
    del target_device, source_device
    return lambda dataset: dataset
