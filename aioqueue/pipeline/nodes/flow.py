"""Flows: the steps of nodes, written once and run by threads and by tasks."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeAlias, TypeVar

from aioqueue import OutOfRangeError
from aioqueue.coordination.classify import as_failure
from aioqueue.errors import describe_exception

T = TypeVar("T")


class Demand(Protocol):
    """Something that a flow waits for."""

    def take(self) -> Any:
        """Wait in a thread."""

    async def take_async(self) -> Any:
        """Wait in a task."""


Flow: TypeAlias = Generator[Demand, Any, T]


class RunOver(OutOfRangeError):  # noqa: N818  # it is no error
    """The queue of a node was closed: the run has ended, for a reason that its coordinator knows.

    It is a class of its own, because a user function may raise an `OutOfRangeError`, too. That is a
    failure, and not the end of a run.
    """


Step: TypeAlias = Callable[[Callable[[Any], Demand], Any], Demand]
"""Makes one step of a flow: calls its ``send`` with the result of the wait."""


def _at_once(send: Callable[[Any], Demand], come: Any) -> Demand:
    return send(come)


def drive(flow: Flow[T], step: Step = _at_once, want: Demand | None = None) -> T:
    """Run a flow in the calling thread.

    Args:
        flow: the flow.
        step: makes its steps. Between two steps this thread waits, and no node is in motion.
        want: what the flow waits for, if its first step has been made.

    Raises:
        RunOver: the run has ended.
    """
    try:
        if want is None:
            want = step(flow.send, None)
        while True:
            # The wait is outside the step, without its lock: meanwhile any thread may take a state.
            want = step(flow.send, want.take())
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]
    except OutOfRangeError as error:
        raise reraise_unexpected_end(error)  # noqa: B904  # it says its cause


async def drive_async(flow: Flow[T], step: Step = _at_once, want: Demand | None = None) -> T:
    """Run a flow in the calling task.

    Args:
        flow: the flow.
        step: makes its steps.
        want: what the flow waits for, if its first step has been made.

    Raises:
        RunOver: the run has ended.

    Cancellation:
        A cancelled call has lost nothing. You can cancel it whenever its `Demand` can be cancelled.
    """
    try:
        if want is None:
            want = step(flow.send, None)
        while True:
            # A cancellation arrives here, at the wait, where nothing has been taken: never within
            # a step, which would lose what it has moved.
            want = step(flow.send, await want.take_async())
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]
    except OutOfRangeError as error:
        raise reraise_unexpected_end(error)  # noqa: B904  # it says its cause


def failure_of_step(error: BaseException) -> BaseException:
    """Turn a cancellation that was raised in a step into a failure. Other errors are not changed.

    A step waits for nothing, so no task can be cancelled in it. A user function must have raised
    the error, as `Future.result` does if the future was cancelled.
    """
    if isinstance(error, Exception):
        return error
    return as_failure(
        error, f"a source or a function of the pipeline raised {describe_exception(error)}"
    )


def reraise_unexpected_end(error: OutOfRangeError) -> Exception:
    """Return the end of the run as it is. An `OutOfRangeError` of a user function is a failure."""
    if isinstance(error, RunOver):
        return error
    failure = RuntimeError(
        f"a source or a function of the pipeline raised {describe_exception(error)}"
    )
    failure.__cause__ = error
    return failure
