"""Whatever threads and event loops do to a queue at once, it looks as if they had taken turns."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from proofs.effort import EFFORT
from proofs.linearizability import (
    NotLinearizableError,
    Op,
    Spec,
    UndecidedError,
    check,
    check_joins,
)
from proofs.stress import Load

HISTORIES = {
    "objects": 2,
    "fifo": 2,
    "large": 2,
    "padding": 2,
    "shuffle": 2,
    "priority": 2,
    "weighty": 2,
}
"""How many of each kind of queue, and of each of the six ways to work at it."""
ENDINGS = {"to the end": None, "closed": False, "closed and cancelled": True}


SWITCHES = {"usual switches": 5e-3, "many switches": 1e-6}
# Kinds differ in how they keep rows, and that matters to threads where they switch often.
SWITCHES_OF_KINDS = [
    (switches, kind)
    for switches in SWITCHES
    for kind in HISTORIES
    if EFFORT > 1 or switches == "many switches" or kind in ("objects", "fifo")
]


@pytest.fixture
def _switches(switches: str) -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCHES[switches])
    yield
    sys.setswitchinterval(before)


@pytest.mark.slow(but=[f"many switches-{kind}-interrupted-closed and" for kind in HISTORIES])
@pytest.mark.usefixtures("_switches")
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("interrupts", [False, True], ids=["", "interrupted"])
@pytest.mark.parametrize(("switches", "kind"), SWITCHES_OF_KINDS)
def test_histories(switches: str, kind: str, interrupts: bool, ending: str) -> None:
    """Half of the histories are made with threads that switch as often as they can."""
    half = HISTORIES[kind] * EFFORT // 2
    first = half if switches == "many switches" else 0
    most = undecided = joins = 0
    for seed in range(first, first + half):
        load = Load(seed, kind, interrupts=interrupts, ends_with=ENDINGS[ending])
        history = load.run()
        assert len(history) >= 1000
        joins += check_joins(history)
        try:
            most = max(most, check(history, load.spec).configurations)
        except UndecidedError:
            undecided += 1
    print(f"\n{half} histories, at most {most} configurations, {undecided} undecided,", end=" ")
    print(f"{joins} joins that ended")
    assert undecided <= 1 + half // 20


def ops(*reported: tuple[Any, ...], **options: Any) -> list[Op]:
    """Calls from ``(start, end, method, rows)``, and what else an `Op` has."""
    made = []
    for start, end, method, rows, *more in reported:
        op = Op(method, start, end, rows=tuple(rows), n=max(1, len(rows)), **options)
        for name, value in dict(*more).items():
            setattr(op, name, value)
        made.append(op)
    return made


History = dict[str, tuple[Spec, list[tuple[Any, ...]]]]
FIFO = Spec("fifo", 2)
PRIORITY = Spec("priority", 5)  # the priorities of 0, 1, 2, 3, 4 are 0, 2, 4, 1, 3
SHUFFLE = Spec("shuffle", 3, keep=1)
UNDONE = {"outcome": "undone"}
EMPTY, FULL = {"outcome": "empty"}, {"outcome": "full"}
CLOSED, OUT = {"outcome": "closed"}, {"outcome": "out of range"}

LEGAL: History = {
    "one after the other": (
        FIFO,
        [(0, 1, "enqueue", [1]), (2, 3, "enqueue", [2]), (4, 5, "dequeue", [1])],
    ),
    "in either order, for they overlap": (
        FIFO,
        [(0, 3, "enqueue", [1]), (0, 3, "enqueue", [2]), (4, 5, "dequeue", [2])],
    ),
    "taken before the enqueue returned": (
        FIFO,
        [(0, 9, "enqueue", [1]), (2, 3, "dequeue", [1]), (4, 5, "dequeue_nowait", [], EMPTY)],
    ),
    "empty while it was": (FIFO, [(0, 5, "enqueue", [1]), (1, 2, "dequeue_nowait", [], EMPTY)]),
    "full while it was": (
        Spec("fifo", 1),
        [(0, 5, "enqueue", [1]), (3, 4, "enqueue_nowait", [], FULL), (4, 6, "dequeue", [1])],
    ),
    "a batch enters row by row": (
        Spec("fifo", 1),
        [(0, 9, "enqueue_many", [1, 2]), (1, 2, "dequeue", [1]), (5, 6, "dequeue", [2])],
    ),
    "a batch that waits makes room": (
        Spec("fifo", 1),
        [(0, 9, "dequeue_many", [1, 2]), (1, 2, "enqueue", [1]), (5, 6, "enqueue", [2])],
    ),
    "an enqueue that began before the close": (
        FIFO,
        [(0, 9, "enqueue", [1]), (1, 2, "close", []), (4, 5, "dequeue", [1])],
    ),
    "fewer, for it is closed": (
        FIFO,
        [(0, 1, "enqueue", [1]), (2, 3, "close", []), (4, 5, "dequeue_up_to", [1], {"n": 3})],
    ),
    "what was held by who was cancelled is overtaken": (
        FIFO,
        [
            (0, 9, "dequeue", [], UNDONE | {"two_step": True}),
            (1, 2, "enqueue", [1]),
            (3, 4, "enqueue", [2]),
            (5, 6, "dequeue", [2]),
            (10, 11, "dequeue", [1]),
        ],
    ),
    "by priority": (
        PRIORITY,
        [(0, 1, "enqueue_many", [1, 2, 3]), (2, 3, "dequeue_many", [3, 1, 2])],
    ),
    "equal priorities as they came": (
        PRIORITY,
        [(0, 1, "enqueue_many", [5, 0, 10]), (2, 3, "dequeue_many", [5, 0, 10])],
    ),
    "in any order": (SHUFFLE, [(0, 1, "enqueue_many", [1, 2, 3]), (2, 3, "dequeue", [3])]),
    "the last one, after the close": (
        SHUFFLE,
        [(0, 1, "enqueue", [1]), (2, 3, "close", []), (4, 5, "dequeue", [1])],
    ),
}

ILLEGAL: History = {
    "swap": (
        FIFO,
        [
            (0, 1, "enqueue", [1]),
            (2, 3, "enqueue", [2]),
            (4, 5, "dequeue", [2]),
            (6, 7, "dequeue", [1]),
        ],
    ),
    "loss": (
        FIFO,
        [(0, 1, "enqueue", [1]), (2, 3, "dequeue_nowait", [], EMPTY)],
    ),
    "loss of one that is never seen again": (
        FIFO,
        [(0, 1, "enqueue", [1]), (2, 3, "enqueue", [2]), (4, 5, "dequeue", [2])],
    ),
    "loss at the end": (
        FIFO,
        [(0, 1, "enqueue", [1]), (2, 3, "close", []), (4, 5, "dequeue", [], OUT)],
    ),
    "duplicate": (
        FIFO,
        [(0, 1, "enqueue", [1]), (2, 3, "dequeue", [1]), (4, 5, "dequeue", [1])],
    ),
    "out of nothing": (FIFO, [(0, 1, "dequeue", [1])]),
    "before it went in": (FIFO, [(0, 1, "dequeue", [1]), (2, 3, "enqueue", [1])]),
    "empty, though another one was never taken": (
        FIFO,
        [
            (0, 1, "enqueue", [1]),
            (2, 3, "enqueue", [2]),
            (4, 5, "dequeue", [1]),
            (6, 7, "dequeue_nowait", [], EMPTY),
            (8, 9, "dequeue", [2]),
        ],
    ),
    "full, though there was room": (
        FIFO,
        [(0, 1, "enqueue", [1]), (2, 3, "enqueue_nowait", [], FULL)],
    ),
    "more than fit": (
        Spec("fifo", 1),
        [(0, 1, "enqueue", [1]), (2, 3, "enqueue", [2]), (4, 5, "dequeue", [1])],
    ),
    "overtaking of one who waits": (
        Spec("fifo", 1),
        [
            (0, 1, "enqueue", [1]),
            (2, 3, "dequeue", [1]),
            (4, 5, "enqueue", [2]),
            (6, 7, "dequeue", [2]),
            (8, 9, "enqueue", [4]),
            (10, 20, "enqueue", [3]),
            (11, 12, "dequeue", [3]),
            (13, 14, "dequeue", [4]),
        ],
    ),
    "overtaking though no one was cancelled": (
        FIFO,
        [
            (1, 2, "enqueue", [1]),
            (3, 4, "enqueue", [2]),
            (5, 6, "dequeue", [2]),
            (10, 11, "dequeue", [1]),
        ],
    ),
    "overtaking of one whom a thread that timed out cannot have held": (
        FIFO,
        [
            (0, 9, "dequeue", [], UNDONE),
            (1, 2, "enqueue", [1]),
            (3, 4, "enqueue", [2]),
            (5, 6, "dequeue", [2]),
            (10, 11, "dequeue", [1]),
        ],
    ),
    "another row within a batch": (
        Spec("fifo"),
        [
            (0, 9, "enqueue_many", [1, 2]),
            (0, 9, "enqueue", [3]),
            (10, 11, "dequeue_many", [1, 3, 2]),
        ],
    ),
    "a batch in the wrong order": (
        FIFO,
        [(0, 1, "enqueue_many", [1, 2]), (2, 3, "dequeue_many", [2, 1])],
    ),
    "fewer, though it is open": (
        FIFO,
        [(0, 1, "enqueue", [1]), (2, 3, "dequeue_up_to", [1], {"n": 3})],
    ),
    "fewer when expired, though there were more": (
        FIFO,
        [
            (0, 1, "enqueue_many", [1, 2]),
            (2, 3, "dequeue_up_to", [1], {"n": 3, "expired": True}),
        ],
    ),
    "an enqueue that began after the close": (
        FIFO,
        [(0, 1, "close", []), (2, 3, "enqueue", [1])],
    ),
    "closed, though it was not": (FIFO, [(0, 1, "enqueue", [], CLOSED)]),
    "an enqueue after the end was told": (
        FIFO,
        [
            (0, 9, "enqueue", [1]),
            (1, 2, "close", []),
            (3, 4, "dequeue", [], OUT),
            (10, 11, "dequeue", [1]),
        ],
    ),
    "not the smallest": (
        PRIORITY,
        [(0, 1, "enqueue_many", [1, 3]), (2, 3, "dequeue", [1]), (4, 5, "dequeue", [3])],
    ),
    "equal priorities swapped": (
        PRIORITY,
        [(0, 1, "enqueue_many", [0, 5]), (2, 3, "dequeue", [5]), (4, 5, "dequeue", [0])],
    ),
    "less than must stay inside": (SHUFFLE, [(0, 1, "enqueue", [1]), (2, 3, "dequeue", [1])]),
}


class TestTheChecker:
    @pytest.mark.parametrize("name", LEGAL)
    def test_explains(self, name: str) -> None:
        spec, reported = LEGAL[name]
        verdict = check(ops(*reported), spec)
        explained = [op for op in ops(*reported) if op.outcome != "undone"]
        assert {str(op) for op in verdict.order} == {str(op) for op in explained}

    @pytest.mark.parametrize("name", ILLEGAL)
    def test_refuses(self, name: str) -> None:
        spec, reported = ILLEGAL[name]
        with pytest.raises(NotLinearizableError):
            check(ops(*reported), spec)

    def test_reports_how_far_it_came(self) -> None:
        spec, reported = ILLEGAL["swap"]
        with pytest.raises(NotLinearizableError) as caught:
            check(ops(*reported), spec)
        assert "of 4 moves can be explained" in str(caught.value)
        assert "enqueue [1]: done" in str(caught.value)

    def test_gives_up(self) -> None:
        spec, reported = LEGAL["one after the other"]
        with pytest.raises(UndecidedError):
            check(ops(*reported), spec, limit=2)

    @pytest.mark.parametrize("kind", ["objects", "shuffle", "priority"])
    @pytest.mark.parametrize("damage", ["swap", "loss", "duplicate"])
    def test_notices_one_wrong_result_in_a_real_history(self, kind: str, damage: str) -> None:
        """Of threads alone, with nothing interrupted: there the rules are strict."""
        seed = next(seed for seed in range(99) if Load(seed, kind).has_no_loops)
        load = Load(seed, kind, turns=40)
        history = sorted(load.run(), key=lambda op: op.start)
        check(history, load.spec)
        spoil(history, damage)
        with pytest.raises(NotLinearizableError):
            check(history, load.spec)


def spoil(history: list[Op], damage: str) -> None:
    """Change one result, somewhere in the middle."""
    takes = [op for op in history if op.is_take and op.rows]
    one = takes[len(takes) // 2]
    if damage == "swap":
        # With a row that went in long after: it cannot have come out here.
        other = takes[-1]
        kept = one.rows
        one.rows, other.rows = (other.rows[0], *kept[1:]), (kept[0], *other.rows[1:])
    elif damage == "loss":
        one.rows, one.n = one.rows[1:], one.n - 1
    else:
        one.rows, one.n = (*one.rows, takes[-1].rows[0]), one.n + 1


JOINED: dict[str, tuple[bool, list[tuple[Any, ...]]]] = {
    "when all is done": (
        True,
        [(0, 1, "enqueue", [1]), (2, 3, "task_done", []), (4, 5, "join", [])],
    ),
    "when nothing is certainly in": (
        True,
        [(0, 9, "enqueue", [1]), (2, 3, "join", [])],
    ),
    "when the last may be done": (
        True,
        [(0, 1, "enqueue_many", [1, 2]), (2, 3, "task_done", [], {"n": 2}), (1, 4, "join", [])],
    ),
    "between two elements": (
        True,
        [
            *[(0, 1, "enqueue", [1]), (3, 4, "task_done", []), (5, 6, "enqueue", [2])],
            (2, 9, "join", []),
        ],
    ),
    "too early": (False, [(0, 1, "enqueue", [1]), (2, 3, "join", []), (4, 5, "task_done", [])]),
    "with one of two": (
        False,
        [(0, 1, "enqueue_many", [1, 2]), (2, 3, "task_done", []), (2, 9, "join", [])],
    ),
    "undone, and so at any time": (
        True,
        [(0, 1, "enqueue", [1]), (2, 3, "join", [], UNDONE)],
    ),
}


@pytest.mark.parametrize("name", JOINED)
def test_a_join_ends_where_all_may_be_done(name: str) -> None:
    is_legal, reported = JOINED[name]
    if is_legal:
        check_joins(ops(*reported))
    else:
        with pytest.raises(NotLinearizableError, match="unfinished"):
            check_joins(ops(*reported))
