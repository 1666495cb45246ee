"""Rows that bring their sizes: any discipline keeps them, and their sum is always right."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aioqueue.core.elements.element_spec import ElementSpec
from aioqueue.core.elements.object_spec import ObjectSpec, PriorityObjectSpec
from aioqueue.core.elements.spec import Spec
from aioqueue.core.storage.protocol import Held
from aioqueue.core.storage.sized import WeighedStorage
from aioqueue.queues.fifo import fifo_storage
from aioqueue.queues.priority import heap_storage
from aioqueue.queues.shuffle import shuffle_storage
from tests.kit.striking import interrupted_everywhere

MAKERS: dict[str, tuple[Callable[[], Any], Spec]] = {
    "fifo": (lambda: fifo_storage(ObjectSpec(), None, 1), ObjectSpec()),
    "shuffle": (lambda: shuffle_storage(ObjectSpec(), None, 1, seed=3), ObjectSpec()),
    "heap": (lambda: heap_storage(PriorityObjectSpec(), None, 1), PriorityObjectSpec()),
}
STEPS = 600


@pytest.fixture(params=MAKERS)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def row_of(name: str, number: int) -> Any:
    payload = bytes(number % 7)
    return (number % 5, payload) if name == "heap" else payload


def weight_of(name: str, row: Any) -> int:
    return 8 + len(row[1]) if name == "heap" else len(row)


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_done_the_sum_is_that_of_the_rows(name: str, seed: int) -> None:
    rng = random.Random(seed)
    storage = MAKERS[name][0]()
    inside, number, claimed = 0, 0, list[Held]()
    for _ in range(STEPS):
        step = rng.choice(
            ["put", "put_many", "take", "pull", "hold", "hold_one", "restore", "free"]
        )
        if step == "put":
            row = row_of(name, number)
            storage.put(storage.weighed(row))
            inside, number = inside + weight_of(name, row), number + 1
        elif step == "put_many":
            rows = [row_of(name, number + index) for index in range(4)]
            columns = rng.choice([storage.wrap, lambda rows, n: storage.fill(None, rows, n)])(
                rows, 4
            )
            assert list(storage.weights(columns, 0, 4)) == [weight_of(name, row) for row in rows]
            storage.put_many(columns, 0, 2)
            storage.put_many(columns, 2, 3)
            storage.discard(columns, 3)
            inside += sum(weight_of(name, row) for row in rows[:3])
            number += 4
        elif step in ("take", "pull") and len(storage) >= 2 and not storage.returned:
            rows = storage.pull(2) if step == "pull" else [storage.take()]
            inside -= sum(weight_of(name, row) for row in rows)
        elif step in ("hold", "hold_one") and storage.size >= 3:
            held = Held()
            storage.hold_one(held) if step == "hold_one" else storage.hold(held, 3)
            rows = storage.columns(held)
            assert step == "hold" or held.single is rows[0]
            inside -= sum(weight_of(name, row) for row in rows)
            claimed.append(held)
        elif step in ("restore", "free") and claimed:
            held = claimed.pop(rng.randrange(len(claimed)))
            if step == "restore":
                inside += sum(weight_of(name, row) for row in storage.columns(held))
                rng.choice([storage.restore, storage.release])(held)
            else:
                storage.free(held)
        assert storage.weight == inside
        if storage.eager and storage.size:
            storage.claim(rng.randint(1, storage.size))
    assert number > 100


def test_an_interrupted_sum_is_counted_again(name: str) -> None:
    """What may be lost is the row that moves, and never the sum of those that are inside."""

    def counted(storage: Any) -> int:
        held = Held()
        storage.hold(held, storage.size)
        total = sum(weight_of(name, row) for row in storage.columns(held))
        storage.restore(held)
        return total

    def case(step: str) -> tuple[Callable[[], Any], Callable[[], None]]:
        storage = MAKERS[name][0]()
        rows = [storage.weighed(row_of(name, number)) for number in range(1, 6)]
        storage.put_many(rows[:3], 0, 3)
        held = Held()
        if step == "restore":
            storage.hold(held, 2)
        calls: dict[str, Callable[[], Any]] = {
            "put": lambda: storage.put(rows[3]),
            "put_many": lambda: storage.put_many(rows, 3, 5),
            "take": storage.take,
            "hold": lambda: storage.hold(held, 2),
            "hold_one": lambda: storage.hold_one(held),
            "restore": lambda: storage.restore(held),
        }

        def check() -> None:
            assert storage.weight == counted(storage)

        return calls[step], check

    for step in ("put", "put_many", "take", "hold", "hold_one", "restore"):
        assert interrupted_everywhere(lambda step=step: case(step)) > 2  # type: ignore[misc]


TYPED: list[tuple[ElementSpec, Any, int]] = [
    (ElementSpec([str, "int64"], [(), (2,)]), ("abc", np.arange(2)), 3 + 16),
    (ElementSpec([str], [(2,)]), np.array(["a", "bcd"], object), 16 + 4),
    (ElementSpec([object, "int8"], [(), ()]), (np.zeros(5), 1), 40 + 1),
    (ElementSpec(["int64", "float32"], [(None,), ()], ragged=True), ([1, 2, 3], 0.5), 24 + 4),
    (ElementSpec(["float32"]), np.zeros((3, 4), "float32"), 48),
    (ElementSpec(["int64", str], [(), ()], priority=True), (1, "ab"), 8 + 2),
]


@pytest.mark.parametrize(("spec", "element", "weight"), TYPED, ids=lambda value: repr(value)[:30])
def test_typed_rows_have_the_bytes_of_their_arrays_and_strings(
    spec: ElementSpec, element: Any, weight: int
) -> None:
    storage = fifo_storage(spec, None, 1)
    assert isinstance(storage, WeighedStorage)
    storage.put(storage.weighed(spec.row(element)))
    assert storage.weight == weight


def test_rows_share_no_memory_with_what_they_were_made_of() -> None:
    spec = ElementSpec([str, "int64"], [(), (2,)])
    storage: Any = fifo_storage(spec, None, 1)
    single, many = np.arange(2), np.arange(4).reshape(2, 2)
    storage.put(storage.weighed(spec.row(("a", single))))
    columns, n = spec.columns((["b", "c"], many))
    storage.put_many(storage.fill(None, columns, n), 0, n)
    single[:], many[:] = 9, 9
    texts, numbers = storage.pull(3)
    assert texts.tolist() == ["a", "b", "c"]
    assert numbers.tolist() == [[0, 1], [0, 1], [2, 3]]


def test_a_batch_of_no_rows() -> None:
    assert fifo_storage(ObjectSpec(), None, 1).empty() == []
    texts, numbers = fifo_storage(ElementSpec([str, "int64"], [(), (2,)]), None, 1).empty()
    assert (texts.shape, texts.dtype, numbers.shape) == ((0,), np.dtype(object), (0, 2))


@pytest.mark.parametrize("make", [fifo_storage, heap_storage, shuffle_storage])
def test_rows_of_one_size_bring_none(make: Callable[..., Any]) -> None:
    spec = ElementSpec(["int64", "float32"], [(), (3,)], priority=make is heap_storage)
    storage = make(spec, None, 100)
    assert storage.row_bytes == 20
    storage.put((1, np.zeros(3, "float32")))
    assert storage.weight == 20
    assert make(spec, None).row_bytes == 20
    with pytest.raises(NotImplementedError):
        storage.weight_of(())
    with pytest.raises(NotImplementedError):
        storage.weights([], 0, 0)
