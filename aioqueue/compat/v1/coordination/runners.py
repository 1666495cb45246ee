"""`tf.train.QueueRunner`: threads that run enqueue ops of one session again and again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.coordination.coordinator import Coordinator
from aioqueue.compat.v1.core.default_graph import get_default_graph
from aioqueue.compat.v1.core.graph import default_sessions
from aioqueue.compat.v1.core.scopes import GraphKeys, add_to_collection, get_collection

__all__ = ("QueueRunner", "QueueRunnerDef", "add_queue_runner", "start_queue_runners")

_log = logging.getLogger("aioqueue.compat")


@dataclass
class QueueRunnerDef:
    """A queue runner as plain data: names of ops, and codes of errors."""

    queue_name: str = ""
    enqueue_op_name: list[str] = field(default_factory=list)
    close_op_name: str = ""
    cancel_op_name: str = ""
    queue_closed_exception_types: list[int] = field(default_factory=list)


class QueueRunner:
    """Keeps a queue filled: one thread for each enqueue op, which runs it again and again.

    One of the queue-closed exceptions ends a thread quietly, and the last such thread closes the
    queue. Any other one goes to the coordinator; without one, to ``exceptions_raised``.
    """

    def __init__(
        self,
        queue: Any = None,
        enqueue_ops: Sequence[Any] | None = None,
        close_op: Any = None,
        cancel_op: Any = None,
        queue_closed_exception_types: tuple[type[errors.OpError], ...] | None = None,
        queue_runner_def: QueueRunnerDef | None = None,
        import_scope: str | None = None,
    ) -> None:
        self._lock = threading.Lock()  # guards the two below
        self._left: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # by session
        self.exceptions_raised: list[BaseException] = []
        if queue_runner_def is not None:
            if queue or enqueue_ops:
                raise ValueError("queue_runner_def and queue are mutually exclusive.")
            self._find(queue_runner_def, import_scope)
            return
        if not queue or not enqueue_ops:
            raise ValueError("Must provide queue and enqueue_ops.")
        self.queue: Any = queue
        self.enqueue_ops: Any = enqueue_ops
        self.queue_closed_exception_types: tuple[type[errors.OpError], ...] = _checked_types(
            queue_closed_exception_types
        )
        self.close_op: Any = queue.close() if close_op is None else close_op
        if cancel_op is None:
            cancel_op = queue.close(cancel_pending_enqueues=True)
        self.cancel_op: Any = cancel_op

    def __repr__(self) -> str:
        return f"<tf.train.QueueRunner of '{self.name}', {len(self.enqueue_ops)} enqueue ops>"

    @property
    def name(self) -> str:
        """The name of the queue."""
        return str(self.queue.name)

    def create_threads(
        self, sess: Any, coord: Coordinator | None = None, daemon: bool = False, start: bool = False
    ) -> list[threading.Thread]:
        """Make the threads that run the enqueue ops."""
        with self._lock:
            if self._left.get(sess, 0) > 0:
                return []
            self._left[sess] = len(self.enqueue_ops)
            self.exceptions_raised = []
        threads = [
            self._thread(_op_name(op), self._run, (sess, op, coord), daemon)
            for op in self.enqueue_ops
        ]
        if coord is not None:
            threads.append(self._thread("close_on_stop", self._cancel, (sess, coord), daemon))
        for thread in threads:
            if coord is not None:
                coord.register_thread(thread)
            if start:
                thread.start()
        return threads

    def to_proto(self, export_scope: str | None = None) -> QueueRunnerDef | None:
        """This runner as plain data; ``None`` if its queue is not in the scope."""
        if export_scope is not None and not self.name.startswith(export_scope):
            return None
        strip = _strip(export_scope)
        return QueueRunnerDef(
            queue_name=strip(self.name),
            enqueue_op_name=[strip(_op_name(op)) for op in self.enqueue_ops],
            close_op_name=strip(_op_name(self.close_op)),
            cancel_op_name=strip(_op_name(self.cancel_op)),
            queue_closed_exception_types=list(
                map(errors.error_code_from_exception_type, self.queue_closed_exception_types)
            ),
        )

    @staticmethod
    def from_proto(
        queue_runner_def: QueueRunnerDef, import_scope: str | None = None
    ) -> QueueRunner:
        """A runner of ops in the default graph, as `to_proto` described it."""
        return QueueRunner(queue_runner_def=queue_runner_def, import_scope=import_scope)

    def _find(self, given: QueueRunnerDef, scope: str | None) -> None:
        graph = get_default_graph()

        def element(name: str) -> Any:
            return graph.as_graph_element(f"{scope}/{name}" if scope else name)

        self.queue = element(given.queue_name)
        self.enqueue_ops = [element(name) for name in given.enqueue_op_name]
        self.close_op = element(given.close_op_name)
        self.cancel_op = element(given.cancel_op_name)
        codes = given.queue_closed_exception_types
        self.queue_closed_exception_types = tuple(
            map(errors.exception_type_from_error_code, codes)
        ) or (errors.OutOfRangeError,)

    def _thread(
        self, what: str, target: Callable[..., None], args: tuple[Any, ...], daemon: bool
    ) -> threading.Thread:
        # daemon=None would inherit, which no script of that time expects.
        name = f"QueueRunnerThread-{self.name}-{what}"
        return threading.Thread(target=target, args=args, name=name, daemon=bool(daemon))

    def _run(self, sess: Any, op: Any, coord: Coordinator | None) -> None:
        input_ended = False
        try:
            run_op = sess.make_callable(op)
            if coord is None:
                while True:
                    run_op()
            should_stop = coord.should_stop
            while not should_stop():
                run_op()
        except self.queue_closed_exception_types:
            input_ended = True
        except Exception as error:
            if coord is None:
                _log.error("Exception in QueueRunner: %s", error)
                with self._lock:
                    self.exceptions_raised.append(error)
                raise
            coord.request_stop(error)
        finally:
            with self._lock:
                self._left[sess] -= 1
                is_last = self._left[sess] == 0
            if is_last and input_ended:
                self._try(sess, self.close_op)

    def _cancel(self, sess: Any, coord: Coordinator) -> None:
        """The life of the thread that closes the queue at a stop, so that blocked threads end."""
        coord.wait_for_stop()
        self._try(sess, self.cancel_op)

    def _try(self, sess: Any, op: Any) -> None:
        try:
            sess.run(op)
        except Exception as error:
            _log.debug("Ignored exception of %s: %s", _op_name(op), error)


def add_queue_runner(qr: QueueRunner, collection: str = GraphKeys.QUEUE_RUNNERS) -> None:
    """Add a runner to a collection of the default graph, for `start_queue_runners` to find."""
    add_to_collection(collection, qr)


def start_queue_runners(
    sess: Any = None,
    coord: Coordinator | None = None,
    daemon: bool = True,
    start: bool = True,
    collection: str = GraphKeys.QUEUE_RUNNERS,
) -> list[threading.Thread]:
    """Start the threads of all runners in a collection of the session's graph."""
    if sess is None:
        sess = default_sessions.top()
        if sess is None:
            raise ValueError(
                "Cannot start queue runners: No default session is registered. Use `with"
                " sess.as_default()` or pass an explicit session to"
                " tf.start_queue_runners(sess=sess)"
            )
    if not hasattr(sess, "make_callable"):
        if type(sess).__name__ in ("MonitoredSession", "SingularMonitoredSession"):
            return []  # it has started them itself
        raise TypeError(f"sess must be a `tf.Session` object. Given class: {type(sess)}")
    with sess.graph.as_default():
        runners = get_collection(collection)
    if not runners:
        _log.warning(
            "`tf.train.start_queue_runners()` was called when no queue runners were defined."
            " You can safely remove the call."
        )
    threads: list[threading.Thread] = []
    for runner in runners:
        threads += runner.create_threads(sess, coord=coord, daemon=daemon, start=start)
    return threads


def _checked_types(types: Any) -> tuple[type[errors.OpError], ...]:
    if types is None:
        return (errors.OutOfRangeError,)
    if (
        not isinstance(types, tuple)
        or not types
        or not all(isinstance(kind, type) and issubclass(kind, errors.OpError) for kind in types)
    ):
        raise TypeError(
            "queue_closed_exception_types, when provided, must be a tuple of tf.error types, but"
            f" saw: {types!r}"
        )
    return types


def _op_name(op: Any) -> str:
    return str(getattr(op, "name", op))


def _strip(scope: str | None) -> Callable[[str], str]:
    prefix = f"{scope.rstrip('/')}/" if scope else ""
    return lambda name: name.removeprefix(prefix)
