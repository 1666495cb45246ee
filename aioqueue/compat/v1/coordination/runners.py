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

    A thread whose op raises one of the queue-closed exceptions ends quietly; when the last one has
    ended so, the queue is closed. Any other exception is reported to the coordinator; without
    one it goes to ``exceptions_raised`` and the thread's excepthook, and the queue stays open.

    Args:
        queue: the queue that is closed; a thread's op may fill another one.
        enqueue_ops: one op, or whatever a session can run, per thread.
        close_op: closes the queue when the input has ended; ``queue.close()`` if ``None``.
        cancel_op: closes it at a stop; ``queue.close(cancel_pending_enqueues=True)`` if ``None``.
        queue_closed_exception_types: a tuple of `tf.errors` classes that tell that the input has
            ended; ``None`` for ``(tf.errors.OutOfRangeError,)``.
        queue_runner_def: what `to_proto` returned, instead of all those.
        import_scope: what to put in front of the names in it.

    Raises:
        ValueError: queue or enqueue ops are missing, or there is a definition besides them.
        TypeError: ``queue_closed_exception_types`` is no such tuple.
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
        self._exceptions_raised: list[BaseException] = []
        if queue_runner_def is not None:
            if queue or enqueue_ops:
                raise ValueError("queue_runner_def and queue are mutually exclusive.")
            self._find(queue_runner_def, import_scope)
            return
        if not queue or not enqueue_ops:
            raise ValueError("Must provide queue and enqueue_ops.")
        self._queue = queue
        self._enqueue_ops = list(enqueue_ops)
        self._closed_types = _checked_types(queue_closed_exception_types)
        self._close_op = queue.close() if close_op is None else close_op
        if cancel_op is None:
            cancel_op = queue.close(cancel_pending_enqueues=True)
        self._cancel_op = cancel_op

    def __repr__(self) -> str:
        return f"<tf.train.QueueRunner of '{self.name}', {len(self._enqueue_ops)} enqueue ops>"

    @property
    def queue(self) -> Any:
        """The queue that is closed."""
        return self._queue

    @property
    def enqueue_ops(self) -> list[Any]:
        """What the threads run."""
        return self._enqueue_ops

    @property
    def close_op(self) -> Any:
        """What closes the queue when the input has ended."""
        return self._close_op

    @property
    def cancel_op(self) -> Any:
        """What closes the queue at a stop."""
        return self._cancel_op

    @property
    def queue_closed_exception_types(self) -> tuple[type[errors.OpError], ...]:
        """The errors that tell that the input has ended."""
        return self._closed_types

    @property
    def exceptions_raised(self) -> list[BaseException]:
        """The exceptions of the latest threads that were not reported to a coordinator."""
        return self._exceptions_raised

    @property
    def name(self) -> str:
        """The name of the queue."""
        return str(self._queue.name)

    def create_threads(
        self,
        sess: Any,
        coord: Coordinator | None = None,
        daemon: bool = False,
        start: bool = False,
    ) -> list[threading.Thread]:
        """Make the threads that run the enqueue ops.

        Args:
            sess: the session that runs them.
            coord: says when to stop, and receives exceptions; its `join` waits for the threads, and
                one more thread closes the queue at a stop.
            daemon: whether the interpreter may end while they run.
            start: whether to start them; otherwise the caller starts them.

        Returns:
            The threads; none if those made before for this session have not ended.
        """
        with self._lock:
            if self._left.get(sess, 0) > 0:
                return []
            self._left[sess] = len(self._enqueue_ops)
            self._exceptions_raised = []
        threads = [
            self._thread(_op_name(op), self._run, (sess, op, coord), daemon)
            for op in self._enqueue_ops
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
        """This runner as plain data; ``None`` if its queue is not in the scope.

        Args:
            export_scope: only for runners in this name scope, which is cut off the names.
        """
        if export_scope is not None and not self.name.startswith(export_scope):
            return None
        strip = _strip(export_scope)
        return QueueRunnerDef(
            queue_name=strip(self.name),
            enqueue_op_name=[strip(_op_name(op)) for op in self._enqueue_ops],
            close_op_name=strip(_op_name(self._close_op)),
            cancel_op_name=strip(_op_name(self._cancel_op)),
            queue_closed_exception_types=list(
                map(errors.error_code_from_exception_type, self._closed_types)
            ),
        )

    @staticmethod
    def from_proto(
        queue_runner_def: QueueRunnerDef, import_scope: str | None = None
    ) -> QueueRunner:
        """A runner of ops in the default graph, as `to_proto` described it.

        Args:
            queue_runner_def: what `to_proto` returned.
            import_scope: what to put in front of the names in it.
        """
        return QueueRunner(queue_runner_def=queue_runner_def, import_scope=import_scope)

    def _find(self, given: QueueRunnerDef, scope: str | None) -> None:
        graph = get_default_graph()

        def element(name: str) -> Any:
            return graph.as_graph_element(f"{scope}/{name}" if scope else name)

        self._queue = element(given.queue_name)
        self._enqueue_ops = [element(name) for name in given.enqueue_op_name]
        self._close_op = element(given.close_op_name)
        self._cancel_op = element(given.cancel_op_name)
        codes = given.queue_closed_exception_types
        self._closed_types = tuple(map(errors.exception_type_from_error_code, codes)) or (
            errors.OutOfRangeError,
        )

    def _thread(
        self, what: str, target: Callable[..., None], args: tuple[Any, ...], daemon: bool
    ) -> threading.Thread:
        # daemon=None would inherit, which no script of that time expects.
        name = f"QueueRunnerThread-{self.name}-{what}"
        return threading.Thread(target=target, args=args, name=name, daemon=bool(daemon))

    def _run(self, sess: Any, op: Any, coord: Coordinator | None) -> None:
        """The life of a thread."""
        input_ended = False
        try:
            run_op = sess.make_callable(op)
            if coord is None:
                while True:
                    run_op()
            should_stop = coord.should_stop
            while not should_stop():
                run_op()
        except self._closed_types:
            input_ended = True
        except Exception as error:
            if coord is None:
                _log.error("Exception in QueueRunner: %s", error)
                with self._lock:
                    self._exceptions_raised.append(error)
                raise
            coord.request_stop(error)
        finally:
            with self._lock:
                self._left[sess] -= 1
                is_last = self._left[sess] == 0
            if is_last and input_ended:
                self._try(sess, self._close_op)

    def _cancel(self, sess: Any, coord: Coordinator) -> None:
        """The life of the thread that closes the queue at a stop, so that blocked threads end."""
        coord.wait_for_stop()
        self._try(sess, self._cancel_op)

    def _try(self, sess: Any, op: Any) -> None:
        try:
            sess.run(op)
        except Exception as error:
            _log.debug("Ignored exception of %s: %s", _op_name(op), error)


def add_queue_runner(qr: QueueRunner, collection: str = GraphKeys.QUEUE_RUNNERS) -> None:
    """Add a runner to a collection of the default graph, for `start_queue_runners` to find.

    Args:
        qr: the runner.
        collection: the name of the collection.
    """
    add_to_collection(collection, qr)


def start_queue_runners(
    sess: Any = None,
    coord: Coordinator | None = None,
    daemon: bool = True,
    start: bool = True,
    collection: str = GraphKeys.QUEUE_RUNNERS,
) -> list[threading.Thread]:
    """Start the threads of all runners in a collection of the session's graph.

    Args:
        sess: the session; ``None`` for the default session.
        coord: as for `QueueRunner.create_threads`.
        daemon: whether the interpreter may end while they run.
        start: whether to start them.
        collection: the name of the collection.

    Returns:
        The threads that were made.

    Raises:
        ValueError: there is no session.
        TypeError: ``sess`` is no session.
    """
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
