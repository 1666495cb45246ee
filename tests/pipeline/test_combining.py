"""Several pipelines as one: zip, concat, and a mixture whose shares are of tokens."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from aioqueue import InvalidArgumentError
from aioqueue.inputs import from_iterable, items, merge_positions, numbers
from aioqueue.pipeline.nodes.node import READ_TOGETHER
from aioqueue.pipeline.source_node import SourceNode
from tests.kit.going import epochs_of, first
from tests.kit.resuming import through_json
from tests.kit.worlds import PATIENCE, World


@pytest.fixture
def takes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many items each reading of a source gives."""
    found: list[int] = []
    read = SourceNode.next_entries

    def counting(node: SourceNode, n: int) -> Any:
        entries = read(node, n)
        found.append(len(entries))
        return entries

    monkeypatch.setattr(SourceNode, "next_entries", counting)
    return found


async def test_every_epoch_restarts(world: World) -> None:
    letters = items(["abcd", "b", "c"])
    zipped = numbers(5).prepare(str).zip(letters, numbers(9))
    pairs = [("0", "abcd", 0), ("1", "b", 1), ("2", "c", 2)]
    assert len(zipped) == 3
    assert await epochs_of(world, zipped.epochs(2)) == [pairs, pairs]
    chain = numbers(2).concat(letters.prepare(str.upper), numbers(0), numbers(1))
    values = [0, 1, "ABCD", "B", "C", 0]
    assert len(chain) == 6
    assert await epochs_of(world, chain.epochs(2)) == [values, values]


async def test_an_epoch_that_is_left_does_not_move_the_next(world: World) -> None:
    pipeline = numbers(6, shuffle=True, seed=1).zip(numbers(6, shuffle=True, seed=1))
    epochs = pipeline.epochs(3)
    for (pair,) in await first(world, epochs, 1):
        assert pair[0] == pair[1]


class TestZip:
    def test_strict_names_the_source_that_has_ended(self) -> None:
        assert list(numbers(3).zip(numbers(3), strict=True)) == [(0, 0), (1, 1), (2, 2)]
        for left, right, ended in ((2, 3, 0), (3, 2, 1)):
            pipeline = numbers(left).zip(numbers(right), strict=True)
            with pytest.raises(ExceptionGroup) as error:
                list(pipeline)
            (failure,) = error.value.exceptions
            assert isinstance(failure, InvalidArgumentError)
            assert f"after 2 examples of each, number {ended} has ended" in str(failure)
            assert "in the stage `zip of 2 strict`" in "".join(failure.__notes__)

    def test_it_waits_for_no_more_than_one_example_of_each(self) -> None:
        """Who feeds both in turns waits with the next of one until that of the other was taken."""
        left: queue.Queue[int] = queue.Queue(1)
        right: queue.Queue[int] = queue.Queue(1)

        def fed_by(one: queue.Queue[int]) -> Any:
            return from_iterable(lambda: (one.get(timeout=PATIENCE) for _ in range(40)))

        def feed() -> None:
            for number in range(40):
                left.put(number, timeout=PATIENCE)
                right.put(-number, timeout=PATIENCE)

        feeder = threading.Thread(target=feed)
        feeder.start()
        batches = list(fed_by(left).zip(fed_by(right)).batch(8, collate=list))
        feeder.join()
        assert [pair for batch in batches for pair in batch] == [(n, -n) for n in range(40)]

    def test_what_cannot_be_read_again_is_read_one_by_one(self) -> None:
        read = []

        def once() -> Iterator[int]:
            for number in range(100):
                read.append(number)
                yield number

        (batch,) = from_iterable(once()).zip(numbers(5)).batch(50)
        assert len(batch[0]) == 5
        assert len(read) == 6  # the last one has no partner

    def test_items_in_memory_are_taken_together(self, takes: list[int]) -> None:
        assert len(list(numbers(1000).zip(numbers(1000)).batch(100))) == 10
        assert len(takes) <= 2 * 12
        takes.clear()
        assert len(list(numbers(1000).zip(numbers(1000)))) == 1000
        assert len(takes) <= 2 * (1000 / READ_TOGETHER + 2)

    def test_no_more_than_wanted_are_taken_together(self, takes: list[int]) -> None:
        assert len(list(numbers(1000).zip(numbers(1000)).take(5))) == 5
        assert sum(takes) <= 2 * 5

    def test_a_position_behind_each_pair(self) -> None:
        """Of some pairs one example, of others both were fetched ahead."""

        def pipeline() -> Any:
            slow = numbers(50, seed=2).prepare(abs, workers=2).shuffle(5)
            return numbers(60, seed=1).enumerate().zip(slow, numbers(50).shuffle(3))

        with pipeline().epochs(1) as epochs:
            whole, states = [], []
            for pair in next(epochs):
                whole.append(pair)
                states.append(through_json(epochs.state_dict()))
        assert len(whole) == 50
        for at in range(0, 50, 7):
            assert list(pipeline().resume(states[at])) == whole[at + 1 :]

    def test_a_state_between_two_examples_of_a_tuple(self) -> None:
        """Another thread asks for it while one example is there and the other is not."""
        is_waiting, may_go = threading.Event(), threading.Event()

        def slow(number: int) -> int:
            if number == 1 and not may_go.is_set():
                is_waiting.set()
                assert may_go.wait(PATIENCE)
            return number

        def pipeline() -> Any:
            quick = numbers(4, seed=1).shuffle(2)
            return quick.zip(numbers(4, seed=2).prepare(slow, workers=1)).batch(1, collate=list)

        whole = []
        with pipeline().epochs(1) as epochs:
            epoch = next(epochs)
            whole.append(next(epoch))
            taker = threading.Thread(target=lambda: whole.append(next(epoch)))
            taker.start()
            assert is_waiting.wait(PATIENCE)
            state = through_json(epochs.state_dict())
            may_go.set()
            taker.join()
            whole += epoch
        assert len(whole) == 4
        assert list(pipeline().resume(state)) == whole[1:]

    def test_ranks_have_the_same_pairs_and_cannot_change_in_number(self) -> None:
        pipeline = numbers(7, shuffle=True, seed=1).zip(numbers(7, shuffle=True, seed=1))
        ranks = [pipeline.shard(rank, 2) for rank in range(2)]
        pairs = [pair for rank in ranks for pair in rank]
        assert len(pairs) == 8
        assert all(left == right for left, right in pairs)
        with pytest.raises(InvalidArgumentError, match="`zip`, which pairs"):
            merge_positions([rank.epochs(1).state_dict() for rank in ranks])


class TestTokens:
    def test_shares_are_of_tokens(self) -> None:
        short, long = items([[0] * 2] * 300), items([[1] * 10] * 60)
        mixture = list(short.mix(long, weights=[3, 1], tokens=len))
        for count in (10, 100, 200):
            part = [token for one in mixture[:count] for token in one]
            assert abs(part.count(0) - 0.75 * len(part)) <= 10  # one example
        assert len(mixture) == 360

    def test_what_counts_them_may_fail(self) -> None:
        def broken(value: int) -> int:
            raise ValueError("no tokens")

        cases: list[tuple[Any, str]] = [(broken, "no tokens"), (lambda _: -1, "tokens: got -1")]
        for tokens, message in cases:
            with pytest.raises(ExceptionGroup) as error:
                list(numbers(3).mix(numbers(3), tokens=tokens))
            assert message in str(error.value.exceptions[0])
            assert "in the stage `mix 0.5 : 0.5 of " in "".join(error.value.exceptions[0].__notes__)
        with pytest.raises(InvalidArgumentError, match="tokens: got 3"):
            numbers(3).mix(numbers(3), tokens=3)  # type: ignore[arg-type]

    def test_a_position_of_draws_is_not_one_of_tokens(self) -> None:
        drawn = numbers(3, seed=1).mix(numbers(3, seed=2), seed=3)
        counted = numbers(3, seed=1).mix(numbers(3, seed=2), seed=3, tokens=int)
        with pytest.raises(InvalidArgumentError, match="tokens"):
            counted.resume(drawn.epochs(1).state_dict())


def test_what_is_refused() -> None:
    device = numbers(3).batch(1).to_device("cpu") if _has_torch() else None
    for name in ("zip", "concat"):
        with pytest.raises(InvalidArgumentError, match="others: got none"):
            getattr(numbers(3), name)()
        with pytest.raises(InvalidArgumentError, match="others: got 5"):
            getattr(numbers(3), name)(5)
        if device is not None:
            with pytest.raises(InvalidArgumentError, match=f"`to_device` after `{name}`"):
                getattr(numbers(3), name)(device)


def _has_torch() -> bool:
    try:
        import torch  # noqa: F401
    except ImportError:
        return False
    return True


def test_drawn_beside_each_other() -> None:
    pipeline = numbers(3).zip(numbers(4).prepare(str)).concat(numbers(2))
    assert [line.split()[:2] for line in str(pipeline).splitlines()[1:]] == [
        ["numbers", "of"],
        ["zip", "of"],
        ["+", "numbers"],
        ["prepare", "str"],
        ["concat", "of"],
        ["+", "numbers"],
    ]
    assert pipeline._repr_svg_().count("<rect") == 6


def test_a_shuffle_takes_items_in_memory_together(takes: list[int]) -> None:
    assert sorted(numbers(1000).shuffle(10)) == list(range(1000))
    assert len(takes) <= 1000 / READ_TOGETHER + 3
    takes.clear()
    assert len(list(numbers(1000).shuffle(10).take(5))) == 5
    assert sum(takes) <= 15
