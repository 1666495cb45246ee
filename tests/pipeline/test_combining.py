"""Several pipelines as one: zip, concat, and a mixture whose shares are of tokens."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from aioqueue import InvalidArgumentError
from aioqueue.inputs import items, merge_positions, numbers
from tests.kit.going import epochs_of, first
from tests.kit.resuming import through_json
from tests.kit.worlds import PATIENCE, World


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
