"""What a failure of an item means: stop, skip or retry; and what a run has done so far."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from aioqueue import InvalidArgumentError
from aioqueue.base.arguments import delay_of, is_int
from aioqueue.coordination.classify import as_failure
from aioqueue.errors import add_note, counted, describe_exception
from aioqueue.items.item import Delivered, EpochEnd, Item, ItemCounts, Prepared
from aioqueue.items.quarantined import Quarantined
from aioqueue.system.locks import synchronized
from aioqueue.workers.calls import _TOO_FEW, _log, failure_of
from aioqueue.workers.flow_control import InFlightWindow
from aioqueue.workers.options import Retry
from aioqueue.workers.statistics import PrepareStatistics


class FailurePolicy:
    """Decides when to retry an item, when to skip it, and when to stop after all.

    Args:
        on_error: ``"stop"``, ``"skip"`` or a `Retry`.
        max_failures: the number of items that may be skipped: an int >= 0; or their share of all
            items, in (0, 1), which is judged once more than ten were skipped, and at the end.
            ``None`` for no limit.
        has_quarantine: whether the caller has chosen a quarantine for skipped items.

    Raises:
        InvalidArgumentError: any argument is not as described.
    """

    def __init__(self, on_error: Any, max_failures: Any, *, has_quarantine: bool) -> None:
        if not isinstance(on_error, Retry) and on_error not in ("stop", "skip"):
            raise InvalidArgumentError(
                f"on_error: got {on_error!r}; expected 'stop', 'skip' or an aioqueue.inputs.Retry"
            )
        self.retry: Retry | None = on_error if isinstance(on_error, Retry) else None
        for what, given in (
            ("max_failures", max_failures is not None),
            ("quarantine", has_quarantine),
        ):
            if given and on_error == "stop":
                raise InvalidArgumentError(
                    f"{what}: given with on_error='stop', which skips nothing; expected"
                    " on_error='skip', or a Retry, too"
                )
        self.skips: bool = (
            on_error == "skip"
            or max_failures is not None
            or has_quarantine
            or (self.retry is not None and self.retry.then == "skip")
        )
        self._most: int | None = None
        self._share: float | None = None
        if is_int(max_failures) and max_failures >= 0:
            self._most = int(max_failures)
        elif isinstance(max_failures, float) and 0 < max_failures < 1:
            self._share = max_failures
        elif max_failures is not None:
            raise InvalidArgumentError(
                f"max_failures: got {max_failures!r}; expected an int >= 0, a share in (0, 1), or"
                " None"
            )

    @property
    def may_fail_twice(self) -> bool:
        return self.skips or self.retry is not None

    def delay(self, error: BaseException, failures: int) -> float | None:
        """Return the seconds after which to retry an item; ``None`` to give it up.

        Args:
            error: its latest failure.
            failures: the number of its failures, including the latest.
        """
        retry = self.retry
        if retry is None or failures > retry.times or not isinstance(error, retry.on):
            return None
        try:
            return delay_of(retry.backoff, failures, error)
        except BaseException as raised:  # nothing is awaited here, so no task was cancelled
            raise as_failure(raised, f"backoff raised {describe_exception(raised)}")  # noqa: B904

    def too_many(self, skipped: int, ended: int, *, at_end: bool = False) -> str:
        """Return why this many skipped items are too many; an empty string if they are not."""
        if self._most is not None and skipped > self._most:
            return f"{counted(skipped, 'item')} failed, and max_failures allows {self._most}"
        share = self._share
        if share is None or skipped <= share * ended or not (at_end or skipped > _TOO_FEW):
            return ""
        of_all = counted(ended, "item")
        return f"{skipped} of {of_all} failed, and max_failures allows {share:.4g} of all"


class Quarantine(Protocol):
    """Where the records of skipped items go. Thread-safe."""

    def add(self, record: Quarantined) -> None: ...

    def records(self) -> list[Quarantined]: ...

    @property
    def sign(self) -> str:
        """The mark of its records, which later processes recognise; empty without one."""

    def resume(self, sign: str) -> None:
        """Continue for an earlier process, whose records had this sign: add none twice."""


class QuarantineList:
    """Keeps the records in memory."""

    sign = ""

    def __init__(self) -> None:
        self._records: list[Quarantined] = []

    def add(self, record: Quarantined) -> None:
        self._records.append(record)

    def records(self) -> list[Quarantined]:
        return list(self._records)

    def resume(self, sign: str) -> None:
        """Do nothing: the records of an earlier process are gone with its memory."""


class PrepareProgress:
    """Counts the outcomes of items, and decides what a failure means. Thread-safe.

    Args:
        policy: decides about failures.
        quarantine: receives skipped items.
        seed: the seed of the items' generators.
        window: the items in flight.
        name: the name of the work in reports of failures.
    """

    def __init__(
        self,
        policy: FailurePolicy,
        quarantine: Quarantine,
        seed: int,
        window: InFlightWindow,
        name: str = "prepare",
    ) -> None:
        self.policy = policy
        self.name = name
        self.quarantine = quarantine
        self._seed = seed
        self._window = window
        self.lock: threading.RLock = threading.RLock()  # guards all below, and the job
        self._lock = self.lock
        self._prepared = 0
        self._examples = 0
        self._left_out = 0
        self._skipped = 0
        self._first_skip = ""  # in this process
        self._retried = 0
        self._workers_died = 0
        self._timed_out = 0
        self._abandoned = 0
        self._refused = 0
        self.is_known: Callable[[Item], bool] | None = None
        """Returns whether an earlier run has counted an item (and listed it if skipped). It does
        not need the item's value."""
        self.finish: Callable[[], object] | None = None
        """Tells a queue that feeds the job that an element is done with: that item was skipped, or
        has given no example, so nobody else could say so."""

    @synchronized
    def restore_counts(self, counts: ItemCounts, is_known: Callable[[Item], bool]) -> None:
        """Start from the counts of an earlier run, some of whose items are prepared again."""
        self._prepared, self._examples, self._left_out, self._skipped, self._retried = counts
        self.is_known = is_known

    @synchronized
    def statistics(self) -> PrepareStatistics:
        singles = self._window.singles
        return PrepareStatistics(
            self._prepared + singles,
            self._examples + singles,
            self._left_out,
            self._skipped,
            self._retried,
            self._workers_died,
            self._window.taken,
            self._timed_out,
            self._abandoned,
            self._refused,
        )

    @synchronized
    def timed_out(self, abandoned: int = 0) -> None:
        """Count an item that was cut short; this many abandoned threads still run."""
        self._timed_out += 1
        self._abandoned = abandoned

    @synchronized
    def note_refusal(self) -> None:
        """Count a call that a server has refused, by an `AdaptiveRate`."""
        self._refused += 1

    @synchronized
    def entered(self, examples: int) -> None:
        """Count examples that are in the queue although their item has not ended."""
        self._examples += examples

    def item_delivered(self, prepared: Prepared) -> None:
        """Count an item that has ended: its last example is in the queue.

        Called under the lock, for each item.
        """
        examples = prepared.entered if prepared.count is None else prepared.count
        item = prepared.item
        if self.is_known is not None and self.is_known(item):
            return  # the earlier run has counted it
        self._examples += examples
        if type(item.value) is EpochEnd:
            return
        if prepared.is_skipped:
            self._report_finished()
        elif examples:
            self._prepared += 1
        else:
            self._left_out += 1
            self._report_finished()

    def plain_items_delivered(self, items: Sequence[Delivered]) -> None:
        """Count items of one example each. No item is the end of an epoch, or has failed.

        Called under the lock.
        """
        n = len(items)
        if self.is_known is not None:  # an earlier run has counted some
            is_known = self.is_known
            n -= sum(is_known(Item(one[1], None, one[0], one[2])) for one in items)
        self._prepared += n
        self._examples += n

    def _report_finished(self) -> None:
        if self.finish is not None:
            self.finish()

    @synchronized
    def worker_died(self) -> None:
        """Count a process that has died and is replaced."""
        self._workers_died += 1

    def failed(self, item: Item, error: BaseException, failures: int) -> float | None:
        """Decide about an item whose preparation has failed.

        Args:
            item: the item.
            error: the failure.
            failures: the number of its failures so far, including this one.

        Returns:
            The seconds after which to try again; ``None``: the item is skipped.

        Raises:
            Exception: the failure, if it ends the pipeline.
        """
        if not isinstance(error, Exception):
            error = failure_of(item, error, self.name)  # a stray cancellation, for example
        delay = self.policy.delay(error, failures)
        if delay is None:
            self.give_up(item, error, failures)
            return None
        if not self._knows(item):
            self._note_retry()
        _log.debug("%s failed, trying again in %g s", item.describe(), delay, exc_info=error)
        return delay

    def give_up(self, item: Item, error: BaseException, failures: int) -> None:
        """Skip an item for good, if the policy allows it.

        Args:
            item: the item.
            error: its latest failure.
            failures: the number of its failures.

        Raises:
            Exception: the failure, if it ends the pipeline.
        """
        first_skip = f"{item.describe()}: {describe_exception(error)}"
        error = failure_of(item, error, self.name)
        try:
            if not self.policy.skips:
                if failures > 1:
                    add_note(error, f"it has failed {failures} times")
                raise error
            if self._knows(item):
                return
            self.quarantine.add(Quarantined.of(item, error, failures, self._seed))
            reason = self._note_skip(first_skip)
            if reason:
                add_note(error, reason)
                raise error
        finally:
            del error  # its traceback may contain this frame

    def check_share(self) -> None:
        """Judge the share of failures among all items, at the end of the source.

        Raises:
            RuntimeError: too many items have failed.
        """
        reason = self._why_too_many()
        if reason:
            raise RuntimeError(f"{reason}; the quarantine tells which and why") from None

    def log(self, name: str) -> None:
        """Log the counts: as a warning if items were skipped, because these could be all."""
        progress = self.statistics()
        first = self._first_skip
        _log.log(
            logging.WARNING if first else logging.INFO,
            "prepare into '%s' has ended: %d prepared (%d examples), %d retried, %d skipped,"
            " %d left out, %d dropped by the stop, %d workers died%s",
            name,
            progress.prepared,
            progress.examples,
            progress.retried,
            progress.skipped,
            progress.left_out,
            self._window.held,
            progress.workers_died,
            f"; skipped first was {first}" if first else "",
        )

    def _knows(self, item: Item) -> bool:
        return self.is_known is not None and self.is_known(item)

    @synchronized
    def _note_retry(self) -> None:
        self._retried += 1

    @synchronized
    def _note_skip(self, skip: str) -> str:
        """Count a skipped item; return why it exceeds the limit, if it does."""
        self._skipped += 1
        self._first_skip = self._first_skip or skip
        return self.policy.too_many(self._skipped, self._ended)

    @synchronized
    def _why_too_many(self) -> str:
        return self.policy.too_many(self._skipped, self._ended, at_end=True)

    @property
    def _ended(self) -> int:
        return self._prepared + self._window.singles + self._left_out + self._skipped
