"""`tf.train.Supervisor`: a session with its coordinator, its threads and its checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from threading import Thread
from typing import Any

from aioqueue.compat.v1 import logging
from aioqueue.compat.v1.coordination.coordinator import Coordinator, LooperThread
from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.default_graph import get_default_graph
from aioqueue.compat.v1.core.graph import Graph
from aioqueue.compat.v1.core.scopes import GraphKeys
from aioqueue.compat.v1.ops import variables
from aioqueue.compat.v1.ops.variables import global_step as step_in
from aioqueue.compat.v1.session.monitored import Scaffold, SessionManager, first_or_new
from aioqueue.compat.v1.session.saver import Saver
from aioqueue.compat.v1.session.session import Session
from aioqueue.compat.v1.summaries.ops import merge_all
from aioqueue.compat.v1.summaries.writer import FileWriter


class Supervisor:
    """Makes the session of a training loop, and runs what belongs to it in threads.

    Initialised or restored from `logdir`. None turns off what `USE_DEFAULT` stands for.
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
        self._graph = get_default_graph() if graph is None else graph
        self._stop_grace_secs = stop_grace_secs
        self.is_chief = is_chief
        self.coord: Coordinator = Coordinator()
        with self._graph.as_default():
            self.ready_op: Any = _chosen(
                ready_op, GraphKeys.READY_OP, variables.report_uninitialized_variables
            )
            self.ready_for_local_init_op: Any = _chosen(
                ready_for_local_init_op, GraphKeys.READY_FOR_LOCAL_INIT_OP, lambda: None
            )
            self.init_op: Any = _chosen(
                init_op, GraphKeys.INIT_OP, variables.global_variables_initializer
            )
            local_init_op = _chosen(
                local_init_op, GraphKeys.LOCAL_INIT_OP, Scaffold.default_local_init_op
            )
            self.saver: Any = _chosen(saver, GraphKeys.SAVERS, _saver)
            self.summary_op: Any = _chosen(summary_op, GraphKeys.SUMMARY_OP, merge_all)
            self.global_step: Any = _chosen(global_step, GraphKeys.GLOBAL_STEP, _step_by_name)
        self._init_feed_dict = init_feed_dict
        self._init_fn = init_fn
        self.session_manager: Any = session_manager or SessionManager(
            local_init_op=local_init_op,
            ready_op=self.ready_op,
            ready_for_local_init_op=self.ready_for_local_init_op,
            graph=self._graph,
            recovery_wait_secs=recovery_wait_secs,
            local_init_run_options=local_init_run_options,
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
        """A context with a session that is ready; leaving it stops all threads."""
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
        """Make a session that is ready, and start its threads."""
        self.coord.clear_stop()
        if self.summary_writer is not None:
            self.summary_writer.reopen()
        session: Session
        if self.is_chief:
            session = self.session_manager.prepare_session(
                master,
                init_op=self.init_op,
                saver=self.saver,
                checkpoint_dir=self._logdir,
                wait_for_checkpoint=wait_for_checkpoint,
                max_wait_secs=max_wait_secs,
                config=config,
                init_feed_dict=self._init_feed_dict,
                init_fn=self._init_fn,
            )
            if start_standard_services:
                self.start_standard_services(session)
        else:
            session = self.session_manager.wait_for_session(
                master, config=config, max_wait_secs=max_wait_secs
            )
        if start_standard_services:
            self.start_queue_runners(session)
        return session

    def start_standard_services(self, sess: Any) -> list[LooperThread] | None:
        """Start the threads that write checkpoints and summaries."""
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
        """Start the threads of queue runners."""
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
        """Start a thread that calls a function again and again until a stop."""
        return LooperThread.loop(self.coord, timer_interval_secs, target, args, kwargs)

    def stop(
        self,
        threads: Iterable[Thread] | None = None,
        close_summary_writer: bool = True,
        ignore_live_threads: bool = False,
    ) -> None:
        """Request a stop, and wait for the threads. The session stays open."""
        self.coord.request_stop()
        try:
            self.coord.join(threads, self._stop_grace_secs, ignore_live_threads)
        finally:
            if close_summary_writer and self.summary_writer is not None:
                self.summary_writer.close()

    def request_stop(self, ex: Any = None) -> None:
        """Ask all threads to stop, because of an exception if one is given."""
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
        """Write a summary."""
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
    return first_or_new(key, make) if given is Supervisor.USE_DEFAULT else given


def _saver() -> Saver | None:
    return Saver() if variables.global_variables() else None


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
