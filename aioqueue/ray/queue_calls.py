"""The calls that a queue's API makes to its actor, the same for coroutines and threads.

They convert elements to columns and columns to segments, and leases to batches.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

import aioqueue
from aioqueue.core.elements.component import Component
from aioqueue.core.elements.spec import Columns
from aioqueue.errors import add_note, exception_text
from aioqueue.ray.client_registry import CallNumbers
from aioqueue.ray.messages import SMALL, Answer
from aioqueue.ray.packing import sealed_unless_references
from aioqueue.ray.queue_connection import CallFlow, Client
from aioqueue.ray.replayable_producers import ProducerBatch
from aioqueue.ray.sealing import opened, sealed_bytes
from aioqueue.ray.segments import Payload, gathered
from aioqueue.workers.executors.ray_cluster import is_loss


class QueueCalls:
    """The calls to the actor, for both APIs.

    Args:
        local: a local queue of the same kind; used for its checks, and never filled.
        client: the connection.
        owned: whether to copy large batches to the actor.
        autocommit: whether a dequeue commits the previous one.
    """

    def __init__(
        self,
        local: Any,
        client: Client,
        *,
        owned: bool,
        autocommit: bool,
    ) -> None:
        self.client = client
        self.core: Any = local._core
        self._spec = local._core.spec
        self._owned = owned
        self._autocommit = autocommit
        self._has_agreed = False
        self._lock = threading.Lock()
        self._unused: list[int] = []  # leases that were received and not committed
        self._task_done_numbers = CallNumbers()
        self.last = client.caller.last_committed

    def agree(self) -> CallFlow[None]:
        """Check once that the queue is as described, and get the number of the first lease."""
        if not self._has_agreed:
            client = self.client
            answer = yield from client.request(lambda: client.actor.agree.remote(client.caller))
            client.raise_error(answer)
            with self._lock:
                if (
                    client.has_name and not self._has_agreed
                ):  # another call may have agreed and begun to dequeue
                    client.handle_state.dequeues.start_at(answer.rows)
                self._has_agreed = True

    def put(self, columns: Columns, n: int, entry: ProducerBatch | None = None) -> CallFlow[Answer]:
        """Enqueue rows; with an entry, those of a replayable producer's batch."""
        client, handle_state = self.client, self.client.handle_state
        yield from client.rejoin()
        size = _bytes_of(columns)
        keys = self._keys(columns)
        with self._explaining_unpicklable(columns):
            payload = self._payload(columns, size)  # pickles the objects of users
            copy = handle_state.copied(payload) if handle_state.keeps else None

        def enqueue(number: int, known: int) -> Any:
            # Before the call leaves: the actor may die at once, and the report must have the batch.
            if copy is not None:
                handle_state.keep(number, copy)
            return client.actor.enqueue.remote(
                client.caller, number, known, payload, n, size // n, keys, self._owned, entry
            )

        with self._explaining_unpicklable(columns):
            number, reference = handle_state.enqueues.begin(enqueue)
        repeat = partial(handle_state.enqueues.repeat, number, enqueue)
        try:
            answer: Answer = yield from client.await_answer(reference, repeat)
        except aioqueue.WorkerDiedError:
            raise
        except BaseException as error:
            # Cancelled. Only the answer says how many rows are in, so wait for it even now. If the
            # actor restarts meanwhile, the report repeats the cancellation.
            with handle_state.cancelled_calls("enqueue", number):
                yield client.actor.cancel.remote("enqueue", client.caller, number)
                answer = yield from client.await_answer(reference, repeat)
            handle_state.forget(answer.freed)
            _record_rows(error, answer.rows, n)
            raise
        finally:
            client.end_enqueue(number)
        # Of a batch without rows in the queue, nothing will be committed that could release it.
        handle_state.forget(answer.freed if answer.rows else [number, *answer.freed])
        client.raise_error(answer)
        return answer

    def take(self, n: int, up_to: bool = False, max_wait: float | None = None) -> CallFlow[Columns]:
        """Dequeue rows; with ``autocommit``, this commits the previous ones."""
        if self.client.has_name:  # an unnamed consumer has a single life, whose leases start at 0
            yield from self.agree()
        yield from self.client.rejoin()
        while True:
            columns = yield from self._take(n, up_to, max_wait)
            if columns is not None:
                return columns

    def _take(self, n: int, up_to: bool, max_wait: float | None) -> CallFlow[Columns | None]:
        """Dequeue rows once; ``None`` if they have gone elsewhere, and the call must be
        repeated."""
        client, handle_state = self.client, self.client.handle_state
        # The commit travels with the dequeue. These leases stay in `_unused` until the answer, so a
        # failed call leaves them to the next one.
        used: list[int] = []
        if self._autocommit:
            with self._lock:
                used = list(self._unused)

        def dequeue(number: int, known: int) -> Any:
            return client.actor.dequeue.remote(
                client.caller, number, known, n, up_to, max_wait, used
            )

        number, reference = handle_state.dequeues.begin(dequeue)
        repeat = partial(handle_state.dequeues.repeat, number, dequeue)
        try:
            answer: Answer = yield from client.await_answer(reference, repeat)
            self._note_used(used)
            columns = [] if answer.error is not None else (yield from self._fetch(answer, number))
            if answer.error is None and columns is not None:
                # Before `end_dequeue`: a report in between must name it as held or as unanswered,
                # else the actor gives it back.
                handle_state.hold(number)
        except aioqueue.WorkerDiedError:
            raise
        except BaseException:
            with handle_state.cancelled_calls("dequeue", number):
                yield client.actor.cancel.remote("dequeue", client.caller, number)
            raise
        finally:
            client.end_dequeue(number)
        client.raise_error(answer)
        if columns is not None:
            with self._lock:
                self._unused.append(number)
                self.last = number
        return columns

    def commit(self, upto: int | None) -> CallFlow[None]:
        client = self.client
        with self._lock:
            done = [number for number in self._unused if upto is None or number <= upto]
        if done:
            life = client.caller.life
            answer = yield from client.request(lambda: client.actor.use.remote(life, done))
            client.raise_error(answer)
            self._note_used(done)

    def task_done(self, n: int) -> CallFlow[None]:
        """Report elements as done with, exactly once; a cancelled call has reported them, too."""
        if not n:
            return
        client = self.client
        yield from client.rejoin()

        def send(number: int, known: int) -> Any:
            return client.actor.task_done.remote(client.caller, number, known, n)

        number, reference = self._task_done_numbers.begin(send)
        repeat = partial(self._task_done_numbers.repeat, number, send)
        try:
            answer: Answer = yield from client.await_answer(reference, repeat)
        except aioqueue.WorkerDiedError:
            raise
        except BaseException:
            yield from client.await_answer(repeat(), repeat)
            raise
        finally:
            self._task_done_numbers.end(number)
        client.raise_error(answer)

    def join(self) -> CallFlow[None]:
        yield from self.agree()
        self.client.raise_error((yield self.client.actor.join.remote()))

    def _note_used(self, numbers: list[int]) -> None:
        """Record a commit that the actor has confirmed; a failed call leaves it to the next one."""
        self.client.handle_state.use(numbers)
        if numbers:
            with self._lock:
                self._unused = [number for number in self._unused if number not in numbers]

    def close(self, cancel: bool, cause: BaseException | None) -> CallFlow[None]:
        client = self.client
        yield from self.agree()
        message = client.message_of(cause)
        answer = yield from client.request(
            lambda: client.actor.close_for_good.remote(cancel, message)
        )
        client.raise_error(answer)

    def drain(self, node: str | None, seconds: float | None) -> CallFlow[None]:
        """Release what belongs to this handle, or to all on a node."""
        client = self.client
        answer = yield from client.request(
            lambda: client.actor.drain.remote(client.caller, node, seconds)
        )
        client.raise_error(answer)

    def ask(self, method: str) -> CallFlow[Any]:
        yield from self.agree()
        return (yield getattr(self.client.actor, method).remote())

    def _fetch(self, answer: Answer, number: int) -> CallFlow[Columns | None]:
        """Return the rows of a lease; ``None`` if they have gone back."""
        runs: list[tuple[Columns, Sequence[int]]] = []
        for payload, rows in answer.runs:
            columns = payload.columns
            if columns is None:
                try:
                    columns = yield payload.ref[0]
                except BaseException as error:
                    if not is_loss(error):
                        raise
                    life = self.client.caller.life
                    reply: Answer = yield self.client.actor.lost.remote(life, number, payload.ref)
                    if reply.must_retry:
                        return None
                    assert reply.error is not None
                    raise reply.error from error
            runs.append((self._opened(columns), rows))
        is_padded = self.client.description.kind == "PaddingFIFOQueue"
        return gathered(self._spec, runs, is_padded=is_padded)

    @property
    def _is_typed(self) -> bool:
        return self._spec.components is not None

    def _payload(self, columns: Columns, size: int) -> Payload:
        ray = self.client.ray
        references = (ray.ObjectRef, ray.actor.ActorHandle)
        sent = sealed_unless_references(
            columns, ray.cloudpickle, references, is_typed=self._is_typed
        )
        if sent is not columns:  # an object that nobody can unpickle would block all consumers
            opened(sent, ray.cloudpickle.loads, is_typed=self._is_typed)
        size = max(size, sealed_bytes(sent, is_typed=self._is_typed))
        if size <= SMALL or (self._owned and not self.client.handle_state.keeps):
            return Payload(sent)
        return Payload(None, (ray.put(sent),))

    def _opened(self, columns: Columns | bytes) -> Columns:
        """Unpickle the objects of users in the columns of a segment.

        Raises:
            Exception: one cannot be unpickled here.
        """
        try:
            return opened(columns, self.client.ray.cloudpickle.loads, is_typed=self._is_typed)
        except Exception as error:
            add_note(
                error,
                f"while unpickling an element of queue '{self.client.name}', which keeps it",
            )
            raise

    @contextmanager
    def _explaining_unpicklable(self, columns: Columns) -> Iterator[None]:
        """Raise a short error for rows that cannot be pickled, or not be unpickled again. Ray's own
        has many coloured lines, and does not name the queue.

        Raises:
            InvalidArgumentError: the rows cannot be sent.
        """
        try:
            yield
        except aioqueue.AioQueueError:
            raise
        except Exception:
            cloudpickle = self.client.ray.cloudpickle
            what = "pickled"
            try:
                sent = cloudpickle.dumps(columns)
                what = "unpickled again"
                cloudpickle.loads(sent)
            except Exception as error:
                raise aioqueue.InvalidArgumentError(
                    f"element: got one that cannot be {what}, so it cannot be put into queue"
                    f" '{self.client.name}' ({exception_text(error)});"
                    f" expected what can be sent to other"
                    " programs"
                ) from error
            raise

    def _keys(self, columns: Columns) -> list[int] | None:
        if self.client.description.kind != "PriorityQueue":
            return None
        if self._spec.components is None:
            return [int(row[0]) for row in columns]
        return [int(key) for key in columns[0]]

    def columns_of_batch(self, batch: Any) -> tuple[Columns, int]:
        """Return the columns of a batch, in the dtypes of the queue, and its number of rows."""
        columns, n = self._spec.columns(batch)
        components = self._spec.components
        if components is None:
            return columns, n
        if self._spec.rows_private:  # rows rather than columns, since shapes may differ
            columns = [[row[place] for row in columns] for place in range(len(components))]
            return list(map(_column, columns, components)), n
        columns = [
            np.asarray(column, component.dtype)
            for column, component in zip(columns, components, strict=True)
        ]
        return columns, n

    def columns_of(self, element: Any) -> Columns:
        row = self._spec.row(element)
        components = self._spec.components
        if components is None:
            return [row]
        return [
            _column([value], component) for value, component in zip(row, components, strict=True)
        ]

    def element_of(self, columns: Columns) -> Any:
        """Return the only element of a batch."""
        if self._spec.components is None:
            return self._spec.element(columns[0])
        return self._spec.element(tuple(column[0] for column in columns))

    def batch_of(self, columns: Columns) -> Any:
        """Return columns in the form that users get."""
        return self._spec.batch(columns)


def _column(values: list[Any], component: Component) -> Any:
    """Return values as one array, or as a list of arrays if their shapes differ."""
    if component.scalar:
        column = np.empty(len(values), component.dtype)
        for place, value in enumerate(values):
            column[place] = value  # item by item, so that a list counts as one object
        return column
    arrays = [np.asarray(value, component.dtype) for value in values]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        return arrays
    column = np.empty((len(arrays), *shapes.pop()), component.dtype)
    for place, array in enumerate(arrays):
        column[place] = array
    return column


def _bytes_of(columns: Columns) -> int:
    arrays = [array for one in columns for array in (one if _is_ragged(one) else (one,))]
    return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))


def _is_ragged(column: Any) -> bool:
    return isinstance(column, list) and bool(column) and isinstance(column[0], np.ndarray)


def _record_rows(error: BaseException, rows: int, n: int) -> None:
    try:
        error.enqueued = rows  # type: ignore[attr-defined]
        error.add_note(f"{rows} of {n} rows are in the queue")
    except Exception:
        return  # its class has no attribute for it
