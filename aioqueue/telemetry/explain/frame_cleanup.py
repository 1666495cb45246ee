"""Frames of our own that failures keep alive, and finalizers that interrupt our own code."""

from __future__ import annotations

import inspect
import sys
from contextlib import suppress
from types import FrameType
from typing import Final

from aioqueue.base.tracebacks import is_library_file, is_of_aioqueue
from aioqueue.system import locks

_SUSPENDABLE: Final = (
    inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    if sys.version_info < (3, 13)
    else 0  # a suspended frame refuses to be cleared
)
"""Kinds of frames to clear only after they have ended, since clearing would close them."""


def interrupts_aioqueue() -> bool:
    """Return whether a finalizer has interrupted our own code, which may hold locks.

    That happens when garbage is collected in the middle of it. An object that a user drops is
    finalized in user code, or in a generator of ours that is being closed.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_of_aioqueue(frame) and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    if frame is None or not is_of_aioqueue(frame):
        return False
    while frame is not None and is_library_file(frame.f_code.co_filename):
        code = frame.f_code
        is_expected = code.co_name == "__del__" or code.co_flags & inspect.CO_GENERATOR
        if is_of_aioqueue(frame) and (code.co_filename == locks.__file__ or not is_expected):
            return True
        frame = frame.f_back
    return False


def forget_locals(failure: BaseException) -> None:
    """Clear the local variables of our own functions in the traceback of a failure.

    They refer to queues, coordinators and items, and some of those refer to the failure. Such a
    cycle would live until the garbage collector runs. The traceback itself stays, and so do the
    locals of other code.

    Args:
        failure: the failure of workers that have all ended, or a group of such failures.
    """
    seen: set[int] = set()
    pending: list[tuple[BaseException | None, bool]] = [(failure, True)]
    while pending:
        error, has_ended = pending.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        if isinstance(error, BaseExceptionGroup):
            pending.extend((one, has_ended) for one in error.exceptions)
        # Causes may belong to workers that still run.
        pending += [(error.__cause__, False), (error.__context__, False)]
        traceback = error.__traceback__
        while traceback is not None:
            _clear(traceback.tb_frame, has_ended=has_ended)
            traceback = traceback.tb_next


def without_outermost(failure: Exception) -> Exception:
    """Return the failure with a traceback that does not begin at the frame that caught it.

    A coroutine may wait while its failure is reported; `forget_locals` would end that coroutine.
    """
    traceback = failure.__traceback__
    return failure.with_traceback(None if traceback is None else traceback.tb_next)


def _clear(frame: FrameType, *, has_ended: bool) -> None:
    if is_of_aioqueue(frame) and (has_ended or not frame.f_code.co_flags & _SUSPENDABLE):
        with suppress(RuntimeError):  # a running frame cannot be cleared
            frame.clear()
