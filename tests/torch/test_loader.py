"""The arguments that `DataLoader` accepts, rejects and warns of, as PyTorch's does."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, SequentialSampler
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data.datapipes.iter import IterableWrapper

import aioqueue
from aioqueue.torch import DataLoader, LoaderIterator
from tests.torch.comparison import assert_same, epoch_of, ours, theirs
from tests.torch.datasets import Split, Tensors

BATCHES = BatchSampler(SequentialSampler(range(4)), 2, False)

WRONG: list[dict[str, Any]] = [
    {"num_workers": -1},
    {"timeout": -1},
    {"prefetch_factor": 2},
    {"num_workers": 1, "prefetch_factor": -1},
    {"persistent_workers": True},
    {"sampler": [1], "shuffle": True},
    {"batch_sampler": BATCHES, "batch_size": 2},
    {"batch_sampler": BATCHES, "shuffle": True},
    {"batch_sampler": BATCHES, "drop_last": True},
    {"batch_size": None, "drop_last": True},
    {"batch_size": 0},
    {"batch_size": 2.5},
    {"multiprocessing_context": "spawn"},
    {"num_workers": 1, "multiprocessing_context": "thread"},
    {"num_workers": 1, "multiprocessing_context": 5},
]
WRONG_OF_ITERABLE: list[dict[str, Any]] = [
    {"shuffle": True},
    {"sampler": [1]},
    {"batch_sampler": BATCHES},
]
WRONG_WHEN_ITERATED: list[dict[str, Any]] = [
    {"timeout": 1},
    {"num_workers": 1, "prefetch_factor": 0},  # PyTorch's then complains of what it left half-made
]


def refusal(make: Any, dataset: Any, options: dict[str, Any]) -> Exception:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises((ValueError, TypeError, AssertionError)) as caught:
            iter(make(dataset, **options))
    return caught.value


@pytest.mark.parametrize(
    ("dataset", "options"),
    [(Tensors(), one) for one in WRONG] + [(Split(), one) for one in WRONG_OF_ITERABLE],
    ids=lambda one: " ".join(one) if isinstance(one, dict) else type(one).__name__,
)
def test_refused_as_by_pytorch(dataset: Any, options: dict[str, Any]) -> None:
    mine, other = (refusal(make, dataset, options) for make in (DataLoader, TorchLoader))
    assert (type(mine), str(mine)) == (type(other), str(other))


@pytest.mark.parametrize("options", WRONG_WHEN_ITERATED, ids=str)
def test_refused_when_it_is_iterated(options: dict[str, Any]) -> None:
    assert type(refusal(DataLoader, Tensors(), options)) is AssertionError


def test_our_own_arguments() -> None:
    with pytest.raises(aioqueue.InvalidArgumentError, match=r"^where: got 'task'; expected"):
        DataLoader([1], where="task")  # type: ignore[arg-type]
    with pytest.raises(aioqueue.InvalidArgumentError, match=r"^replay: got 1; expected"):
        DataLoader([1], replay=1)  # type: ignore[arg-type]


def test_data_pipes_are_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipe = IterableWrapper([1, 2])
    with pytest.raises(TypeError, match=r"^dataset: got a DataPipe \(IterableWrapperIterDataPipe"):
        DataLoader(pipe)


def test_attributes_are_pytorchs() -> None:
    mine, other = ours([1, 2], 2, num_workers=1), theirs([1, 2], 2, num_workers=1)
    assert isinstance(mine, TorchLoader)
    for name in ("batch_size", "num_workers", "drop_last", "prefetch_factor", "in_order"):
        assert getattr(mine, name) == getattr(other, name)
    with pytest.raises(ValueError, match="batch_size attribute should not be set"):
        mine.batch_size = 3
    mine.num_workers = 0
    assert [batch.tolist() for batch in mine] == [[1, 2]]
    assert DataLoader[int] is not DataLoader  # it can be subscripted


def test_no_workers_after_persistent_ones() -> None:
    loader = ours(Split(8), 2, num_workers=1, persistent_workers=True)
    expected = epoch_of(loader)
    loader.num_workers = 0
    loader.prefetch_factor = None
    for _ in range(3):
        assert_same(epoch_of(loader), expected)


def test_what_is_changed_counts_for_the_next_iterator() -> None:
    loader = ours([1, 2], 2, num_workers=1)
    assert [batch.tolist() for batch in loader] == [[1, 2]]
    loader.collate_fn = sum
    assert list(loader) == [3]


@pytest.mark.parametrize("generator", [5, "7", random.Random(7)])
def test_what_is_no_generator(generator: Any) -> None:
    with pytest.raises(aioqueue.InvalidArgumentError, match=r"^generator: got .*expected a torch"):
        DataLoader([1, 2], shuffle=True, generator=generator)


def test_too_many_workers() -> None:
    for make in (DataLoader, TorchLoader):
        with pytest.warns(UserWarning, match="This DataLoader will create 500 worker"):
            make([1], num_workers=500)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
@pytest.mark.parametrize("workers", [0, 1])
def test_pinned_memory_without_an_accelerator(workers: int) -> None:
    with pytest.warns(UserWarning, match="'pin_memory' argument is set as true but no") as caught:
        assert list(ours([1, 2], None, num_workers=workers, pin_memory=True)) == [1, 2]
    assert caught[0].filename == __file__
    loader = ours([1, 2], num_workers=workers, pin_memory=True, pin_memory_device="cuda")
    with (
        pytest.warns(UserWarning, match="no accelerator is found"),
        pytest.warns(UserWarning, match="pin_memory_device is deprecated"),
    ):
        list(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_wrong_length_is_warned_of(workers: int) -> None:
    class Longer(Split):
        def __len__(self) -> int:
            return 5

    loader = ours(Longer(), None, num_workers=workers)
    assert len(epoch_of(loader)) > 5  # nobody has asked for the length
    assert len(loader) == 5
    with pytest.warns(UserWarning, match=r"^Length of IterableDataset .* reported to be 5"):
        list(loader)
    if workers:
        loader = ours(Longer(), None, num_workers=workers, persistent_workers=True)
        assert len(epoch_of(loader)) > len(loader)
        with pytest.warns(UserWarning, match=r"^Length of IterableDataset .* reported to be 5"):
            list(loader)


def test_iterators_are_not_sent_anywhere() -> None:
    iterator = iter(ours([1, 2], num_workers=1))
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(iterator)
    iterator.close()


def test_names() -> None:
    assert DataLoader.__module__ == LoaderIterator.__module__ == "aioqueue.torch"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 4, "num_workers": 2}, "batches of 4, 2 workers, where='thread'"),
        ({"batch_size": None}, "single samples, no workers"),
        ({"batch_sampler": BATCHES}, "batches of its batch_sampler, no workers"),
        ({"num_workers": 1, "where": "process"}, "batches of 1, 1 worker, where='process'"),
    ],
)
def test_what_a_loader_shows_of_itself(options: dict[str, Any], message: str) -> None:
    assert (
        repr(ours(Tensors(), **options)) == f"<aioqueue.torch.DataLoader of a Tensors: {message}>"
    )


@pytest.mark.parametrize("workers", [0, 1])
def test_what_an_iterator_shows_of_itself(workers: int) -> None:
    iterator = iter(ours([1, 2], num_workers=workers, persistent_workers=bool(workers)))
    message = "<aioqueue.torch.LoaderIterator of a list: "
    assert repr(iterator) == f"{message}handed out 0>"
    next(iterator)
    assert repr(iterator) == f"{message}handed out 1>"
    assert len(list(iterator)) == 1
    assert repr(iterator) == f"{message}handed out 2, over>"
    iterator.close()
    assert repr(iterator) == f"{message}handed out 2, closed>"


def test_where_pytorch_is_missing() -> None:
    program = "import sys; sys.modules['torch'] = None; import aioqueue; import aioqueue.torch"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(aioqueue.__file__).parents[1],
        timeout=50,
    )
    assert "ImportError: aioqueue.torch needs PyTorch" in ran.stderr
    assert "Without PyTorch, a pipeline loads the same data set: aioqueue.inputs" in ran.stderr
    assert "pip install '.[torch]'" in ran.stderr
