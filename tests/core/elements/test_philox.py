"""The random words: known answers, and the order of draws in plain Python."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from aioqueue.core.elements.component import Component
from aioqueue.core.elements.philox import (
    DEFAULT_GRAPH_SEED,
    PhiloxWords,
    philox_blocks,
    resolve_seed,
)
from aioqueue.core.storage.protocol import Held
from aioqueue.core.storage.shelf import ObjectShelf, Shelf
from aioqueue.core.storage.shuffle import ShuffleStorage
from aioqueue.core.storage.typed_shelf import TypedShelf
from aioqueue.errors import InvalidArgumentError

ONES = 0xFFFFFFFF


def block(counter: tuple[int, int, int, int], key: tuple[int, int]) -> list[int]:
    """Philox 4x32-10 after its authors' paper: one block, in Python's integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p2 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (p2 >> 32) ^ c1 ^ k0, p2 & ONES, (p0 >> 32) ^ c3 ^ k1, p0 & ONES
        k0, k1 = (k0 + 0x9E3779B9) & ONES, (k1 + 0xBB67AE85) & ONES
    return [c0, c1, c2, c3]


def words_of(seed: int, seed2: int) -> Iterator[int]:
    """The words that TensorFlow 1 draws with."""
    for number in itertools.count():
        counter = (number & ONES, number >> 32, seed2 & ONES, seed2 >> 32)
        yield from block(counter, (seed & ONES, seed >> 32))


# Published with Random123 (kat_vectors): counter, key, answer.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ((ONES,) * 4, (ONES, ONES), [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], answer: list[int]
) -> None:
    assert block(counter, key) == answer
    number, seed2 = counter[0] | counter[1] << 32, counter[2] | counter[3] << 32
    assert philox_blocks(key[0] | key[1] << 32, seed2, number, 1).tolist() == answer


def test_blocks_do_not_depend_on_how_many_are_made() -> None:
    together = philox_blocks(5, 6, 0, 29).tolist()
    apart = [word for number in range(29) for word in philox_blocks(5, 6, number, 1).tolist()]
    assert together == apart == list(itertools.islice(words_of(5, 6), 4 * 29))


@pytest.mark.parametrize("count", [0, 3, 20])
def test_blocks_may_be_left_out(count: int) -> None:
    whole = philox_blocks(5, 6, 2, 3 * count).reshape(-1, 4)
    assert philox_blocks(5, 6, 2, count, stride=3).reshape(-1, 4).tolist() == whole[::3].tolist()


def test_the_counter_carries_into_its_second_word() -> None:
    expected = block((ONES, 0, 2, 0), (1, 0)) + block((0, 1, 2, 0), (1, 0))
    assert philox_blocks(1, 2, ONES, 2).tolist() == expected
    assert philox_blocks(1, 2, ONES, 100).tolist()[:8] == expected


@pytest.mark.parametrize("pair", [(0, 1), (87654321, 3), (2**31 - 2, 2**31 - 2), (7, 0)])
def test_words_are_those_of_the_description(pair: tuple[int, int]) -> None:
    assert PhiloxWords(pair).take(70) == list(itertools.islice(words_of(*pair), 70))


@pytest.mark.parametrize(
    "chunks", [[1] * 300, [300], [3, 5, 7, 285], [63, 1, 2, 64, 170], [0, 100, 0, 200]]
)
def test_words_are_the_same_in_any_chunks(chunks: list[int]) -> None:
    words = PhiloxWords(11)
    taken = [word for chunk in chunks for word in words.take(chunk)]
    expected = list(itertools.islice(words_of(DEFAULT_GRAPH_SEED, 11), 300))
    assert taken == expected


def test_more_words_than_are_made_at_once() -> None:
    one, other = PhiloxWords(3), PhiloxWords(3)
    taken = other.take(9000)
    assert taken == [word for _ in range(90) for word in one.take(100)]
    assert all(type(word) is int and 0 <= word <= ONES for word in taken)


# Seeds.


@pytest.mark.parametrize(
    ("seed", "pair"),
    [
        (3, (87654321, 3)),
        (0, (87654321, 0)),
        (np.int64(3), (87654321, 3)),
        ((1, 2), (1, 2)),
        ([1, 2], (1, 2)),
        ((0, 0), (0, 2**31 - 1)),
        ((2**31 - 1, 2**31 - 1), (0, 2**31 - 1)),
        ((2**31, 5), (1, 5)),
        (-1, (87654321, 2**31 - 2)),
    ],
)
def test_seeds_are_resolved_by_the_rules_of_tensorflow(seed: Any, pair: tuple[int, int]) -> None:
    assert resolve_seed(seed) == pair


def test_no_seed_is_fresh_each_time() -> None:
    assert len({resolve_seed(None) for _ in range(5)}) == 5
    assert PhiloxWords(None).take(4) != PhiloxWords(None).take(4)


@pytest.mark.parametrize("taken", [0, 1, 3, 64, 70])
@pytest.mark.parametrize("skipped", [0, 1, 2, 63, 64, 65, 1000, 4 * 2**40 + 3])
def test_words_that_are_left_out(taken: int, skipped: int) -> None:
    """However many there are: nobody counts to 2**42 within a test."""
    words = PhiloxWords(5)
    words.take(taken)
    words.skip(skipped)
    block, word = divmod(taken + skipped, 4)
    assert words.take(9) == philox_blocks(*resolve_seed(5), block, 4)[word : word + 9].tolist()


@pytest.mark.parametrize("seed", ["7", 1.5, True, (1,), (1, 2, 3), (1, "2"), (1, None), {1: 2}])
def test_other_seeds_are_refused(seed: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"seed: got .*; expected None, an int"):
        resolve_seed(seed)


# Draws.


class Buffer:
    """The shuffle buffer after section 3, sharing nothing with the storage."""

    def __init__(self, seed: int, seed2: int) -> None:
        self.words = words_of(seed, seed2)
        self.rows: list[int] = []

    def draw(self) -> int:
        index = next(self.words) % len(self.rows)
        row = self.rows[index]
        self.rows[index] = self.rows[-1]
        self.rows.pop()
        return row


SHELVES: dict[str, Callable[[], Shelf]] = {
    "objects": ObjectShelf,
    "typed": lambda: TypedShelf((Component("0", "int64", ()),), None),
}


@pytest.fixture(params=SHELVES)
def shelf(request: pytest.FixtureRequest) -> Shelf:
    return SHELVES[request.param]()


def number(row: Any) -> int:
    return int(row[0]) if isinstance(row, tuple) else int(row)


def rows(columns: Any) -> list[Any]:
    return columns[0].tolist() if isinstance(columns[0], np.ndarray) else list(columns)


def rows_in(storage: ShuffleStorage, held: Held) -> list[int]:
    return [number(row) for row in rows(storage.columns(held))]


@pytest.mark.parametrize("pair", [(87654321, 3), (1, 2), (0, 2**31 - 1)])
def test_draws_between_enqueues(shelf: Shelf, pair: tuple[int, int]) -> None:
    storage, buffer = ShuffleStorage(shelf, pair), Buffer(*pair)
    plain = isinstance(shelf, ObjectShelf)
    for value in range(40):
        storage.put(value if plain else (value,))
        buffer.rows.append(value)
        if value % 3 == 2:
            assert number(storage.take()) == buffer.draw()
        if value % 10 == 9:
            drawn = [number(row) for row in rows(storage.pull(4))]
            assert drawn == [buffer.draw() for _ in range(4)]
    assert len(storage) == len(buffer.rows)


def test_a_released_batch_goes_back_last_drawn_first(shelf: Shelf) -> None:
    storage, buffer = ShuffleStorage(shelf, (5, 6)), Buffer(5, 6)
    plain = isinstance(shelf, ObjectShelf)
    columns: list[Any] = list(range(9)) if plain else [np.arange(9)]
    storage.put_many(columns, 0, 9)
    buffer.rows += range(9)
    held = Held()
    storage.hold(held, 3)
    storage.claim(2)
    drawn = [buffer.draw() for _ in range(5)]
    assert rows_in(storage, held) == drawn[:3]
    storage.release(held)
    buffer.rows += reversed(drawn)
    again = Held()
    storage.hold(again, 9)
    assert rows_in(storage, again) == [buffer.draw() for _ in range(9)]
