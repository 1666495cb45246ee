"""A loader resumes at every batch, with any number of workers."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, get_worker_info
from torch.utils.data.distributed import DistributedSampler

import aioqueue
from aioqueue.torch import DataLoader
from tests.torch.comparison import assert_same, epoch_of, no_thread_is_left, ours, seeded
from tests.torch.datasets import (
    LENGTH,
    Broken,
    EagerSampler,
    Split,
    Stateful,
    StatefulIterator,
    Tensors,
)

Make = Callable[..., DataLoader[Any]]


def saved(loader: DataLoader[Any]) -> Any:
    """The state after a way through JSON."""
    return json.loads(json.dumps(loader.state_dict()))


def shuffled(workers: int, **options: Any) -> DataLoader[Any]:
    return ours(Tensors(), 4, True, num_workers=workers, generator=seeded(), **options)


def from_global(workers: int, **options: Any) -> DataLoader[Any]:
    """What it draws, it draws from the global generator."""
    return ours(Tensors(), 4, True, num_workers=workers, **options)


def replacing(workers: int, **options: Any) -> DataLoader[Any]:
    """Draws during all of the epoch."""
    generator = seeded()
    sampler = RandomSampler(range(LENGTH), True, 3 * LENGTH, generator=generator)
    return ours(Tensors(), 4, sampler=sampler, num_workers=workers, generator=generator, **options)


def single(workers: int, **options: Any) -> DataLoader[Any]:
    return ours(Tensors(), None, True, num_workers=workers, generator=seeded(), **options)


MAKES = [shuffled, from_global, replacing, single]


@pytest.mark.parametrize(("workers", "then"), [(0, 0), (0, 2), (2, 2), (2, 0), (3, 1)])
@pytest.mark.parametrize("make", MAKES, ids=lambda make: str(make.__name__))
def test_at_every_batch(make: Make, workers: int, then: int) -> None:
    """The rest of the epoch, the next one, and the generator are as without a stop."""
    torch.manual_seed(5)
    loader = make(workers)
    epoch_of(loader)  # states are not only of first epochs
    states, batches = [], []
    for batch in (iterator := iter(loader)):
        states.append(saved(loader))
        batches.append(batch)
    assert next(iterator, None) is None
    over = saved(loader)
    following = epoch_of(loader)
    for number, state in enumerate(states, 1):
        resumed = make(then)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        torch.manual_seed(99)
        outside = torch.get_rng_state()
        assert_same(epoch_of(resumed), batches[number:])
        if make is from_global:
            assert torch.equal(torch.get_rng_state(), outside)
            continue
        assert saved(resumed) == over
        assert_same(epoch_of(resumed), following)
    no_thread_is_left()


@pytest.mark.parametrize("make", MAKES, ids=lambda make: str(make.__name__))
def test_resumed_again_and_again(make: Make) -> None:
    torch.manual_seed(5)
    expected = epoch_of(make(0))
    torch.manual_seed(5)
    loader, found = make(2), []
    for turn in range(len(expected)):
        found.append(next(iter(loader)))
        state = saved(loader)
        loader = make(turn % 3)
        loader.load_state_dict(state)
    assert_same(found, expected)
    assert epoch_of(loader) == []  # the state is that after the last batch


def test_between_epochs() -> None:
    whole = shuffled(2)
    expected = [epoch_of(whole) for _ in range(3)]
    for done in range(3):
        loader = shuffled(2)
        for _ in range(done):
            epoch_of(loader)
        resumed = shuffled(0)
        resumed.load_state_dict(saved(loader))
        assert_same([epoch_of(resumed) for _ in range(done, 3)], expected[done:])


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_persistent_workers(epoch: int) -> None:
    """Their seed is drawn once, so later epochs draw less than first ones."""

    def make() -> DataLoader[Any]:
        return shuffled(2, persistent_workers=True)

    whole = make()
    expected = [epoch_of(whole) for _ in range(4)]
    loader = make()
    for _ in range(epoch):
        epoch_of(loader)
    taken = [batch for _, batch in zip(range(3), loader, strict=False)]
    assert_same(taken, expected[epoch][:3])
    state = saved(loader)
    for resumed in (make(), loader):
        resumed.load_state_dict(state)
        assert_same(epoch_of(resumed), expected[epoch][3:])
        assert_same([epoch_of(resumed)], expected[epoch + 1 : epoch + 2])


def seed_of_worker(samples: list[Any]) -> int:
    return int(get_worker_info().seed)


@pytest.mark.parametrize("collate", [None, seed_of_worker])
@pytest.mark.parametrize("epochs", [0, 1, 2])
def test_persistent_workers_between_epochs(epochs: int, collate: Any) -> None:
    """Their seed is drawn before the first epoch, and not again after a resumption."""

    def make() -> DataLoader[Any]:
        return shuffled(2, persistent_workers=True, collate_fn=collate)

    whole = make()
    expected = [epoch_of(whole) for _ in range(4)]
    loader = make()
    for _ in range(epochs):
        epoch_of(loader)
    state = saved(loader)
    resumed = make()
    resumed.load_state_dict(state)
    assert saved(resumed) == state
    once_more = make()
    once_more.load_state_dict(saved(resumed))
    for one in (loader, resumed, once_more):
        assert_same([epoch_of(one) for _ in range(epochs, 4)], expected[epochs:])


def eager(workers: int, **options: Any) -> DataLoader[Any]:
    """Its sampler is iterated twice by a loader with workers, and draws each time."""
    generator = seeded()
    sampler = EagerSampler(generator)
    return ours(Tensors(), 4, sampler=sampler, generator=generator, num_workers=workers, **options)


def batched(workers: int, **options: Any) -> DataLoader[Any]:
    generator = seeded()
    sampler = BatchSampler(RandomSampler(range(LENGTH), generator=generator), 5, False)
    return ours(
        Tensors(), batch_sampler=sampler, generator=generator, num_workers=workers, **options
    )


class TestOtherKindsOfWorkers:
    """All that may change between saving and resuming: not the order, of no epoch."""

    KINDS: ClassVar[list[dict[str, Any]]] = [
        {"workers": 0},
        {"workers": 1},
        {"workers": 3, "prefetch_factor": 1},
        {"workers": 2, "persistent_workers": True},
        {"workers": 3, "persistent_workers": True, "prefetch_factor": 5},
        {"workers": 2, "where": "process"},
        {"workers": 2, "where": "process", "persistent_workers": True},
    ]
    MAKES: ClassVar[list[Make]] = [shuffled, from_global, replacing, single, eager, batched]

    def compare(self, draw: random.Random, kinds: list[dict[str, Any]]) -> None:
        """One loader runs all epochs; other loaders resume it, one after another."""
        make = draw.choice(self.MAKES)
        torch.manual_seed(5)
        whole = make(**kinds[0])
        epochs = [epoch_of(whole) for _ in range(2 + 2 * len(kinds))]
        torch.manual_seed(5)
        loader, place = make(**kinds[0]), (0, 0)
        for kind in kinds[1:]:
            number, at = place
            until = draw.randint(at, len(epochs[0]))
            iterator = iter(loader) if until > at else iter(())
            assert_same([next(iterator) for _ in range(until - at)], epochs[number][at:until])
            if at < until == len(epochs[0]):
                assert next(iterator, None) is None
                number, until = number + 1, 0
            reported = f"{make.__name__}, {kinds}: epoch {number}, batch {until}"
            for _ in range(draw.randint(0, 1) if not until else 0):
                assert_same(epoch_of(loader), epochs[number])
                number += 1
            state, outside = saved(loader), torch.get_rng_state()
            loader, place = make(**kind), (number, until)
            loader.load_state_dict(state)
            assert saved(loader) == state, reported
            torch.set_rng_state(outside)  # as programs do that draw from it
        number, at = place
        assert_same(epoch_of(loader), epochs[number][at:])
        for later in epochs[number + 1 :]:
            assert_same(epoch_of(loader), later)

    @pytest.mark.parametrize("before", KINDS[:5], ids=str)
    def test_all_pairs(self, before: dict[str, Any]) -> None:
        draw = random.Random(f"pairs {before}")
        for after in self.KINDS[:5]:
            self.compare(draw, [before, after])
        no_thread_is_left()

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", range(12))
    def test_chains(self, seed: int) -> None:
        draw = random.Random(f"chains {seed}")
        for _ in range(25):
            self.compare(draw, draw.choices(self.KINDS[:5], k=draw.randint(2, 5)))
        no_thread_is_left()

    @pytest.mark.slow
    @pytest.mark.usefixtures("few_processes")
    @pytest.mark.parametrize("seed", range(4))
    def test_chains_with_processes(self, seed: int) -> None:
        draw = random.Random(f"processes {seed}")
        kinds = [draw.choice(self.KINDS[5:]), *draw.choices(self.KINDS, k=2)]
        draw.shuffle(kinds)
        self.compare(draw, kinds)

    def test_restarted_workers_do_not_repeat_their_numbers(self) -> None:
        """Persistent workers keep their generators; those that resume them start anew."""
        loader = shuffled(2, persistent_workers=True, collate_fn=seed_of_worker)
        epoch_of(loader)
        resumed = shuffled(2, collate_fn=seed_of_worker)
        resumed.load_state_dict(saved(loader))
        seeds = [set(epoch_of(resumed)) for _ in range(2)]
        again = shuffled(2, collate_fn=seed_of_worker)
        again.load_state_dict(saved(resumed))
        seeds += [set(epoch_of(again)) for _ in range(2)]
        assert len(set[int]().union(*seeds)) == sum(map(len, seeds)) == 8

    def test_a_state_from_before_the_kind_was_saved(self) -> None:
        whole = shuffled(2, persistent_workers=True)
        expected = [epoch_of(whole) for _ in range(3)]
        loader = shuffled(2, persistent_workers=True)
        epoch_of(loader)
        state = saved(loader)
        del state["kind"]
        resumed = shuffled(3, persistent_workers=True)
        resumed.load_state_dict(state)
        assert_same([epoch_of(resumed) for _ in range(2)], expected[1:])


def test_workers_that_have_ended_leave_no_seed() -> None:
    """The next iterator draws one, resumed or not."""
    loader = shuffled(2, persistent_workers=True)
    epoch_of(loader)
    iterator = iter(loader)
    iterator.close()
    epoch_of(loader)
    assert loader._iterator is not None
    loader._iterator.close()
    resumed = shuffled(2, persistent_workers=True)
    resumed.load_state_dict(saved(loader))
    assert_same([epoch_of(resumed) for _ in range(2)], [epoch_of(loader) for _ in range(2)])


def test_a_sampler_that_draws_at_once() -> None:
    def make() -> DataLoader[Any]:
        generator = seeded()
        sampler = EagerSampler(generator)
        return ours(Tensors(), 4, sampler=sampler, generator=generator, num_workers=2)

    expected = epoch_of(make())
    loader = make()
    next(iter(loader))
    resumed = make()
    resumed.load_state_dict(saved(loader))
    assert_same(epoch_of(resumed), expected[1:])


def test_out_of_order_each_sample_comes_once() -> None:
    def make() -> DataLoader[Any]:
        return ours(Tensors(), 2, num_workers=3, in_order=False)

    for taken in range(13):
        loader = make()
        first = [labels.tolist() for _, (_, labels) in zip(range(taken), loader, strict=False)]
        resumed = make()
        resumed.load_state_dict(saved(loader))
        rest = [labels.tolist() for _, labels in resumed]
        assert sorted(one for labels in first + rest for one in labels) == list(range(LENGTH))


def test_gaps_are_not_repeated() -> None:
    """A batch that was returned before an earlier one is not returned again."""
    loader = ours(Broken(1), 2)
    iterator = iter(loader)
    with pytest.raises(KeyError):
        next(iterator)
    assert next(iterator)[1].tolist() == [2, 3]
    for options in ({}, {"num_workers": 1, "prefetch_factor": 1}, {"num_workers": 2}):
        resumed = ours(Tensors(), 2, **options)
        resumed.load_state_dict(saved(loader))
        assert [labels.tolist()[0] for _, labels in resumed] == [0, *range(4, LENGTH, 2)]


ITERABLES: list[tuple[Any, dict[str, Any]]] = [
    (Stateful, {}),
    (StatefulIterator, {}),
    (lambda: Split(40), {"replay": True}),
]


@pytest.mark.parametrize("is_persistent", [False, True])
@pytest.mark.parametrize("size", [{"batch_size": 3}, {"batch_size": 3, "drop_last": True}])
@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize(("kind", "options"), ITERABLES)
def test_iterable(
    kind: Any, options: dict[str, Any], workers: int, size: dict[str, Any], is_persistent: bool
) -> None:
    if is_persistent and not workers:
        pytest.skip("there are no workers")

    def make() -> DataLoader[Any]:
        more = {**options, **size, "persistent_workers": is_persistent}
        return ours(kind(), num_workers=workers, **more)

    expected = epoch_of(make())
    assert len(expected) > 3
    loader = make()
    for number, batch in enumerate(loader, 1):
        assert_same([batch], [expected[number - 1]])
        resumed = make()
        resumed.load_state_dict(saved(loader))
        assert_same(epoch_of(resumed), expected[number:])
        assert_same(epoch_of(resumed), expected)
    del loader, resumed
    no_thread_is_left()


class Rewinds(IterableDataset[Any]):
    """Goes back to its start when it has ended, which its last batch may find out."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Any:
        info = get_worker_info()
        number = 0 if info is None else info.id
        while self.at < 5 + number:
            self.at += 1
            yield 10 * number + self.at
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Reread(IterableDataset[Any]):
    """The same dataset, to be reread."""

    def __iter__(self) -> Any:
        return iter(range(5))


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", [Rewinds, Reread])
def test_after_a_short_last_batch(kind: Any, workers: int) -> None:
    """A part that has ended does not restart."""

    def make() -> DataLoader[Any]:
        return ours(kind(), 2, num_workers=workers, replay=kind is Reread)

    expected = epoch_of(make())
    assert any(len(batch) == 1 for batch in expected)
    loader = make()
    for number, batch in enumerate(loader, 1):
        assert_same([batch], [expected[number - 1]])
        resumed = make()
        resumed.load_state_dict(saved(loader))
        assert saved(resumed) == saved(loader)
        assert_same(epoch_of(resumed), expected[number:])
        assert_same(epoch_of(resumed), expected)


@pytest.mark.usefixtures("few_processes")
def test_processes() -> None:
    makes: list[Make] = [
        lambda where: shuffled(2, where=where),
        lambda where: ours(Stateful(), 3, num_workers=2, where=where),
    ]
    for make in makes:
        expected = epoch_of(make("thread"))
        loader = make("process")
        iterator = iter(loader)
        assert_same([next(iterator), next(iterator)], expected[:2])
        resumed = make("process")
        resumed.load_state_dict(saved(loader))
        assert_same(epoch_of(resumed), expected[2:])
        iterator.close()


def test_a_dataset_whose_length_is_not_implemented() -> None:
    class Endless(Tensors):
        def __len__(self) -> int:
            raise NotImplementedError

    def make() -> DataLoader[Any]:
        return ours(Endless(), 2, sampler=range(6))

    loader = make()
    iterator = iter(loader)
    next(iterator)
    resumed = make()
    resumed.load_state_dict(saved(loader))
    assert_same(epoch_of(resumed), list(iterator))


class TestRefused:
    def test_an_iterable_dataset_without_a_position(self) -> None:
        loader = ours(Split(), 2, num_workers=1)
        loader.state_dict()  # nothing was handed out yet
        for _ in loader:
            with pytest.raises(
                TypeError, match=r"^dataset: got a Split, which has no resumable state.*repl"
            ):
                loader.state_dict()
            break
        epoch_of(loader)
        loader.state_dict()  # the epoch is over

    def test_what_was_saved_to_be_replayed(self) -> None:
        loader = ours(Split(), 2, replay=True)
        next(iter(loader))
        other = ours(Split(), 2)
        with pytest.raises(aioqueue.InvalidArgumentError, match=r"^state: .*pass replay=True"):
            other.load_state_dict(saved(loader))

    def test_a_dataset_that_takes_no_state_any_more(self) -> None:
        loader = ours(Stateful(), 2)
        next(iter(loader))
        other = ours(Split(), 2)
        other.load_state_dict(saved(loader))
        with pytest.raises(TypeError, match=r"^dataset: got a Split without state_dict and load"):
            iter(other)

    @pytest.mark.parametrize(
        ("field", "other"),
        [
            ("batch_size", lambda: ours(Tensors(), 3)),
            ("drop_last", lambda: ours(Tensors(), 4, drop_last=True)),
            ("length", lambda: ours([1, 2], 4)),
            ("has_generator", lambda: ours(Tensors(), 4, generator=seeded())),
            ("is_iterable", lambda: ours(Stateful(), 4)),
        ],
    )
    def test_a_state_of_another_loader(self, field: str, other: Callable[[], Any]) -> None:
        loader = ours(Tensors(), 4)
        next(iter(loader))
        with pytest.raises(aioqueue.InvalidArgumentError, match=rf"^state: got one .*{field} "):
            other().load_state_dict(saved(loader))

    def test_another_number_of_workers_of_an_iterable_dataset(self) -> None:
        state = saved(ours(Stateful(), 4, num_workers=2))
        with pytest.raises(
            aioqueue.InvalidArgumentError, match=r"with num_workers 2; expected .*3"
        ):
            ours(Stateful(), 4, num_workers=3).load_state_dict(state)

    def test_another_order(self) -> None:
        loader = ours(Tensors(), 4, sampler=[5, 1, 2, 3, 4])
        next(iter(loader))
        other = ours(Tensors(), 4, sampler=[1, 5, 2, 3, 4])
        other.load_state_dict(saved(loader))
        with pytest.raises(
            aioqueue.InvalidArgumentError, match=r"^state: the sampler yields other"
        ):
            iter(other)
        with pytest.raises(
            aioqueue.InvalidArgumentError, match=r"^state: the sampler yields other"
        ):
            iter(other)
        other.load_state_dict(saved(ours(Tensors(), 4, sampler=[1])))  # where nothing was begun
        assert_same(epoch_of(other), epoch_of(ours(Tensors(), 4, sampler=[1, 5, 2, 3, 4])))

    @pytest.mark.parametrize("workers", [0, 2])
    def test_a_repaired_dataset_continues(self, workers: int) -> None:
        """The position is kept until an epoch resumes from it."""

        def make() -> tuple[Any, DataLoader[Any]]:
            sampler: Any = DistributedSampler(Tensors(), 2, 0)
            generator = seeded()
            return sampler, ours(
                Tensors(), 2, sampler=sampler, num_workers=workers, generator=generator
            )

        sampler, loader = make()
        sampler.set_epoch(3)
        iterator = iter(loader)
        next(iterator)
        state = saved(loader)
        rest = list(iterator)
        sampler, other = make()
        other.load_state_dict(state)
        for _ in range(2):
            with pytest.raises(aioqueue.InvalidArgumentError, match=r"^state: the sampler yields"):
                iter(other)
            assert saved(other) == state
        sampler.set_epoch(3)
        assert_same(epoch_of(other), rest)

    @pytest.mark.parametrize("workers", [0, 1])
    def test_what_cannot_begin_leaves_the_position(self, workers: int) -> None:
        """Of the loader, and of its own epoch before."""
        loader = ours(Stateful(), 2, num_workers=workers)
        next(iter(loader))
        state = saved(loader)
        loader.timeout = -1 if workers else 1  # refused where there are none
        loader.prefetch_factor = 0 if workers else None
        for _ in range(2):
            with pytest.raises(AssertionError):
                iter(loader)
            assert saved(loader) == state

    def test_what_is_no_state(self) -> None:
        loader = shuffled(0)
        next(iter(loader))
        state = saved(loader)
        for path in [(key,) for key in state] + [("epoch", key) for key in state["epoch"]]:
            damages: tuple[Any, ...] = (None, ..., "damage", [[]])
            for damage in damages:
                if damage is None and path in [("kind",), ("generators",)]:
                    continue  # states were written without them
                torn = copy.deepcopy(state)
                inner = torn if len(path) == 1 else torn["epoch"]
                if damage is None:
                    del inner[path[-1]]
                elif inner[path[-1]] == damage or (damage == [[]] and path[-1] == "ended_workers"):
                    continue
                else:
                    inner[path[-1]] = damage
                with pytest.raises(aioqueue.InvalidArgumentError, match=r"^state: "):
                    shuffled(0).load_state_dict(torn)
        for torn in (None, {}, [], {**state, "version": 1}):
            with pytest.raises(aioqueue.InvalidArgumentError, match=r"^state: "):
                loader.load_state_dict(torn)  # type: ignore[arg-type]
