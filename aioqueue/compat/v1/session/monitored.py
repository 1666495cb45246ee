"""Sessions that initialise variables, run the queue runners and call hooks: ``MonitoredSession``.

A `SessionManager` makes its session: it initialises the model, or restores it from a checkpoint.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np

from aioqueue.compat.v1 import errors, logging
from aioqueue.compat.v1.coordination.coordinator import Coordinator
from aioqueue.compat.v1.coordination.runners import start_queue_runners
from aioqueue.compat.v1.core.default_graph import get_default_graph
from aioqueue.compat.v1.core.scopes import GraphKeys, get_collection
from aioqueue.compat.v1.ops import variables
from aioqueue.compat.v1.ops.control import group
from aioqueue.compat.v1.ops.files import make_directories
from aioqueue.compat.v1.session.checkpoints import get_checkpoint_state
from aioqueue.compat.v1.session.hooks import (
    CheckpointSaverHook,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    SummarySaverHook,
    needed_global_step,
)
from aioqueue.compat.v1.session.saver import Saver
from aioqueue.compat.v1.session.session import Session
from aioqueue.compat.v1.summaries.ops import merge_all

__all__ = (
    "ChiefSessionCreator", "MonitoredSession", "MonitoredTrainingSession", "Scaffold",
    "SessionCreator", "SessionManager", "SingularMonitoredSession",
)  # fmt: skip


class Scaffold:
    """The operations that bring a graph into being: what initialises it, and when it is ready."""

    init_op: Any
    init_feed_dict: Any
    _init_fn: Callable[[Scaffold, Any], object] | None
    ready_op: Any
    ready_for_local_init_op: Any
    local_init_op: Any
    local_init_feed_dict: Any
    summary_op: Any
    saver: Any

    def __init__(
        self,
        init_op: Any = None,
        init_feed_dict: Mapping[Any, Any] | None = None,
        init_fn: Callable[[Scaffold, Any], object] | None = None,
        ready_op: Any = None,
        ready_for_local_init_op: Any = None,
        local_init_op: Any = None,
        summary_op: Any = None,
        saver: Any = None,
        copy_from_scaffold: Scaffold | None = None,
        local_init_feed_dict: Mapping[Any, Any] | None = None,
    ) -> None:
        given = {**locals(), "_init_fn": init_fn}
        for name in Scaffold.__annotations__:
            value = given[name]
            setattr(self, name, getattr(copy_from_scaffold, name, None) if value is None else value)

    @property
    def init_fn(self) -> Callable[[Any], object] | None:
        """What is called with the session after ``init_op``."""
        function = self._init_fn
        return None if function is None else lambda session: function(self, session)

    def finalize(self) -> Scaffold:
        """Make what is still None, and let nothing be added to the default graph from then on."""
        makers = {
            "init_op": variables.global_variables_initializer,
            "local_init_op": Scaffold.default_local_init_op,
            "ready_for_local_init_op": lambda: variables.report_uninitialized_variables(
                variables.global_variables()
            ),
            "ready_op": variables.report_uninitialized_variables,
            "summary_op": merge_all,
        }
        for name, make in makers.items():
            if getattr(self, name) is None:
                key = getattr(GraphKeys, name.upper())
                setattr(self, name, Scaffold.get_or_default(name, key, make))
        if self.saver is None:
            self.saver = first_or_new(GraphKeys.SAVERS, lambda: Saver(allow_empty=True))
        self.saver.build()
        get_default_graph().finalize()
        return self

    @staticmethod
    def get_or_default(
        arg_name: str, collection_key: str, default_constructor: Callable[[], Any]
    ) -> Any:
        """What the default graph's collection has, or a new one, which is put there."""
        if len(get_collection(collection_key)) > 1:
            raise RuntimeError(
                f'More than one item in the collection "{collection_key}". Please indicate which'
                " one to use by passing it to the tf.Scaffold constructor as: "
                f" tf.Scaffold({arg_name}=item to use)"
            )
        return first_or_new(collection_key, default_constructor)

    @staticmethod
    def default_local_init_op() -> Any:
        """An op that initialises local variables, such as epoch counters, and tables."""
        return group(variables.local_variables_initializer(), variables.tables_initializer())


def first_or_new(key: str, make: Callable[[], Any]) -> Any:
    """The first of what the default graph's collection has; or a new one, which is put there."""
    found = get_collection(key)
    if found:
        return found[0]
    made = make()
    if made is not None:
        get_default_graph().add_to_collection(key, made)
    return made


class SessionManager:
    """Makes sessions whose model is initialised, or restored from a checkpoint."""

    def __init__(
        self,
        local_init_op: Any = None,
        ready_op: Any = None,
        ready_for_local_init_op: Any = None,
        graph: Any = None,
        recovery_wait_secs: float = 30,
        local_init_run_options: Any = None,
        local_init_feed_dict: Mapping[Any, Any] | None = None,
    ) -> None:
        if ready_for_local_init_op is not None and local_init_op is None:
            raise ValueError(
                "If you pass a ready_for_local_init_op you must also pass a local_init_op ,"
                f" ready_for_local_init_op [{ready_for_local_init_op}]"
            )
        self._local_init_op = local_init_op
        self._ready_op = ready_op
        self._ready_for_local_init_op = ready_for_local_init_op
        self._graph = get_default_graph() if graph is None else graph
        self._wait_secs = recovery_wait_secs
        self._local_init = {"feed_dict": local_init_feed_dict, "options": local_init_run_options}

    def prepare_session(
        self,
        master: str,
        init_op: Any = None,
        saver: Any = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        config: Any = None,
        init_feed_dict: Mapping[Any, Any] | None = None,
        init_fn: Callable[[Any], object] | None = None,
    ) -> Session:
        """Make a session, and restore the model, or initialise it if there is no checkpoint."""
        session = Session(master, graph=self._graph, config=config)
        try:
            is_restored = self._restore(
                session,
                saver,
                checkpoint_dir,
                checkpoint_filename_with_path,
                max_wait_secs if wait_for_checkpoint else 0,
            )
            if not is_restored:
                if init_op is None and not init_fn and self._local_init_op is None:
                    raise RuntimeError(
                        "Model is not initialized and no init_op or init_fn or local_init_op was"
                        " given"
                    )
                if init_op is not None:
                    session.run(init_op, feed_dict=init_feed_dict)
                if init_fn:
                    init_fn(session)
            is_local, missing = self._missing(session)
            if missing:
                inits = f"Init op: {getattr(init_op, 'name', init_op)}, init fn: {init_fn}"
                what = ".  " if is_local else " for local_init.  "
                op = self._local_init_op
                local = f", local_init_op: {getattr(op, 'name', op)}" if is_local else ""
                raise RuntimeError(
                    f"Init operations did not make model ready{what}{inits}{local}, error:"
                    f" {missing}"
                )
        except BaseException:
            session.close()
            raise
        return session

    def recover_session(
        self,
        master: str,
        saver: Any = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        config: Any = None,
    ) -> tuple[Session, bool]:
        """Make a session; and whether the model was restored, and is ready."""
        session = Session(master, graph=self._graph, config=config)
        wait_secs = max_wait_secs if wait_for_checkpoint else 0
        is_restored = self._restore(
            session, saver, checkpoint_dir, checkpoint_filename_with_path, wait_secs
        )
        _, missing = self._missing(session)
        if is_restored and missing:
            logging.info("Restoring did not make model ready: %s", missing)
        return session, is_restored and not missing

    def wait_for_session(
        self, master: str, config: Any = None, max_wait_secs: float | None = math.inf
    ) -> Session:
        """Make a session as soon as another one, of the same server, has made the model ready."""
        seconds = math.inf if max_wait_secs is None else max_wait_secs
        deadline = time.monotonic() + seconds
        while True:
            session = Session(master, graph=self._graph, config=config)
            _, missing = self._missing(session)
            if not missing:
                return session
            session.close()
            if time.monotonic() + self._wait_secs > deadline:
                message = f"Session was not ready after waiting {seconds:.0f} secs."
                raise errors.DeadlineExceededError(None, None, message)
            logging.info("Waiting for model to be ready: %s", missing)
            time.sleep(self._wait_secs)

    def _restore(
        self, session: Any, saver: Any, folder: str | None, path: str | None, wait_secs: float
    ) -> bool:
        if folder and path:
            raise ValueError(
                "Can not provide both checkpoint_dir and checkpoint_filename_with_path."
            )
        if not saver or not (folder or path):
            return False
        if path:
            saver.restore(session, path)
            return True
        assert folder
        waited = 0.0
        while (state := get_checkpoint_state(folder)) is None:
            if waited >= wait_secs:
                return False
            logging.info("Waiting for checkpoint to be available.")
            time.sleep(self._wait_secs)
            waited += self._wait_secs
        saver.restore(session, state.model_checkpoint_path)
        saver.recover_last_checkpoints(state.all_model_checkpoint_paths)
        return True

    def _missing(self, session: Any) -> tuple[bool, str]:
        """Initialise what is the session's own, if the model is: whether, and what is missing."""
        if self._local_init_op is not None:
            missing = _uninitialized(session, self._ready_for_local_init_op)
            if missing:
                return False, missing
            session.run(self._local_init_op, **self._local_init)
        return True, _uninitialized(session, self._ready_op)


def _uninitialized(session: Any, ready_op: Any) -> str:
    """What an op says is not initialised; nothing if there is no such op."""
    if ready_op is None:
        return ""
    try:
        found = session.run(ready_op)
    except errors.FailedPreconditionError as error:
        if "uninitialized" not in str(error):
            raise
        return str(error)
    # An op that has no names to tell of says by its success that all is ready.
    if found is None or found.dtype == np.int32 or not found.size:
        return ""
    return f"Variables not initialized: {', '.join(name.decode() for name in found)}"


class SessionCreator:
    """Base class of what makes the session of a `MonitoredSession`."""

    def create_session(self) -> Any:
        """Make a session, ready to be used."""
        raise NotImplementedError("create_session is not implemented.")


@dataclass(eq=False, repr=False)
class ChiefSessionCreator(SessionCreator):
    """Makes sessions that initialise the model, or restore it."""

    scaffold: Scaffold | None = None
    master: str = ""
    config: Any = None
    checkpoint_dir: str | None = None
    checkpoint_filename_with_path: str | None = None

    def create_session(self) -> Session:
        scaffold = self.scaffold = (self.scaffold or Scaffold()).finalize()
        manager = SessionManager(
            local_init_op=scaffold.local_init_op,
            local_init_feed_dict=scaffold.local_init_feed_dict,
            ready_op=scaffold.ready_op,
            ready_for_local_init_op=scaffold.ready_for_local_init_op,
        )
        return manager.prepare_session(
            self.master,
            init_op=scaffold.init_op,
            saver=scaffold.saver,
            checkpoint_dir=self.checkpoint_dir,
            checkpoint_filename_with_path=self.checkpoint_filename_with_path,
            config=self.config,
            init_feed_dict=scaffold.init_feed_dict,
            init_fn=scaffold.init_fn,
        )


SAVE_SECONDS = 600  # how often checkpoints are saved, if nothing is said

SUMMARY_STEPS = 100  # how often summaries are written, if nothing is said

PREEMPTED = (errors.AbortedError, errors.UnavailableError)
"""Failures after which a `MonitoredSession` makes its session again and retries."""

DEFAULT = object()  # stands for TensorFlow's own period for saving, or for summaries


class StepContext:
    """What a function that `MonitoredSession.run_step_fn` calls can do."""

    def __init__(self, session: Any, run_with_hooks_fn: Callable[..., Any]) -> None:
        self.session: Any = session  # whose runs call no hooks
        self.run_with_hooks: Callable[..., Any] = run_with_hooks_fn

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

    def run(
        self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None
    ) -> Any:
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
        self.coord.raise_requested_exception()
        return self.coord.should_stop() or self.stop_requested

    def end(self, grace: float) -> None:
        self.coord.request_stop()
        try:
            self.coord.join(stop_grace_period_secs=grace, ignore_live_threads=True)
        finally:
            try:
                self.session.close()
            except Exception:
                logging.debug("closing the session of a monitored session", exc_info=True)


class _MonitoredSession:
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
            return step_fn(StepContext(life.session, life.run))

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

    `OutOfRangeError` ends its ``with`` block normally; after `AbortedError` and
    `UnavailableError` it makes its session again, and retries.
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
    """Make a `MonitoredSession` that saves checkpoints and summaries; each process is the chief."""
    if not is_chief:
        raise NotImplementedError(
            "is_chief: got False; sessions of several processes are out of scope, so that"
            " each one is the chief"
        )
    for folder in (summary_dir, checkpoint_dir):
        if folder:  # scripts save there, too: in TensorFlow the hooks that write summaries make it
            make_directories(folder)
    scaffold = scaffold or Scaffold()
    every = list(chief_only_hooks or ())
    summary_dir = summary_dir or checkpoint_dir
    if summary_dir:
        if log_step_count_steps and log_step_count_steps > 0:
            needed_global_step("StepCounterHook")  # nothing else is missed of that hook
        steps, seconds = _period(save_summaries_steps, save_summaries_secs, (SUMMARY_STEPS, None))
        if steps or seconds:
            every.append(SummarySaverHook(steps, seconds, summary_dir, scaffold=scaffold))
    steps, seconds = _period(save_checkpoint_steps, save_checkpoint_secs, (None, SAVE_SECONDS))
    if checkpoint_dir and (steps or seconds):
        every.append(CheckpointSaverHook(checkpoint_dir, seconds, steps, scaffold=scaffold))
    every += hooks or ()
    creator = ChiefSessionCreator(scaffold, master, config, checkpoint_dir)
    return MonitoredSession(creator, every, stop_grace_period_secs)


def _period(steps: Any, seconds: Any, default: tuple[Any, Any]) -> tuple[Any, Any]:
    """The steps or the seconds after which a hook acts; a script gives at most one of the two."""
    if steps is DEFAULT and seconds is DEFAULT:
        return default
    given = (None if one is DEFAULT or (one or 0) <= 0 else one for one in (steps, seconds))
    return next(given), next(given)


def _check_feeds(ours: Mapping[Any, Any], theirs: Mapping[Any, Any], who: str) -> None:
    conflicts = [one for one in theirs if one in ours]
    if conflicts:
        raise RuntimeError(f"Same tensor is fed by {who}. Conflict(s): {conflicts}")
