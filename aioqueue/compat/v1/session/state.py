"""What the runs of one session share, from its beginning to its end."""

from __future__ import annotations

import threading
from collections.abc import Hashable

from aioqueue.compat.v1.core.graph import Operation, Tensor
from aioqueue.compat.v1.session.plans import Plan, compile_plan
from aioqueue.compat.v1.session.resources import DIRECT, ResourceContainer
from aioqueue.compat.v1.session.workers import Workers
from aioqueue.sync import CancelScope

__all__ = ("SessionState",)


class SessionState:
    """Plans, resources, threads, and the runs that block at the moment."""

    def __init__(self, served: ResourceContainer | None = None) -> None:
        self._lock = threading.RLock()
        self._running: dict[Hashable, CancelScope] = {}
        self._plans: dict[Hashable, Plan] = {}
        self.workers: Workers = Workers()
        self.own_resources: ResourceContainer = ResourceContainer()
        self.resources: ResourceContainer = self.own_resources if served is None else served
        self.closed: bool = False
        self.aborted: bool = False
        (DIRECT if served is None else served).connect(self)

    def plan(self, fetches: tuple[Tensor | Operation, ...], fed: tuple[Tensor, ...]) -> Plan:
        """The plan for these fetches when these tensors are fed, made once."""
        key = (fetches, fed)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = compile_plan(fetches, fed)
        return plan

    def scope_for(self, step: Hashable, timeout: float | None) -> CancelScope:
        """The scope in which a step blocks: `close` cancels it. One per step."""
        with self._lock:
            scope = self._running.get(step)
            if scope is None:
                scope = self._running[step] = CancelScope(timeout)
                if self.closed:
                    scope.cancel()
            return scope

    def forget(self, step: Hashable) -> None:
        """A step that has blocked is over."""
        with self._lock:
            self._running.pop(step, None)

    def abort(self) -> None:
        """End as `close` does, for `Session.reset`; runs that begin later raise an `OpError`."""
        with self._lock:
            self.aborted = not self.closed
        self._end()

    def close(self) -> None:
        """Blocked steps raise `CancelledError`, and what the session owned is released.

        May be called more than once. What belongs to a server stays.
        """
        self._end()
        self.aborted = False

    def _end(self) -> None:
        with self._lock:
            if self.closed:
                return
            self.closed = True
            running = list(self._running.values())
        # The last first: it may wait for what an earlier one has, and would get it from that.
        for scope in reversed(running):
            scope.cancel()
        self.workers.close()
        self.own_resources.close()
