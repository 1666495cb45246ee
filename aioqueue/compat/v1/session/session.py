"""`Session`: runs the fetched part of a graph, and owns what outlives a run."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any, Self

import numpy as np

from aioqueue.compat.v1.core.default_graph import get_default_graph
from aioqueue.compat.v1.core.graph import Graph, Operation, Tensor, default_graphs, default_sessions
from aioqueue.compat.v1.errors import AbortedError, CancelledError, NotFoundError
from aioqueue.compat.v1.session.config import ConfigProto, RunOptions
from aioqueue.compat.v1.session.execution import Step, execute
from aioqueue.compat.v1.session.fetches import Feeder, Fetches, expand_feeds
from aioqueue.compat.v1.session.plans import Plan
from aioqueue.compat.v1.session.state import SessionState, container_at

__all__ = ("InteractiveSession", "Session", "get_default_session")

_ELEMENTS = (Tensor, Operation)

DEFAULT_CONTAINER = "localhost"  # the name of the default container in lists of containers


class _Call:
    """Fetches and fed tensors, prepared to run any number of times."""

    __slots__ = ("_fetches", "_single", "feeders", "plan")

    def __init__(self, plan: Plan, fetches: Fetches, fed: Sequence[Tensor], single: bool) -> None:
        self.plan = plan
        self.feeders = tuple(Feeder(one) for one in fed)
        self._fetches = fetches
        self._single = single

    def run(self, step: Step, fed: Sequence[Any]) -> Any:
        plan = self.plan
        values = plan.template.copy()
        if fed:
            for place, feeder, value in zip(plan.feeds, self.feeders, fed, strict=True):
                values[place] = feeder(value)
        try:
            execute(plan, step, values)
        finally:
            step.finish()
        if self._single:
            place = plan.fetches[0]
            return None if place < 0 else _owned(values[place])
        return self._fetches.result(
            [None if place < 0 else _owned(values[place]) for place in plan.fetches]
        )


def _owned(value: Any) -> Any:
    """Make a value the caller's own: a read-only array is also used elsewhere, so it is copied."""
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        return value.copy()
    return value


class BaseSession:
    """Runs operations of one graph, from any thread; what to run for some fetches it keeps."""

    def __init__(
        self, target: Any = "", graph: Graph | None = None, config: ConfigProto | None = None
    ) -> None:
        if not isinstance(target, str):
            raise TypeError(f"target must be a string, but got {type(target)}")
        if graph is not None and not isinstance(graph, Graph):
            raise TypeError(f"graph must be a tf.Graph, but got {type(graph)}")
        if config is not None and not isinstance(config, ConfigProto):
            raise TypeError(f"config must be a tf.ConfigProto, but got {type(config)}")
        self._target = target
        self.graph: Graph = get_default_graph() if graph is None else graph
        self._config = config
        self._timeout = _seconds(0 if config is None else config.operation_timeout_in_ms)
        self._calls: dict[Any, _Call] = {}
        served = None
        if target:
            served = container_at(target)
            if served is None:
                raise NotFoundError(
                    None,
                    None,
                    f"No server has the target '{target}'. Servers are `tf.train.Server` objects "
                    "of the same process.",
                )
        self._state = SessionState(served)

    @property
    def graph_def(self) -> list[Any]:
        """The records of the graph's operations."""
        return [one.node_def for one in self.graph.get_operations()]

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._state.closed and not self._state.aborted

    # Running.

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: Any = None,
    ) -> Any:
        """Run what `fetches` needs, each operation once, and return their values."""
        if self._state.closed:
            raise self._ended()
        call, fed = self._prepared(fetches, feed_dict)
        return call.run(Step(self._state, self._limit(options)), fed)

    def _prepared(
        self, fetches: Any, feed_dict: Mapping[Any, Any] | None
    ) -> tuple[_Call, Sequence[Any]]:
        """What to run, and the values that are fed; remembered for fetches that are not nested."""
        kind = type(fetches)
        key: Any = None
        if kind is Tensor or kind is Operation:
            key = (fetches, *feed_dict) if feed_dict else fetches
        elif kind is list or kind is tuple:
            key = (kind, *fetches), *(feed_dict or ())
        try:
            call = self._calls.get(key)
        except TypeError:  # lists in lists cannot be keys
            call = key = None
        if call is not None:
            return call, [*feed_dict.values()] if feed_dict else ()
        if not self.graph.version:
            raise RuntimeError(
                "The Session graph is empty. Add operations to the graph before calling run()."
            )
        fed = {} if feed_dict is None else expand_feeds(self.graph, feed_dict)
        call = self._call(fetches, tuple(fed))
        if (
            key is not None
            and _is_flat(fetches)
            and all(type(one) is Tensor for one in feed_dict or ())
        ):
            self._calls[key] = call
        return call, [*fed.values()]

    def _ended(self) -> Exception:
        if not self._state.aborted:
            return RuntimeError("Attempted to use a closed Session.")
        if self._target:
            return AbortedError(
                None,
                None,
                f"The session is not found: tf.Session.reset('{self._target}') ended it.",
            )
        return CancelledError(None, None, "Session has been closed.")

    def _limit(self, options: RunOptions | None) -> float | None:
        if options is None:
            return self._timeout
        if not isinstance(options, RunOptions):
            raise TypeError(f"options must be a tf.RunOptions, but got {type(options)}")
        return _seconds(options.timeout_in_ms) or self._timeout

    def _call(self, fetches: Any, fed: tuple[Tensor, ...]) -> _Call:
        parsed = Fetches(self.graph, fetches)
        plan = self._state.plan(tuple(parsed.elements), fed)
        return _Call(plan, parsed, fed, single=isinstance(fetches, _ELEMENTS))

    def make_callable(
        self, fetches: Any, feed_list: Sequence[Any] | None = None, accept_options: bool = False
    ) -> Callable[..., Any]:
        """Make a function that runs these fetches as `run` does, without checking them again."""
        if self._state.closed:
            raise self._ended()
        if feed_list is not None and not isinstance(feed_list, list | tuple):
            raise TypeError("Argument `feed_list` must be a list or tuple.")
        given = tuple(feed_list or ())
        fed = tuple(expand_feeds(self.graph, dict.fromkeys(given)))
        call = self._call(fetches, fed)

        def run_with_options(
            *values: Any, options: RunOptions | None = None, run_metadata: Any = None
        ) -> Any:
            if self._state.closed:
                raise self._ended()
            if len(values) != len(fed):
                raise TypeError(
                    f"expected {len(fed)} values, one per fed tensor, got {len(values)}"
                )
            return call.run(Step(self._state, self._limit(options)), values)

        def run(*values: Any) -> Any:
            if len(values) != len(fed) or self._state.closed:
                return run_with_options(*values)  # it raises the error
            return call.run(Step(self._state, self._timeout), values)

        return run_with_options if accept_options else run

    # Life.

    def close(self) -> None:
        """End the session: blocked runs raise `CancelledError`. You can call it more than once."""
        self._state.close()

    def __del__(self) -> None:
        if hasattr(self, "_state"):  # the constructor may have failed
            self.close()

    def as_default(self) -> AbstractContextManager[Self]:
        """``tensor.eval()`` and ``op.run()`` use this session within the block, in this thread."""
        return default_sessions.using(self)


class Session(BaseSession):
    """Runs operations of one graph; ``with`` makes both the defaults, and closes it."""

    def __init__(
        self, target: str = "", graph: Graph | None = None, config: ConfigProto | None = None
    ) -> None:
        super().__init__(target, graph, config)
        self._entered: list[ExitStack] = []

    def __enter__(self) -> Self:
        stack = ExitStack()
        stack.enter_context(self.graph.as_default())
        stack.enter_context(self.as_default())
        self._entered.append(stack)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._entered:
            self._entered.pop().close()
        self.close()

    @staticmethod
    def reset(
        target: str, containers: Iterable[str] | None = None, config: ConfigProto | None = None
    ) -> None:
        """Release a server's resources; its sessions end: `CancelledError`, then `AbortedError`."""
        served = container_at(target)
        if served is None:
            raise NotFoundError(None, None, f"No server has the target '{target}'.")
        names = {"" if one == DEFAULT_CONTAINER else one for one in containers or ()}
        served.reset(names or None)


class InteractiveSession(BaseSession):
    """A session that is the default, with its graph, until it is closed: for notebooks."""

    _open = 0
    _count_lock = threading.Lock()

    def __init__(
        self, target: str = "", graph: Graph | None = None, config: ConfigProto | None = None
    ) -> None:
        super().__init__(target, graph, config)
        with InteractiveSession._count_lock:
            if InteractiveSession._open:
                warnings.warn(
                    "An interactive session is already active. You must call "
                    "`InteractiveSession.close()` to release what it owns.",
                    stacklevel=2,
                )
            InteractiveSession._open += 1
        default_sessions.push(self)
        self._explicit_graph = graph
        if graph is not None:
            default_graphs.push(graph)

    def close(self) -> None:
        """End the session. It is no longer the default of the thread."""
        if self.closed:
            return
        super().close()
        with InteractiveSession._count_lock:
            InteractiveSession._open -= 1
        default_sessions.remove(self)
        if self._explicit_graph is not None:
            default_graphs.remove(self._explicit_graph)


def get_default_session() -> Any:
    """The innermost session that is the default in this thread, or None."""
    return default_sessions.top()


def _is_flat(fetches: Any) -> bool:
    if isinstance(fetches, _ELEMENTS):
        return True
    return all(type(one) in _ELEMENTS for one in fetches)


def _seconds(milliseconds: Any) -> float | None:
    """A timeout in seconds; None for 0, which is no limit."""
    return milliseconds / 1000 if milliseconds and milliseconds > 0 else None
