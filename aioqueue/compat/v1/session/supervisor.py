"""`tf.train.Supervisor`: a session with its coordinator, its threads and its checkpoints."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from threading import Thread
from typing import Any

from aioqueue.compat.v1 import errors, logging
from aioqueue.compat.v1.coordination.coordinator import Coordinator, LooperThread
from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.default_graph import get_default_graph
from aioqueue.compat.v1.core.graph import Graph
from aioqueue.compat.v1.core.scopes import GraphKeys
from aioqueue.compat.v1.ops.variables import global_step as step_in
from aioqueue.compat.v1.ops.variables import (
    global_variables,
    global_variables_initializer,
    report_uninitialized_variables,
)
from aioqueue.compat.v1.session.checkpoints import get_checkpoint_state
from aioqueue.compat.v1.session.saver import Saver
from aioqueue.compat.v1.session.scaffold import Scaffold, collected, local_initializer
from aioqueue.compat.v1.session.session import Session
from aioqueue.compat.v1.summaries.ops import merge_all
from aioqueue.compat.v1.summaries.writer import FileWriter

__all__ = ("Supervisor",)


class Supervisor:
    """Makes the session of a training loop, and runs what belongs to it in threads.

    The model is initialised, or restored from the latest checkpoint of `logdir`; queue runners are
    started; checkpoints and summaries are written from time to time. The graph is finalized.

    Where an argument may be `USE_DEFAULT`, None means that there is no such thing.

    Args:
        graph: the graph; None for the default one.
        ready_op: fetches the names of what is not initialised; by default those of all variables.
        ready_for_local_init_op: the same, asked before `local_init_op` runs; none by default.
        is_chief: whether this supervisor initialises and saves the model. Another one waits until
            the chief has done so, in a session of the same server.
        init_op: initialises the model; by default all global variables.
        init_feed_dict: fed to it.
        local_init_op: initialises what each session has of its own; by default all local variables
            and tables.
        logdir: the folder of checkpoints and summaries, which is made if it is not there.
        summary_op: what summarizes a step; by default all summaries of the graph.
        saver: saves and restores the variables; by default all global variables.
        global_step: the step in names of checkpoints; by default the graph's.
        save_summaries_secs: seconds between two summaries; 0 for none.
        save_model_secs: seconds between two checkpoints; the supervisor writes the first one at
            once. 0 for none.
        recovery_wait_secs: seconds between two checks of a worker that waits for the chief.
        stop_grace_secs: seconds within which threads have to end after a stop.
        checkpoint_basename: what the names of checkpoints begin with.
        session_manager: accepted if None.
        summary_writer: writes the summaries; by default a `tf.summary.FileWriter` of `logdir`.
        init_fn: called after `init_op` as ``init_fn(session)``.
        local_init_run_options: accepted.

    Attributes named after the arguments hold the resulting objects: `global_step`,
    `init_op`, `is_chief`, `ready_for_local_init_op`, `ready_op`, `save_model_secs`,
    `save_summaries_secs`, `saver`, `summary_op`, `summary_writer`.

    Attributes:
        coord: the coordinator of all threads.
        save_path: the path of checkpoints, without the number; None without a `logdir`.
    """

    USE_DEFAULT = 0
    """Stands for what TensorFlow makes if nothing is given."""

    def __init__(
        self,
        graph: Graph | None = None,
        ready_op: Any = USE_DEFAULT,
        ready_for_local_init_op: Any = USE_DEFAULT,
        is_chief: bool = True,
        init_op: Any = USE_DEFAULT,
        init_feed_dict: Mapping[Any, Any] | None = None,
        local_init_op: Any = USE_DEFAULT,
        logdir: Any = None,
        summary_op: Any = USE_DEFAULT,
        saver: Any = USE_DEFAULT,
        global_step: Any = USE_DEFAULT,
        save_summaries_secs: float | None = 120,
        save_model_secs: float | None = 600,
        recovery_wait_secs: float = 30,
        stop_grace_secs: float = 120,
        checkpoint_basename: str = "model.ckpt",
        session_manager: Any = None,
        summary_writer: Any = USE_DEFAULT,
        init_fn: Callable[[Any], object] | None = None,
        local_init_run_options: Any = None,
    ) -> None:
        del local_init_run_options
        if session_manager is not None:
            raise NotImplementedError("session_manager: a Supervisor makes its sessions itself")
        self._graph = get_default_graph() if graph is None else graph
        self._recovery_wait_secs = recovery_wait_secs
        self._stop_grace_secs = stop_grace_secs
        self.is_chief = is_chief
        self.coord: Coordinator = Coordinator()
        with self._graph.as_default():
            self.ready_op: Any = _chosen(
                ready_op, GraphKeys.READY_OP, report_uninitialized_variables
            )
            self.ready_for_local_init_op: Any = _chosen(
                ready_for_local_init_op, GraphKeys.READY_FOR_LOCAL_INIT_OP, lambda: None
            )
            self.init_op: Any = _chosen(init_op, GraphKeys.INIT_OP, global_variables_initializer)
            local_init_op = _chosen(local_init_op, GraphKeys.LOCAL_INIT_OP, local_initializer)
            self.saver: Any = _chosen(saver, GraphKeys.SAVERS, _saver)
            self.summary_op: Any = _chosen(summary_op, GraphKeys.SUMMARY_OP, merge_all)
            self.global_step: Any = _chosen(global_step, GraphKeys.GLOBAL_STEP, _step_by_name)
        self._model = Scaffold(
            init_op=self.init_op,
            init_feed_dict=init_feed_dict,
            init_fn=None if init_fn is None else lambda _, session: init_fn(session),
            ready_op=self.ready_op,
            ready_for_local_init_op=self.ready_for_local_init_op,
            local_init_op=local_init_op,
            saver=self.saver,
        )
        self._logdir = os.fspath(logdir) if logdir and is_chief else None
        self.save_summaries_secs: float | None = save_summaries_secs if is_chief else None
        self.save_model_secs: float | None = save_model_secs if is_chief else None
        self.save_path: str | None = None
        if self._logdir is not None:
            os.makedirs(self._logdir, exist_ok=True)
            self.save_path = os.path.join(self._logdir, checkpoint_basename)
        self.summary_writer: FileWriter | None = (
            summary_writer if is_chief and summary_writer else None
        )
        if summary_writer is self.USE_DEFAULT and self._logdir is not None:
            self.summary_writer = FileWriter(self._logdir)
        self._graph.finalize()

    @contextmanager
    def managed_session(
        self,
        master: str = "",
        config: Any = None,
        start_standard_services: bool = True,
        close_summary_writer: bool = True,
    ) -> Iterator[Session]:
        """A context with a session that is ready; leaving it stops all threads.

        Args:
            master: target of the session.
            config: configuration of the session.
            start_standard_services: whether to start the threads.
            close_summary_writer: whether leaving it closes the writer.

        Yields:
            The session, which is closed at the end.

        Raises:
            Exception: the first failure of the block or of a thread, but for `OutOfRangeError`,
                which is the end of the input.
        """
        session: Session | None = None
        try:
            session = self.prepare_or_wait_for_session(
                master, config, start_standard_services=start_standard_services
            )
            yield session
        except Exception as error:
            self.request_stop(error)
        finally:
            try:
                self.stop(close_summary_writer=close_summary_writer)
            finally:
                if session is not None:
                    with suppress(Exception):
                        session.close()

    def prepare_or_wait_for_session(
        self,
        master: str = "",
        config: Any = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        start_standard_services: bool = True,
    ) -> Session:
        """Make a session that is ready, and start its threads.

        Args:
            master: target of the session.
            config: configuration of the session.
            wait_for_checkpoint: whether to wait for a checkpoint, instead of initialising.
            max_wait_secs: seconds to wait at most.
            start_standard_services: whether to start the threads.

        Raises:
            RuntimeError: something is not initialised; it is named.
            DeadlineExceededError: the chief has not initialised the model in time.
        """
        self.coord.clear_stop()
        if self.summary_writer is not None:
            self.summary_writer.reopen()
        if self.is_chief:
            folder = self._logdir
            if wait_for_checkpoint and folder is not None:
                self._wait_until(lambda: get_checkpoint_state(folder), max_wait_secs)
            session = self._connected(master, config)
            try:
                self._model.initialize(session, self._logdir)
            except BaseException:
                session.close()
                raise
            if start_standard_services:
                self.start_standard_services(session)
        else:
            found = self._wait_until(lambda: self._ready_session(master, config), max_wait_secs)
            if found is None:
                raise errors.DeadlineExceededError(
                    None, None, f"Session was not ready after waiting {max_wait_secs:.0f} secs."
                )
            session = found
        if start_standard_services:
            self.start_queue_runners(session)
        return session

    def _connected(self, master: str, config: Any) -> Session:
        return Session(master, graph=self._graph, config=config)

    def _ready_session(self, master: str, config: Any) -> Session | None:
        """A session, if the chief has made the model ready."""
        session = self._connected(master, config)
        with suppress(errors.FailedPreconditionError):  # something is not initialised
            if self._model.make_ready(session) is None:
                return session
        session.close()
        return None

    def _wait_until(self, look: Callable[[], Any], seconds: float) -> Any:
        """What is found at last; None if the time would be up before one looks again."""
        deadline = time.monotonic() + seconds
        found = look()
        while found is None and time.monotonic() + self._recovery_wait_secs <= deadline:
            logging.info("Waiting for model to be ready.")
            time.sleep(self._recovery_wait_secs)
            found = look()
        return found

    def start_standard_services(self, sess: Any) -> list[LooperThread] | None:
        """Start the threads that write checkpoints and summaries.

        Args:
            sess: the session.

        Returns:
            Those threads; None, after a warning, without a `logdir`.

        Raises:
            RuntimeError: it is not the chief.
        """
        if not self.is_chief:
            raise RuntimeError(
                "Only chief supervisor can start standard services. Because only chief supervisors"
                " can write events."
            )
        if self._logdir is None:
            logging.warning("Standard services need a 'logdir' passed to the SessionManager")
            return None
        threads = []
        if self.save_summaries_secs and self.summary_writer and self.summary_op is not None:
            threads.append(self.loop(self.save_summaries_secs, self._summarize, (sess,)))
        if self.save_model_secs and self.saver:
            threads.append(self.loop(self.save_model_secs, self._save, (sess,)))
        return threads

    def _save(self, session: Any) -> None:
        logging.info("Saving checkpoint to path %s", self.save_path)
        self.saver.save(session, self.save_path, global_step=self.global_step)

    def _summarize(self, session: Any) -> None:
        self.summary_computed(session, session.run(self.summary_op))

    def start_queue_runners(
        self, sess: Any, queue_runners: Iterable[Any] | None = None
    ) -> list[Thread]:
        """Start the threads of queue runners.

        Args:
            sess: the session.
            queue_runners: the runners; None for all that the graph has collected.

        Returns:
            The threads.
        """
        if queue_runners is None:
            queue_runners = self._graph.get_collection(GraphKeys.QUEUE_RUNNERS)
        threads: list[Thread] = []
        for one in queue_runners:
            threads += one.create_threads(sess, coord=self.coord, daemon=True, start=True)
        return threads

    def loop(
        self,
        timer_interval_secs: float | None,
        target: Callable[..., object],
        args: Iterable[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> LooperThread:
        """Start a thread that calls a function again and again until a stop.

        Args:
            timer_interval_secs: seconds between two calls; None calls without a pause.
            target: the function.
            args: what to call it with.
            kwargs: the same, by name.

        Returns:
            The thread.
        """
        return LooperThread.loop(self.coord, timer_interval_secs, target, args, kwargs)

    def stop(
        self,
        threads: Iterable[Thread] | None = None,
        close_summary_writer: bool = True,
        ignore_live_threads: bool = False,
    ) -> None:
        """Request a stop, and wait for the threads. The session stays open.

        Args:
            threads: threads besides those that it has started.
            close_summary_writer: whether to close the writer.
            ignore_live_threads: whether threads that still run after their grace are no error.

        Raises:
            Exception: the first failure that was reported.
            RuntimeError: threads still run.
        """
        self.coord.request_stop()
        try:
            self.coord.join(threads, self._stop_grace_secs, ignore_live_threads)
        finally:
            if close_summary_writer and self.summary_writer is not None:
                self.summary_writer.close()

    def request_stop(self, ex: Any = None) -> None:
        """Ask all threads to stop, because of an exception if one is given.

        Args:
            ex: as for `Coordinator.request_stop`.
        """
        self.coord.request_stop(ex)

    def should_stop(self) -> bool:
        """Whether a stop was requested."""
        return self.coord.should_stop()

    def stop_on_exception(self) -> AbstractContextManager[None]:
        """A context in which any exception requests a stop, and goes no further."""
        return self.coord.stop_on_exception()

    def wait_for_stop(self) -> None:
        """Wait until a stop is requested."""
        self.coord.wait_for_stop()

    def summary_computed(self, sess: Any, summary: Any, global_step: int | None = None) -> None:
        """Write a summary.

        Args:
            sess: the session.
            summary: what a summary op has given.
            global_step: the step it belongs to; None for that of now.

        Raises:
            RuntimeError: there is no writer.
        """
        if self.summary_writer is None:
            raise RuntimeError("Writing a summary requires a summary writer.")
        if global_step is None and self.global_step is not None:
            global_step = step_in(sess, self.global_step)
        self.summary_writer.add_summary(summary, global_step)

    # The names that it had at first.

    Loop = loop
    PrepareSession = prepare_or_wait_for_session
    RequestStop = request_stop
    ShouldStop = should_stop
    StartQueueRunners = start_queue_runners
    StartStandardServices = start_standard_services
    Stop = stop
    StopOnException = stop_on_exception
    SummaryComputed = summary_computed
    WaitForStop = wait_for_stop


def _chosen(given: Any, key: str, make: Callable[[], Any]) -> Any:
    """What was given; by default what the graph's collection has, else a new one."""
    return collected(key, make) if given is Supervisor.USE_DEFAULT else given


def _saver() -> Saver | None:
    return Saver() if global_variables() else None


def _step_by_name() -> Any:
    """What the graph has of the name of a global step, if it is a number."""
    try:
        found = get_default_graph().get_tensor_by_name("global_step:0")
    except KeyError:
        return None
    if found.dtype in (dtypes.int32, dtypes.int64):
        return found
    logging.warning("Found 'global_step' is not an int type: %s", found.dtype)
    return None
