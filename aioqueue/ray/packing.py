"""Packs the calls and answers of each batch into as few objects for Ray as possible.

Ray pickles each argument separately in Python, and sends it with its own header and buffer, which
the receiver reads separately again. For a small batch that takes longer than all the work of the
queue. So small values of known classes are pickled together here, and Ray sends bytes. References
and large arrays are left to Ray, as the rest of the same argument.

Objects of users are *sealed*: the actor may run where their classes cannot be imported, since
another program has started it.
"""

from __future__ import annotations

import functools
import pickle
from typing import Any, TypeAlias

from aioqueue.core.elements.spec import Columns
from aioqueue.ray.client_registry import CallerId
from aioqueue.ray.messages import SMALL, Answer
from aioqueue.ray.sealing import is_plain_column, sealed
from aioqueue.ray.segments import Payload

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
    return pickle.loads(sent) if isinstance(sent, bytes) else sent


def _is_plain(payload: Payload) -> bool:
    """Return whether a value is sent as bytes: it is small, and contains no object of the user."""
    columns = payload.columns
    if isinstance(columns, bytes):
        return len(columns) <= SMALL
    if columns is None or not all(map(is_plain_column, columns)):
        return False
    sizes = [len(one) if type(one) is bytes else one.nbytes for one in columns]
    return sum(sizes) <= SMALL


class _HasReferenceError(Exception):
    """An object of the user contains a reference, which Ray must see in order to count it."""


def sealed_unless_references(
    columns: Columns, cloudpickle: Any, references: tuple[type, ...], *, is_typed: bool
) -> Columns | bytes:
    """Seal columns, which the actor never unpickles; return them unchanged if they hold references.

    Args:
        columns: an array or a list of arrays per component, or a list of objects.
        cloudpickle: Ray's module.
        references: the classes of Ray's references.
        is_typed: whether the elements have components.

    Raises:
        Exception: an object cannot be pickled.
    """

    class Sealing(cloudpickle.Pickler):  # type: ignore[misc]  # a class of an untyped module
        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, references):
                raise _HasReferenceError
            inherited = getattr(super(), "reducer_override", None)
            return NotImplemented if inherited is None else inherited(value)

    try:
        return sealed(columns, Sealing, is_typed=is_typed)
    except _HasReferenceError:
        return columns
