"""`ChunkExecutor`: the rules of executors that send items in chunks to processes or Ray actors.

Each worker has a thread here, and a `Connection` to the process or Ray actor that calls the
function. The thread sends items in chunks, one chunk ahead, waits for the outcomes, and enqueues
them. One more thread takes items from the source.

A connection decides nothing: it sends a chunk, receives outcomes, and says what was lost. All rules
are here, once for all kinds of workers:

**Every item once.** `Assignments` has the items of a worker. Each leaves it when its whole outcome
has arrived. So if a worker is lost, at any moment, exactly its remaining items are prepared again,
and every item is delivered once.

**Deaths.** Some connections know which item killed the worker: a process writes the number of its
item into shared memory. Others know only the chunk. Then all items of the chunk are suspects. From
then on each of them is sent alone, when its worker has no other item: if a worker dies again, it is
certain why. An item that `MOST_DEATHS` workers have died of fails.

**Chunks.** `SendPace` estimates how long an item takes, and so how many to send together. Items
that take long are not sent ahead: each would wait for the one before it, even if another worker is
idle.

**Failures of all workers.** If no worker can import the function, each of them finds that out. Only
the first one reports it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar

from aioqueue import ItemTimeoutError, WorkerDiedError
from aioqueue.base.arguments import EnqueueOp
from aioqueue.errors import add_note
from aioqueue.items.item import Prepared
from aioqueue.processes.respawning import MOST_DEATHS
from aioqueue.workers.executor import Executor
from aioqueue.workers.executors.process_child import Sent
from aioqueue.workers.executors.worker_threads import (
    ThreadDelivery,
    ThreadInbox,
    ThreadSource,
    WorkerThreads,
)
from aioqueue.workers.flow_control import Pending
from aioqueue.workers.job import Job, NothingMore
from aioqueue.workers.timing import WorkerGauge

_MOST_ITEMS: Final = 64

_WEIGHT: Final = 0.2
"""The weight of the latest report in the estimated seconds per item."""

_log: Final = logging.getLogger("aioqueue")


class Chunking(NamedTuple):
    """How large the chunks for one kind of worker are."""

    seconds: float = 0.01
    """The seconds of work that a chunk should take."""
    slow: float = 0.02
    """If items take longer than this many seconds, none are sent ahead."""
    is_filled: bool = False
    """Whether a chunk may have more than a fair share of the items, since a message is costly."""
    has_late_clock: bool = False
    """Whether the time of an item runs from its sending, rather than from its beginning."""
    most_bytes: int | None = None
    """The largest total of the examples in a chunk of many items."""
    few: int = 1
    """The number of items whose total may be larger."""
    few_bytes: int = 0
    """The largest total of the examples of a few items."""


class SendPace:
    """Estimates the seconds per item from workers' reports, and so how many to send at a time.

    Args:
        chunk_seconds: the seconds of work that a chunk should take.
        slow: if items take longer than this many seconds, none are sent ahead.
    """

    def __init__(
        self, chunk_seconds: float = Chunking().seconds, slow: float = Chunking().slow
    ) -> None:
        self._chunk_seconds = chunk_seconds
        self._slow = slow
        self._seconds = 0.0  # the estimate per item; 0: unknown

    def note(self, seconds: float, items: int) -> None:
        """Note that this many items (at least one) took this many seconds."""
        each = max(1e-6, seconds / items)
        self._seconds += (each - self._seconds) * (_WEIGHT if self._seconds else 1.0)

    def chunk(self) -> tuple[int, int]:
        """Return how many items to send at a time, and the backlog at which to send more.

        The backlog is 0 if items are slow: an item that is sent ahead waits for the one before it,
        even if another worker is idle.
        """
        if not 0 < self._seconds < self._slow:
            return 1, 0
        size = max(1, min(_MOST_ITEMS, int(self._chunk_seconds / self._seconds)))
        return size, size


class Assignments:
    """The items that one worker has to prepare, in the order in which they were sent.

    The worker's thread owns them. Any thread may call `find`.

    Attributes:
        suspects: items to be sent alone, once the worker has no others. They do not count as sent.
    """

    def __init__(self) -> None:
        self.suspects: deque[Pending] = deque()
        self._pending: dict[int, Pending] = {}  # by number

    def __len__(self) -> int:
        """The number of items that were sent and have no outcome yet."""
        return len(self._pending)

    def add(self, pending: Pending) -> None:
        self._pending[pending.item.number] = pending

    def find(self, number: int) -> Pending | None:
        """Return one of the items by number, or ``None``."""
        return self._pending.get(number)

    def remove(self, number: int) -> Pending:
        return self._pending.pop(number)

    def clear(self) -> list[Pending]:
        """Remove all items, those that were not sent yet included, and return them."""
        items = [*self._pending.values(), *self.suspects]
        self._pending.clear()
        self.suspects.clear()
        return items


class Report(Protocol):
    """The outcomes of some items that a worker has prepared."""

    @property
    def outcomes(self) -> Sequence[Any]:
        """One tuple per item, which begins with the item's number."""

    @property
    def seconds(self) -> float:
        """The seconds of their preparation."""

    @property
    def cpu(self) -> float:
        """The processor seconds of the calls that were measured."""

    @property
    def cpu_sampled(self) -> float:
        """The seconds that these calls took."""


class Loss(NamedTuple):
    """How a worker was lost."""

    how: str
    """Its end in words, such as "was killed by SIGKILL"."""
    exitcode: int = 0
    suspects: Sequence[int] = ()
    """The numbers of the items that may have killed it."""
    is_certain: bool = False
    """Whether it is known that the suspect has killed it."""
    overdue: tuple[int, ItemTimeoutError] | None = None
    """The number of the item for which it was ended, since that took too long; and its failure."""


class ConnectionLost(Exception):  # noqa: N818  # not a failure: the lost items are prepared again
    """A worker has ended, or cannot be reached any more."""


class ResultNotSent(Exception):  # noqa: N818  # it becomes the failure of an item
    """The results of a chunk cannot be sent. If it has several items, it is unknown which.

    Args:
        numbers: the items of the chunk.
        failure: the failure of the item, if there is only one.
    """

    def __init__(self, numbers: Sequence[int], failure: Exception) -> None:
        super().__init__(numbers)
        self.numbers = numbers
        self.failure = failure


class Connection(Protocol):
    """The way to one worker. Only that worker's thread uses it.

    Attributes:
        gauge: the gauge of the worker.
        assignments: the worker's items, which the rules keep track of.
        was_of_use: the worker has returned something, or shows which item to blame. Workers that
            are of no use are not replaced for ever.
    """

    gauge: WorkerGauge
    assignments: Assignments
    was_of_use: bool

    def pickled(self, value: Any) -> bytes:
        """Pickle the value of an item by itself, so that one that cannot be sent fails alone."""

    def send(self, chunk: list[Sent]) -> None:
        """Send items. It may leave the loss of the worker to `receive`."""

    def receive(self) -> Report:
        """Wait for the next outcomes. Called if the worker has items.

        Raises:
            ConnectionLost: the worker is lost.
            ResultNotSent: a result cannot be sent.
            Exception: what else ends the worker here.
        """

    def unpacked(self, pending: Pending, outcome: Any) -> Prepared | Exception:
        """Return what has become of an item, by its outcome: its examples or its failure."""

    def loss(self) -> Loss:
        """Return how the worker was lost. Called once, after `ConnectionLost`."""

    def loss_message(self, loss: Loss, items: int) -> str:
        """Return the message for the log, by the number of items to be prepared again."""


ConnectionT = TypeVar("ConnectionT", bound=Connection)

WhyNotReplaced = Callable[[ConnectionT, Loss], WorkerDiedError | None]
"""Called with each worker that was lost. Returns why no other one takes its place, if none does."""


class ChunkExecutor(Executor, Generic[ConnectionT], registered=False):
    """Calls the function in workers outside this process. Each has a thread here that feeds it.

    Args:
        job: the job.
        chunking: how large the chunks are.
        workers: the kind of workers, for messages: such as "worker processes".
    """

    knows_culprits: ClassVar[bool] = True
    """Whether a loss names the item that has killed the worker, even if the worker had several."""

    def __init__(self, job: Job, chunking: Chunking, workers: str) -> None:
        super().__init__(job)
        self._lock = job.lock  # guards what the threads of several workers change
        self._source = ThreadSource(job, waits_till_low=True)
        self._delivery = ThreadDelivery(job)
        self._inbox = ThreadInbox(job, self._source, self._delivery)
        self._threads = WorkerThreads(job, self._source)
        self._chunking = chunking
        self._pace = SendPace(chunking.seconds, chunking.slow)
        self._workers = workers
        self._none_can_work = False

    # What a kind of worker adds.

    def connect(self, gauge: WorkerGauge) -> ConnectionT:
        """Start a worker.

        Raises:
            Exception: that is impossible. If it is so for every worker: see `report_once`.
        """
        raise NotImplementedError

    def wait_until_ready(self, connection: ConnectionT) -> None:
        """Wait until a worker has imported the function.

        Raises:
            ConnectionLost: the worker is lost.
            Exception: the worker cannot work. If none can: see `report_once`.
        """
        raise NotImplementedError

    def disconnect(self, connection: ConnectionT, *, at_once: bool) -> None:
        """End a worker: at once, or when it has finished what it is doing."""
        raise NotImplementedError

    def replacements(self) -> WhyNotReplaced[ConnectionT]:
        """Return what decides whether a worker is replaced, for one thread."""
        raise NotImplementedError

    def is_over(self) -> bool:
        """Return whether no worker may be started or replaced any more."""
        return self._job.is_halted

    # What `Executor` demands.

    def enqueue_ops(self) -> list[EnqueueOp]:
        return [
            *self._threads.enqueue_ops(self._work),
            *self._source.enqueue_ops(),
            self.take_items,
        ]

    def take_items(self) -> None:
        self._threads.helper(self._inbox.take_items)

    def stop(self) -> None:
        self._source.stop()
        self._threads.stop()
        self._inbox.stop()

    def notify_room(self) -> None:
        self._source.notify_room()
        self._inbox.notify_room()

    def notify_resize(self) -> None:
        self._source.notify_resize()
        self._inbox.notify_resize()

    def end(self) -> BaseException | None:
        return self._source.close()

    # The rules.

    def report_once(self, error: Exception) -> Exception:
        """Return a failure that every worker will have, so that only the first one reports it."""
        with self._lock:
            is_first, self._none_can_work = not self._none_can_work, True
        return error if is_first else self._job.nothing_more()

    def _work(self, gauge: WorkerGauge) -> None:
        """Do the work of one worker's thread, until no work is left."""
        why_not_replaced = self.replacements()
        gauge.process_starting()
        while True:
            connection = self.connect(gauge)
            gauge.in_progress.process = connection
            try:
                loss = self._work_till_its_end(connection)
            finally:
                gauge.in_progress.process = gauge.get_item = None  # break the reference cycle
            gauge.deaths += 1
            error = why_not_replaced(connection, loss)
            if error is not None:
                raise self.report_once(error)

    def _work_till_its_end(self, connection: ConnectionT) -> Loss:
        """Run `_work_with`, and end the worker afterwards."""
        at_once = True
        try:
            return self._work_with(connection)
        except NothingMore:
            # The worker has no items. It may end by itself, unless somebody waits for the end.
            at_once = self.is_over()
            raise
        finally:
            self.disconnect(connection, at_once=at_once)

    def _work_with(self, connection: ConnectionT) -> Loss:
        """Have a worker prepare until it is lost.

        Raises:
            NothingMore: nothing is left to do.
        """
        try:
            self.wait_until_ready(connection)
            while True:
                self._feed(connection)
                if connection.assignments:  # otherwise none of the items could be pickled
                    self._accept(connection)
        except ConnectionLost:
            return self._recover(connection)

    def _feed(self, connection: ConnectionT) -> None:
        """Send items until the worker has some ahead or there are none; wait for the first."""
        assignments = connection.assignments
        suspects = assignments.suspects
        size, ahead = self._chunk()
        while not suspects and len(assignments) <= ahead:
            pendings = self._take(connection, size)
            if not pendings:
                return
            if self.knows_culprits:
                self._send(connection, pendings)
                continue
            suspects += [pending for pending in pendings if pending.deaths]
            self._send(connection, [pending for pending in pendings if not pending.deaths])
        # A suspect goes out when the worker has nothing else, and no reply is on its way that could
        # be lost together with it. Then, if the worker dies again, the suspect has killed it.
        if suspects and not assignments:
            self._send(connection, [suspects.popleft()])

    def _take(self, connection: ConnectionT, size: int) -> list[Pending]:
        """Take items for a chunk: a fair share, or several if there are enough."""
        # A busy worker must not wait for more: its outcomes would not be delivered meanwhile.
        is_busy = bool(connection.assignments)
        pendings = self._inbox.take_for(connection.gauge, size, is_busy=is_busy)
        if self._chunking.is_filled:
            while 0 < len(pendings) < size:
                others = self._inbox.take(size - len(pendings), wait=False)
                if not others:
                    break
                pendings += others
        return pendings

    def _chunk(self) -> tuple[int, int]:
        """Return how many items to send at a time, and the backlog at which to send more."""
        job, chunking = self._job, self._chunking
        if job.key_limit is not None:
            return 1, 0  # an item that only waits would take the place of one of its key
        if job.item_timeout is not None and chunking.has_late_clock:
            return 1, 0  # an item that only waits would use up its time
        size, ahead = self._pace.chunk()
        each = job.window.mean_bytes if chunking.most_bytes is not None else 0
        if each and chunking.most_bytes is not None:
            few = min(chunking.few, int(chunking.few_bytes / each))
            size = min(size, max(1, few, int(chunking.most_bytes / each)))
            # This also limits what is sent ahead: otherwise one fast worker would get every item.
            ahead = min(ahead, size)
        return size, ahead

    def _send(self, connection: ConnectionT, pendings: list[Pending]) -> None:
        """Send a chunk. An item that cannot be pickled fails alone."""
        assignments = connection.assignments
        chunk: list[Sent] = []
        for pending in pendings:
            number, value, epoch, index = pending.item
            try:
                pickled = connection.pickled(value)
            except Exception as error:
                add_note(error, "while pickling the item")
                self._failed(pending, error)
            else:
                # Before it is sent: the worker may begin it, and die of it, at any moment.
                assignments.add(pending)
                chunk.append((number, epoch, index, pickled))
        if chunk:
            connection.send(chunk)

    def _accept(self, connection: ConnectionT) -> None:
        """Wait for outcomes, and deliver them."""
        try:
            report = connection.receive()
        except ResultNotSent as lost:
            self._handle_unsent(connection, lost)
            return
        outcomes = report.outcomes
        connection.was_of_use = True
        calls = len(outcomes)
        self._pace.note(report.seconds, calls)
        connection.gauge.calls_reported(report.seconds, report.cpu, report.cpu_sampled, calls)
        # Remove all of them before any is delivered: a delivery may wait for room in the queue, and
        # meanwhile an item that is done must not seem to take long.
        remove = connection.assignments.remove
        pendings = [remove(outcome[0]) for outcome in outcomes]
        for pending, outcome in zip(pendings, outcomes, strict=True):
            prepared = connection.unpacked(pending, outcome)
            if isinstance(prepared, Exception):
                self._failed(pending, prepared)
            else:
                # The key's place is free before the enqueue, which may wait.
                self._inbox.release_place(pending)
                self._delivery.deliver(prepared)
            del prepared  # before the next one takes as much memory

    def _handle_unsent(self, connection: ConnectionT, lost: ResultNotSent) -> None:
        pendings = [connection.assignments.remove(number) for number in lost.numbers]
        if len(pendings) == 1:
            self._failed(pendings[0], lost.failure)
            return
        for pending in pendings:
            pending.deaths = max(1, pending.deaths)  # a suspect: each is sent alone from now on
        self._inbox.put_back(pendings)

    def _failed(self, pending: Pending, error: Exception) -> None:
        self._inbox.failed(pending, error)

    def _recover(self, connection: ConnectionT) -> Loss:
        """Have the items of a lost worker prepared again.

        Raises:
            NothingMore: we have ended it ourselves.
        """
        job = self._job
        if self.is_over():
            raise job.nothing_more()
        loss = connection.loss()
        to_do = connection.assignments.clear()
        if loss.overdue is not None:
            connection.was_of_use = True
            self._fail_overdue(to_do, *loss.overdue)
            return loss
        job.progress.worker_died()
        # An item that is not there any more has an outcome: the worker died just after it.
        suspects = [pending for pending in to_do if pending.item.number in loss.suspects]
        for pending in suspects:
            pending.deaths += 1
        if suspects and loss.is_certain:
            connection.was_of_use = True
        given_up: Pending | None = None
        # Of several suspects, most are innocent: each has to be alone with a worker first.
        if len(suspects) == 1 and suspects[0].deaths >= MOST_DEATHS:
            given_up = suspects[0]
            to_do.remove(given_up)
        _log.warning("%s", connection.loss_message(loss, len(to_do)))
        # The innocent first: giving up an item may end the run, by an exception.
        self._inbox.put_back(to_do)
        if given_up is not None:
            self._give_up(given_up, loss)
        return loss

    def _fail_overdue(self, to_do: list[Pending], number: int, error: ItemTimeoutError) -> None:
        """Continue after ending a worker for a slow item: that item fails, the others do not."""
        late = next((pending for pending in to_do if pending.item.number == number), None)
        if late is not None:
            to_do.remove(late)
        self._inbox.put_back(to_do)
        if late is not None:  # otherwise its outcome came just before the worker's end
            self._job.progress.timed_out()
            self._failed(late, error)

    def _give_up(self, culprit: Pending, loss: Loss) -> None:
        """Fail an item that too many workers have died of."""
        self._inbox.release_place(culprit)
        error = WorkerDiedError(
            f"{culprit.deaths} {self._workers} have died of one item; the last one {loss.how}",
            exitcode=loss.exitcode,
        )
        self._job.progress.give_up(culprit.item, error, culprit.failures + culprit.deaths)
        skipped = Prepared(culprit.item, failures=culprit.failures, is_skipped=True)
        self._delivery.deliver(skipped)
