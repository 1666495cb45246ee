"""Running a plan: in the caller's thread, and in others only where operations block together.

Without two that can block together, a plan is a straight loop. Otherwise the caller does all that
does not block, again and again, as in ``run([q.dequeue(), q.enqueue(5)])``; threads do the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from queue import SimpleQueue
from time import perf_counter
from typing import Any, NoReturn

import aioqueue
from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.core.graph import WOULD_WAIT, Operation, Tensor
from aioqueue.compat.v1.session.plans import Node, Plan
from aioqueue.compat.v1.session.state import ResourceContainer, SessionState
from aioqueue.sync import CancelScope

_NATIVE: tuple[tuple[type[BaseException], type[Any]], ...] = (
    (aioqueue.QueueClosedError, errors.CancelledError),
    (aioqueue.OutOfRangeError, errors.OutOfRangeError),
    (aioqueue.InvalidArgumentError, errors.InvalidArgumentError),
)
_FROM_PYTHON: tuple[tuple[type[BaseException], type[Any]], ...] = (
    (StopIteration, errors.OutOfRangeError),
    (MemoryError, errors.ResourceExhaustedError),
    (NotImplementedError, errors.UnimplementedError),
    (ValueError, errors.InvalidArgumentError),
    (TypeError, errors.InvalidArgumentError),
)


def from_aioqueue(
    error: aioqueue.AioQueueError | errors.OpError, op: Operation | None = None
) -> errors.OpError:
    """One of aioqueue's errors as the error that a session raises; ``error`` is its cause."""
    made: errors.OpError
    if isinstance(error, errors.OpError):
        made = error
    elif isinstance(error, aioqueue.DeadlineExceededError):
        made = errors.DeadlineExceededError(None, None, "Timed out waiting for notification")
        op = None  # the run was too slow, not this operation
    elif isinstance(error, aioqueue.CancelledError):
        made = errors.CancelledError(None, None, _withdrawn(op))
    else:
        kind = next((ours for theirs, ours in _NATIVE if isinstance(error, theirs)), None)
        text = str(error) if kind else f"{type(error).__name__}: {error}"
        made = (kind or errors.UnknownError)(None, None, text)
    if made is not error:
        for name in ("queue", "requested", "remaining", "held", "enqueued"):
            if hasattr(made, name) and hasattr(error, name):
                setattr(made, name, getattr(error, name))
        made.__cause__ = error
    if op is not None:
        made.blame(op)
    return made


def _withdrawn(op: Operation | None) -> str:
    kind = "" if op is None else op.type
    if "Dequeue" in kind:
        return "Dequeue operation was cancelled"
    if "Enqueue" in kind or "QueueClose" in kind:
        return "Enqueue operation was cancelled"
    return "Operation was cancelled"


def from_exception(error: Exception, op: Operation | None = None) -> errors.OpError:
    """Whatever a kernel raised as the error that a session raises; ``error`` is its cause."""
    if isinstance(error, errors.OpError):
        if op is not None:
            error.blame(op)
        return error
    if isinstance(error, aioqueue.AioQueueError):
        return from_aioqueue(error, op)
    ours = next(
        (ours for kind, ours in _FROM_PYTHON if isinstance(error, kind)), errors.UnknownError
    )
    made: errors.OpError = ours(None, None, f"{type(error).__name__}: {error}")
    made.__cause__ = error
    if op is not None:
        made.blame(op)
    return made


class Step:
    """One ``run`` of a session, as kernels see it."""

    __slots__ = ("_deadline", "_scope", "own_resources", "resources", "state")

    def __init__(self, state: SessionState, timeout: float | None) -> None:
        self.state: SessionState = state
        self.resources: ResourceContainer = state.resources
        self.own_resources: ResourceContainer = state.own_resources
        self._deadline = None if timeout is None else perf_counter() + timeout
        self._scope: CancelScope | None = None

    @property
    def scope(self) -> CancelScope:
        """What blocking calls are made in, so that the step's end and deadline reach them."""
        if self._scope is None:
            self._scope = self.state.scope_for(self, self.left())
        return self._scope

    def left(self) -> float | None:
        """The seconds until the step's deadline; None if it has none."""
        return None if self._deadline is None else max(0.0, self._deadline - perf_counter())

    def check(self) -> None:
        """Raise if the step is over, for kernels that do not block in `scope`."""
        if self.state.closed:
            raise errors.CancelledError(None, None, "Run call was cancelled").acquit()
        if self.left() == 0.0:
            late = errors.DeadlineExceededError(None, None, "Timed out waiting for notification")
            raise late.acquit()

    def run_body(
        self, outputs: Sequence[Tensor | Operation], given: Sequence[Tensor], values: Sequence[Any]
    ) -> list[Any]:
        plan = self.state.plan(tuple(outputs), tuple(given))
        slots = plan.template.copy()
        for place, value in zip(plan.feeds, values, strict=True):
            slots[place] = value
        execute(plan, self, slots)
        return [None if place < 0 else slots[place] for place in plan.fetches]

    def finish(self) -> None:
        """The run has ended: nobody needs to be able to cancel it any more."""
        if self._scope is not None:
            self.state.forget(self)


def execute(plan: Plan, step: Step, values: list[Any]) -> None:
    if plan.concurrent:
        _Together(plan, step, values).run()
    _in_order(plan.last if plan.concurrent else plan.nodes, step, values)


def _in_order(nodes: Sequence[Node], step: Step, values: list[Any]) -> None:
    node: Node
    try:
        for node in nodes:
            inputs = [values[place] for place in node.inputs]
            if node.waits:
                result = WOULD_WAIT if node.try_now is None else node.try_now(step, *inputs)
                if result is WOULD_WAIT:
                    result = _block(node, step, inputs)
            else:
                result = node.kernel(step, *inputs)
            if node.output >= 0:
                values[node.output] = result
            elif node.outputs:
                node.store(result, values)
    except Exception as error:
        _fail(error, node)


def _fail(error: Exception, node: Node) -> NoReturn:
    mapped = from_exception(error, node.op)
    if mapped is error:
        raise error
    raise mapped from error


def _block(node: Node, step: Step, inputs: Sequence[Any]) -> Any:
    if not node.scoped:
        return node.kernel(step, *inputs)
    with step.scope:
        return node.kernel(step, *inputs)


class _Together:
    """A run of a plan in which several operations may block at the same time."""

    def __init__(self, plan: Plan, step: Step, values: list[Any]) -> None:
        self._plan = plan
        self._step = step
        self._values = values
        self._missing = [node.needs for node in plan.nodes]
        # By number, the smallest first: in the order of the plan, where it leaves a choice.
        self._ready = [number for number, node in enumerate(plan.nodes) if not node.needs]
        self._blocked: list[int] = []
        self._away = 0  # how many are in threads
        self._back: SimpleQueue[tuple[int, Any, BaseException | None]] = SimpleQueue()

    def run(self) -> None:
        try:
            while self._do_what_does_not_block() or self._let_block():
                pass
        except BaseException:
            self._step.scope.cancel()
            while self._away:
                self._back.get()
                self._away -= 1
            raise

    def _do_what_does_not_block(self) -> bool:
        """Run everything that is ready; whether anything was done."""
        done = False
        while self._ready:
            done = self._attempt(heappop(self._ready)) or done
        if done:  # which may have been what the blocked ones wait for
            blocked, self._blocked = self._blocked, []
            for number in blocked:
                can_try = self._plan.nodes[number].try_now is not None
                (self._ready if can_try else self._blocked).append(number)
            heapify(self._ready)
        return done

    def _attempt(self, number: int) -> bool:
        """Run one operation unless it would block; whether it has run."""
        node = self._plan.nodes[number]
        if node.waits and node.try_now is None:
            self._blocked.append(number)
            return False
        kernel = node.try_now if node.try_now is not None else node.kernel
        try:
            result = kernel(self._step, *self._inputs(node))
        except Exception as error:
            _fail(error, node)
        if result is WOULD_WAIT:
            self._blocked.append(number)
            return False
        self._finish(node, result)
        return True

    def _let_block(self) -> bool:
        """Wait until a blocked operation has run; False if no operation is blocked."""
        nodes = self._plan.nodes
        if len(self._blocked) == 1 and not self._away:
            node = nodes[self._blocked.pop()]
            try:
                self._finish(node, _block(node, self._step, self._inputs(node)))
            except Exception as error:
                _fail(error, node)
            return True
        blocked, self._blocked = self._blocked, []
        for number in blocked:
            self._step.state.workers.start(lambda number=number: self._work(number))  # type: ignore[misc]
            self._away += 1
        if not self._away:
            return False
        number, result, failure = self._back.get()
        self._away -= 1
        if isinstance(failure, Exception):
            _fail(failure, nodes[number])
        if failure is not None:
            raise failure
        self._finish(nodes[number], result)
        return True

    def _work(self, number: int) -> None:
        node = self._plan.nodes[number]
        try:
            self._back.put((number, _block(node, self._step, self._inputs(node)), None))
        except BaseException as error:
            self._back.put((number, None, error))

    def _inputs(self, node: Node) -> list[Any]:
        return [self._values[place] for place in node.inputs]

    def _finish(self, node: Node, result: Any) -> None:
        node.store(result, self._values)
        for number in node.followers:
            self._missing[number] -= 1
            if not self._missing[number]:
                heappush(self._ready, number)
