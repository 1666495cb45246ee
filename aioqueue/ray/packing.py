"""Packs the calls and answers of each batch into as few objects for Ray as possible.

Ray pickles each argument separately in Python, and sends it with its own header and buffer, which
the receiver reads separately again. For a small batch that takes longer than all the work of the
queue. So small values of known classes are pickled together here, and Ray sends bytes. References,
large arrays, and objects of users (whose classes Ray can send along) are left to Ray, as the rest
of the same argument.
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
"""Bytes; or bytes, and values for Ray to pickle."""


def packed(caller: bytes, number: int, known: int, *rest: Any) -> Packed:
    """Pack the arguments of a call.

    Args:
        caller: the caller: a `CallerId`, pickled once for all calls.
        number: number of the call.
        known: the caller knows all answers below this number.
        rest: the other arguments; the first may be a `Payload`.
    """
    payload = rest[0] if rest and isinstance(rest[0], Payload) else None
    if payload is None or _is_plain(payload):
        return pickle.dumps((caller, number, known, *rest), pickle.HIGHEST_PROTOCOL)
    return pickle.dumps((caller, number, known, *rest[1:]), pickle.HIGHEST_PROTOCOL), payload


def unpacked(sent: Packed) -> tuple[Any, ...]:
    """Return the arguments, the `CallerId` first."""
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
    """Pack an answer; return it unchanged if Ray must see its content."""
    if answer.error is None and all(_is_plain(payload) for payload, _ in answer.runs):
        return pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
    return answer


def unpacked_answer(sent: Any) -> Any:
    """Return the answer."""
    return pickle.loads(sent) if isinstance(sent, bytes) else sent


def _is_plain(payload: Payload) -> bool:
    """Return whether a value is sent as bytes: it is small, and contains no object of the user."""
    columns = payload.columns
    return (
        columns is not None
        and all(type(column) is np.ndarray and not column.dtype.hasobject for column in columns)
        and sum(column.nbytes for column in columns) <= SMALL
    )
