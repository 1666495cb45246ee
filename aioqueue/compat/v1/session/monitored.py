"""Sessions that initialise variables, run the queue runners and call hooks: ``MonitoredSession``.

A monitored session makes everything that a training loop needs in the right order, stops all
threads when it is left, and reports the first failure of one of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from aioqueue.compat.v1 import errors, logging
from aioqueue.compat.v1.coordination.coordinator import Coordinator
from aioqueue.compat.v1.coordination.runners import start_queue_runners
from aioqueue.compat.v1.core.default_graph import get_default_graph
from aioqueue.compat.v1.core.scopes import GraphKeys, get_collection
from aioqueue.compat.v1.ops.files import make_directories
from aioqueue.compat.v1.session.checkpoint_hooks import CheckpointSaverHook
from aioqueue.compat.v1.session.hooks import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from aioqueue.compat.v1.session.scaffold import (
    ChiefSessionCreator,
    Scaffold,
    SessionCreator,
)

__all__ = (
    "MonitoredSession",
    "MonitoredTrainingSession",
    "SingularMonitoredSession",
    "StepContext",
)

SAVE_SECONDS = 600
"""How often checkpoints are saved, if nothing is said."""

PREEMPTED = (errors.AbortedError, errors.UnavailableError)
"""Failures after which a `MonitoredSession` makes its session again and retries."""

DEFAULT = object()
"""Stands for TensorFlow's own period for saving."""

"""What that is for summaries."""


class StepContext:
    """What a function that `MonitoredSession.run_step_fn` calls can do."""

    def __init__(self, session: Any, run_with_hooks_fn: Callable[..., Any]) -> None:
        self._session = session
        self._run_with_hooks_fn = run_with_hooks_fn

    @property
    def session(self) -> Any:
        """The session, whose runs call no hooks."""
        return self._session

    def run_with_hooks(self, *args: Any, **kwargs: Any) -> Any:
        """Run as ``MonitoredSession.run`` does."""
        return self._run_with_hooks_fn(*args, **kwargs)

    def request_stop(self) -> None:
        """Leave the function, and the ``with`` block around the session."""
        raise StopIteration("step_fn has requested the iterations to stop.")


class _Life:
    """One session with its coordinator and its threads, from its making to its end."""

    def __init__(self, creator: SessionCreator, hooks: Sequence[SessionRunHook]) -> None:
        self.session = creator.create_session()
        self.hooks = hooks
        self.stop_requested = False
        # Nothing is a clean stop: a runner that has run out of data closes its queue, and that is
        # what the training loop notices.
        self.coord = Coordinator(clean_stop_exception_types=[])
        try:
            if get_collection(GraphKeys.QUEUE_RUNNERS):
                start_queue_runners(sess=self.session, coord=self.coord)
            for hook in hooks:
                hook.after_create_session(self.session, self.coord)
        except BaseException:
            self.coord.request_stop()
            self.session.close()
            raise

    def run(self, fetches: Any, feed_dict: Any, options: Any, run_metadata: Any) -> Any:
        """One run with what the hooks add to it."""
        if self.stop_requested:
            raise RuntimeError("Run called even after should_stop requested.")
        context = SessionRunContext(SessionRunArgs(fetches, feed_dict, options), self.session)
        wanted: dict[Any, Any] = {"caller": fetches}
        feeds: dict[Any, Any] = {}
        for hook in self.hooks:
            request = hook.before_run(context)
            if request is None:
                continue
            if request.fetches is not None:
                wanted[hook] = request.fetches
            if request.feed_dict:
                _check_feeds(feeds, request.feed_dict, "two hooks")
                feeds.update(request.feed_dict)
            options = options if request.options is None else request.options
        _check_feeds(feeds, feed_dict or {}, "a SessionRunHook and user")
        feeds.update(feed_dict or {})
        found = self._run(wanted, feeds, options, run_metadata)
        for hook in self.hooks:
            hook.after_run(context, SessionRunValues(found.get(hook), options, run_metadata))
        self.stop_requested = self.stop_requested or context.stop_requested
        return found["caller"]

    def _run(self, fetches: Any, feeds: Any, options: Any, run_metadata: Any) -> Any:
        try:
            return self.session.run(fetches, feeds, options, run_metadata)
        except PREEMPTED:
            raise
        except Exception:
            # If a thread was preempted, that is why this run has failed.
            try:
                self.coord.raise_requested_exception()
            except PREEMPTED:
                raise
            except Exception:
                pass  # the run's own failure goes to the caller, the thread's comes at the end
            raise

    def should_stop(self) -> bool:
        """Whether it is over; raises the failure of a thread, if that is why."""
        self.coord.raise_requested_exception()
        return self.coord.should_stop() or self.stop_requested

    def end(self, grace: float) -> None:
        """Stop the threads, report the first failure of one, close the session."""
        self.coord.request_stop()
        try:
            self.coord.join(stop_grace_period_secs=grace, ignore_live_threads=True)
        finally:
            try:
                self.session.close()
            except Exception:
                logging.debug("closing the session of a monitored session", exc_info=True)


class _MonitoredSession:
    """What both kinds of monitored sessions have in common."""

    _recovers: bool

    def __init__(
        self,
        session_creator: SessionCreator,
        hooks: Sequence[SessionRunHook] | None,
        stop_grace_period_secs: float,
    ) -> None:
        self._graph = get_default_graph()
        self._was_finalized = self._graph.finalized
        self._creator = session_creator
        self._hooks = list(hooks or ())
        self._grace = stop_grace_period_secs
        self._life: _Life | None = None
        for hook in self._hooks:
            hook.begin()
        try:
            self._life = self._begin_life()
        except BaseException:
            self._unfinalize()
            raise

    def _begin_life(self) -> _Life:
        while True:
            try:
                with self._graph.as_default():
                    return _Life(self._creator, self._hooks)
            except PREEMPTED as error:
                if not self._recovers:
                    raise
                logging.info("Making a session failed, and is tried again: %s", error)

    @property
    def graph(self) -> Any:
        """The graph that it runs; None once it is closed."""
        return None if self._life is None else self._life.session.graph

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: Any = None,
        run_metadata: Any = None,
    ) -> Any:
        """Run as ``Session.run`` does, with what the hooks add to it."""
        return self._recovering(lambda life: life.run(fetches, feed_dict, options, run_metadata))

    def run_step_fn(self, step_fn: Callable[..., Any]) -> Any:
        """Call a function that may run with hooks or without."""
        parameters = tuple(inspect.signature(step_fn).parameters)
        if parameters != ("step_context",):
            raise ValueError(
                "`step_fn` may either have one `step_context` argument, or `self` and"
                " `step_context` arguments if it's an instance method. Got"
                f" {parameters} instead."
            )

        def step(life: _Life) -> Any:
            def run(
                fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None
            ) -> Any:
                return life.run(fetches, feed_dict, options, run_metadata)

            return step_fn(StepContext(life.session, run))

        return self._recovering(step)

    def _recovering(self, action: Callable[[_Life], Any]) -> Any:
        if self._life is None:
            raise RuntimeError("Attempted to use a closed Session.")
        while True:
            try:
                return action(self._life)
            except PREEMPTED as error:
                if not self._recovers:
                    raise
                self._live_again(error)

    def _live_again(self, error: Exception) -> None:
        logging.info("The session was lost, and is made again: %s", error)
        assert self._life is not None
        try:
            self._life.end(self._grace)
        except PREEMPTED:
            pass  # that is why it is made again
        self._life = self._begin_life()

    def should_stop(self) -> bool:
        """Whether to leave the training loop: closed, or a hook or a thread has asked to stop."""
        raise NotImplementedError

    def close(self) -> None:
        """End the hooks, stop the threads, close the session."""
        self._close(None)

    def _close(self, failure: type[BaseException] | None) -> None:
        life = self._life
        if life is None:
            raise RuntimeError("Session is already closed.")
        try:
            if failure is None:
                for hook in self._hooks:
                    hook.end(life.session)
        finally:
            self._life = None
            try:
                life.end(self._grace)
            finally:
                self._unfinalize()

    def _unfinalize(self) -> None:
        if not self._was_finalized:
            self._graph.unfinalize()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        # These very types, as in TensorFlow: a subclass of one is a failure.
        if kind in (errors.OutOfRangeError, StopIteration):
            kind = None
        self._close(kind)
        return kind is None


class MonitoredSession(_MonitoredSession):
    """A session that initialises variables, runs queue runners and calls hooks.

    Leaving its ``with`` block stops and joins all threads; the end of the input
    (`OutOfRangeError`) ends the block normally. After `AbortedError` and `UnavailableError` it
    makes its session again, and retries.
    """

    _recovers = True

    def __init__(
        self,
        session_creator: SessionCreator | None = None,
        hooks: Sequence[SessionRunHook] | None = None,
        stop_grace_period_secs: float = 120,
    ) -> None:
        creator = ChiefSessionCreator() if session_creator is None else session_creator
        super().__init__(creator, hooks, stop_grace_period_secs)

    def should_stop(self) -> bool:
        """Whether to leave the training loop."""
        if self._life is None:
            return True
        try:
            return self._life.should_stop()
        except PREEMPTED as error:
            self._live_again(error)
            return False
        except Exception:
            return True


class SingularMonitoredSession(_MonitoredSession):
    """A `MonitoredSession` that never makes its session again."""

    _recovers = False

    def __init__(
        self,
        hooks: Sequence[SessionRunHook] | None = None,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: Any = None,
        checkpoint_dir: str | None = None,
        stop_grace_period_secs: float = 120,
        checkpoint_filename_with_path: str | None = None,
    ) -> None:
        creator = ChiefSessionCreator(
            scaffold, master, config, checkpoint_dir, checkpoint_filename_with_path
        )
        super().__init__(creator, hooks, stop_grace_period_secs)

    def raw_session(self) -> Any:
        """The session without hooks; None once it is closed."""
        return None if self._life is None else self._life.session

    def should_stop(self) -> bool:
        """Whether to leave the training loop."""
        return True if self._life is None else self._life.should_stop()


def MonitoredTrainingSession(  # noqa: N802  # TensorFlow's name
    master: str = "",
    is_chief: bool = True,
    checkpoint_dir: str | None = None,
    scaffold: Scaffold | None = None,
    hooks: Sequence[SessionRunHook] | None = None,
    chief_only_hooks: Sequence[SessionRunHook] | None = None,
    save_checkpoint_secs: Any = DEFAULT,
    save_summaries_steps: Any = DEFAULT,
    save_summaries_secs: Any = DEFAULT,
    config: Any = None,
    stop_grace_period_secs: float = 120,
    log_step_count_steps: int | None = 100,
    max_wait_secs: float = 7200,
    save_checkpoint_steps: Any = DEFAULT,
    summary_dir: str | None = None,
) -> MonitoredSession:
    """Make a `MonitoredSession` for training."""
    del save_summaries_steps, save_summaries_secs, log_step_count_steps
    if not is_chief:
        raise NotImplementedError(
            "is_chief: got False; sessions of several processes are out of scope, so that"
            " each one is the chief"
        )
    for folder in (summary_dir, checkpoint_dir):
        if folder:  # scripts save there, too: in TensorFlow the hooks that write summaries make it
            make_directories(folder)
    scaffold = Scaffold() if scaffold is None else scaffold
    creator = ChiefSessionCreator(scaffold, master, config, checkpoint_dir)
    everything = list(chief_only_hooks or ())
    seconds = None if save_checkpoint_secs is DEFAULT else save_checkpoint_secs
    steps = None if save_checkpoint_steps is DEFAULT else save_checkpoint_steps
    if save_checkpoint_secs is DEFAULT and save_checkpoint_steps is DEFAULT:
        seconds = SAVE_SECONDS
    if checkpoint_dir and (seconds or steps):
        everything.append(CheckpointSaverHook(checkpoint_dir, seconds, steps, scaffold=scaffold))
    everything += hooks or ()
    return MonitoredSession(creator, everything, stop_grace_period_secs)


def _check_feeds(ours: Mapping[Any, Any], theirs: Mapping[Any, Any], who: str) -> None:
    conflicts = [one for one in theirs if one in ours]
    if conflicts:
        raise RuntimeError(f"Same tensor is fed by {who}. Conflict(s): {conflicts}")
