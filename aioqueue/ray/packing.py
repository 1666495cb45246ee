"""The calls and answers that there are for each batch, as few things for Ray to send.

Ray takes each argument by itself: it pickles it in Python, and sends it with a header and a buffer
of its own, which the other side reads by themselves again. For a small batch that takes longer than
all that the queue does. So what is small and of known classes is pickled here, at once, and what
Ray sends is bytes. References, large arrays, and objects of users, whose classes Ray can send along
with them, are left to Ray, as the rest of the same argument.
"""

from __future__ import annotations

import functools
import pickle
from typing import Any, TypeAlias

import numpy as np

from aioqueue.ray.clients import CallerId
from aioqueue.ray.handles import Payload
from aioqueue.ray.messages import SMALL, Answer

__all__ = ("Packed", "packed", "packed_answer", "unpacked", "unpacked_answer")

Packed: TypeAlias = bytes | tuple[bytes, Any]
"""Bytes; or bytes and what Ray is to pickle."""


def packed(caller: bytes, number: int, known: int, *rest: Any) -> Packed:
    """The arguments of a call.

    Args:
        caller: who calls: a `CallerId`, pickled once for all calls.
        number: of the call.
        known: below which number its caller knows all answers.
        rest: the others; the first one may be a `Payload`.
    """
    payload = rest[0] if rest and isinstance(rest[0], Payload) else None
    if payload is None or _is_plain(payload):
        return pickle.dumps((caller, number, known, *rest), pickle.HIGHEST_PROTOCOL)
    return pickle.dumps((caller, number, known, *rest[1:]), pickle.HIGHEST_PROTOCOL), payload


def unpacked(sent: Packed) -> tuple[Any, ...]:
    """The arguments again, with the `CallerId` first."""
    if isinstance(sent, bytes):
        caller, *rest = pickle.loads(sent)
        return (_caller(caller), *rest)
    caller, number, known, *rest = pickle.loads(sent[0])
    return (_caller(caller), number, known, sent[1], *rest)


@functools.lru_cache(maxsize=1024)
def _caller(sent: bytes) -> CallerId:
    found: CallerId = pickle.loads(sent)
    return found


def packed_answer(answer: Answer) -> Answer | bytes:
    """An answer; as it is, if Ray has to see what is in it."""
    if answer.error is None and all(_is_plain(payload) for payload, _ in answer.runs):
        return pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
    return answer


def unpacked_answer(sent: Any) -> Any:
    """What was answered."""
    return pickle.loads(sent) if isinstance(sent, bytes) else sent


def _is_plain(payload: Payload) -> bool:
    """Whether it is sent as its bytes: small, and nothing in it is an object of the user."""
    columns = payload.columns
    return (
        columns is not None
        and all(type(column) is np.ndarray and not column.dtype.hasobject for column in columns)
        and sum(column.nbytes for column in columns) <= SMALL
    )
