"""What is sent for each batch: it arrives unchanged, and Ray sees every reference."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from aioqueue.errors import OutOfRangeError
from aioqueue.ray.actor_handle import ActorHandle
from aioqueue.ray.client_registry import CallerId
from aioqueue.ray.messages import SMALL, Answer, Description
from aioqueue.ray.packing import (
    packed,
    packed_answer,
    sealed_unless_references,
    unpacked,
    unpacked_answer,
)
from aioqueue.ray.sealing import opened, sealed, sealed_bytes
from aioqueue.ray.segments import Payload

CALLER = CallerId("one", "life", None, Description("FIFOQueue", 8, 0, None, None, None, None, None))
SENDER = pickle.dumps(CALLER)

ROWS = np.arange(6, dtype="int16").reshape(2, 3)
REFERENCE = object()

LEFT_TO_RAY = {
    "a reference": Payload(None, (REFERENCE,)),
    "objects of users": Payload([object(), object()]),
    "an array of objects": Payload([np.array([object(), None])]),
    "objects with much in them": Payload(bytes(SMALL + 1)),
    "arrays of different shapes": Payload([[ROWS, ROWS[:1]]]),
    "a large array": Payload([np.zeros(SMALL + 1, "uint8")]),
    "an array of a subclass": Payload([np.ma.masked_array(ROWS)]),
}


def test_a_small_batch_is_bytes() -> None:
    sent = packed(SENDER, 3, 1, Payload([ROWS, ROWS.T]), 2, 6, None, False, ("book", 4))
    assert isinstance(sent, bytes)
    caller, number, known, payload, *rest = unpacked(sent)
    assert (caller, number, known, rest) == (CALLER, 3, 1, [2, 6, None, False, ("book", 4)])
    assert isinstance(payload, Payload)
    assert payload.ref == ()
    assert payload.columns is not None
    for column, original in zip(payload.columns, (ROWS, ROWS.T), strict=True):
        np.testing.assert_array_equal(column, original)
        assert column.dtype == original.dtype


def test_a_call_without_rows_is_bytes() -> None:
    sent = packed(SENDER, 3, 1, 32, True, None, [1, 2])
    assert isinstance(sent, bytes)
    assert unpacked(sent) == (CALLER, 3, 1, 32, True, None, [1, 2])


@pytest.mark.parametrize("payload", LEFT_TO_RAY.values(), ids=LEFT_TO_RAY)
def test_what_ray_has_to_see_is_beside_the_bytes(payload: Payload) -> None:
    sent = packed(SENDER, 3, 1, payload, 2, 6, [5, 4], True, None)
    assert sent[1] is payload
    found = unpacked(sent)
    assert found[:3] == (CALLER, 3, 1)
    assert found[3] is payload
    assert found[4:] == (2, 6, [5, 4], True, None)


@pytest.mark.parametrize("payload", LEFT_TO_RAY.values(), ids=LEFT_TO_RAY)
def test_an_answer_with_what_ray_has_to_see_is_as_it_is(payload: Payload) -> None:
    answer = Answer(runs=[(Payload([ROWS]), range(2)), (payload, [0])])
    assert packed_answer(answer) is answer
    assert unpacked_answer(answer) is answer


def test_an_error_is_as_it_is() -> None:
    answer = Answer(OutOfRangeError("over", queue="q", requested=1, remaining=0))
    assert packed_answer(answer) is answer


def test_all_other_answers_are_bytes() -> None:
    assert unpacked_answer(packed_answer(Answer(rows=3, freed=[1]))) == Answer(rows=3, freed=[1])
    sent = packed_answer(Answer(runs=[(Payload([ROWS]), range(1, 2))]))
    assert isinstance(sent, bytes)
    ((payload, rows),) = unpacked_answer(sent).runs
    np.testing.assert_array_equal(payload.columns[0], ROWS)
    assert rows == range(1, 2)


def test_the_caller_is_pickled_once() -> None:
    pickled = []
    sent = []

    class Method:
        def remote(self, argument: Any) -> None:
            sent.append(argument)

    class Actor:
        enqueue = dequeue = Method()
        heartbeat = "its own"

    def dumps(caller: Any) -> bytes:
        pickled.append(caller)
        return pickle.dumps(caller)

    handle = ActorHandle(Actor(), dumps)
    for number in range(3):
        handle.dequeue.remote(CALLER, number, 0, 1, False, None, [])
    assert pickled == [CALLER]
    assert [unpacked(one)[:2] for one in sent] == [(CALLER, number) for number in range(3)]
    assert handle.heartbeat == "its own"


class Absent:
    """A value whose class the actor cannot import."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"Absent({self.number})"


OBJECTS = np.array([Absent(1), None, "text"], object)


@pytest.mark.parametrize(
    ("columns", "is_typed"),
    [
        ([Absent(1), b"bytes", None], False),
        ([b"bytes", ROWS[0]], False),
        ([ROWS, OBJECTS], True),
        ([ROWS, ROWS.T], True),
        ([[ROWS, ROWS[:1]]], True),
    ],
)
def test_objects_of_users_are_sealed_until_they_are_opened(columns: Any, is_typed: bool) -> None:
    closed = sealed(columns, pickle.Pickler, is_typed=is_typed)
    sent = packed(SENDER, 3, 1, Payload(closed), 3)
    assert isinstance(sent, bytes)
    found = unpacked(sent)[3].columns
    back = opened(found, pickle.loads, is_typed=is_typed)
    assert len(back) == len(columns)
    for one, original in zip(back, columns, strict=True):
        assert type(one) is type(original)
        assert repr(one) == repr(original)


def test_objects_with_references_are_left_to_ray() -> None:
    rows = [("a pair", Absent(3))]
    assert sealed_unless_references(rows, pickle, (Absent,), is_typed=False) is rows


def test_what_is_sealed_has_its_size() -> None:
    large = sealed(["x" * 1000], pickle.Pickler, is_typed=False)
    assert sealed_bytes(large, is_typed=False) > 1000
    assert sealed_bytes([b"bytes"], is_typed=False) == 0
    assert sealed_bytes([ROWS, b"bytes"], is_typed=True) == 5
