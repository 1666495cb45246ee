"""Failure policies and counts: whether to stop, skip or retry an item that fails.

`FailurePolicy` decides; `PrepareProgress` counts what a run of a `prepare` has done so far.

Where a policy skips an item, its record goes to a list or to a quarantine file, whose items can be
prepared again. The file has one JSON object per line. ``item`` holds an item that JSON can
represent. ``pickle`` holds any other item, pickled and in base64; `read_quarantine` opens it only
if you declare the file as trusted. ``repr`` describes an item that cannot be pickled.

Several runs may write to one file, and anybody else: a run knows its own lines by their ``seal``,
which nobody can make who has not its key, and the key is nowhere but in its memory. So it needs to
remember nothing about the lines that it has written, and opens none that it has not. The ``run``
of a line is the same in all processes of one run, which go on where another was killed.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import hmac
import json
import logging
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Protocol

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.arguments import counted, is_int
from aioqueue.coordination.classify import add_note, as_failure, describe_exception
from aioqueue.documents import (
    COUNT,
    MAX_BYTES,
    MAX_DEPTH,
    DocumentError,
    Schema,
    parsed,
    read_document,
)
from aioqueue.inputs.core.items import EpochEnd, Item, ItemCounts, Prepared, Quarantined, safe_repr
from aioqueue.inputs.options import Retry, checked_delay
from aioqueue.inputs.prepare.call import failure_of
from aioqueue.inputs.prepare.flow_control import InFlightWindow
from aioqueue.inputs.statistics import PrepareStatistics
from aioqueue.locks import guarded

__all__ = (
    "SIGN",
    "FailurePolicy",
    "PrepareProgress",
    "Quarantine",
    "QuarantineFile",
    "QuarantineLine",
    "QuarantineList",
    "Quarantined",
    "as_json",
    "lines_of",
    "record_of",
    "signed_in",
)


SIGN: Final = "run"
"""The field of a line that tells which run has written it."""

_LINE: Final = Schema(
    {
        "epoch": COUNT,
        "index": COUNT,
        "error": str,
        "traceback": str,
        "attempts": COUNT,
        "seed": int,
    },
    {"item": None, "pickle": str, "repr": str, SIGN: str, "seal": str},
)
_LONGEST_REPR: Final = 10_000
_LONGEST_ITEM: Final = MAX_BYTES // 2
"""A line has the traceback too. Of a longer item only the repr is written."""

_MOST_BITS: Final = 10_000
"""Ints as long as that are not written in decimals, which Python refuses from 4,300 digits on."""


def as_json(record: Quarantined) -> dict[str, Any]:
    fields = {**record.__dict__}
    item = fields.pop("item")
    # What is too deep for JSON, pickle may know to handle.
    if _is_json(item, MAX_DEPTH - 1) and len(json.dumps(item)) <= _LONGEST_ITEM:
        return {"item": item, **fields}
    try:
        pickled = pickle.dumps(item)
    except Exception:
        return {"repr": safe_repr(item), **fields}
    if len(pickled) > _LONGEST_ITEM // 2:
        return {"repr": safe_repr(item)[:_LONGEST_REPR], **fields}
    text = safe_repr(item)[:200]
    return {"pickle": base64.b64encode(pickled).decode("ascii"), "repr": text, **fields}


def _is_json(item: Any, depth: int) -> bool:
    """Whether JSON gives back just what it was given, nested no deeper than this."""
    if item is None or type(item) in (bool, str):
        return True
    if type(item) is int:
        return item.bit_length() < _MOST_BITS
    if type(item) is float:
        return item - item == 0  # it has neither infinities nor NaN
    if not depth:
        return False
    if type(item) is list:
        return all(_is_json(one, depth - 1) for one in item)
    if type(item) is dict:
        return all(type(key) is str for key in item) and all(
            _is_json(one, depth - 1) for one in item.values()
        )
    return False


class QuarantineLine(NamedTuple):
    """One line of a file."""

    path: str
    number: int
    offset: int
    fields: dict[str, Any]

    def damaged(self, why: object) -> DataLossError:
        """What to raise if it makes no record."""
        return DataLossError(
            f"{self}: no record of a quarantine: {why}",
            path=self.path,
            offset=self.offset,
            fault="damaged record",
        )

    def __str__(self) -> str:
        return f"{self.path}:{self.number}"


def lines_of(file: BinaryIO, path: str) -> Iterator[QuarantineLine]:
    offset = 0
    for number, text in enumerate(iter(partial(file.readline, MAX_BYTES + 1), b""), 1):
        line = QuarantineLine(path, number, offset, {})
        offset += len(text)
        if text == b"\n":
            continue  # which ended a line that another run had left without an end
        try:
            fields = read_document(text, _LINE)
        except DocumentError as error:
            raise line.damaged(error) from None
        fields.pop("seal", None)
        yield line._replace(fields=fields)


def signed_in(path: Path, sign: str) -> set[tuple[int, int]]:
    """The epochs and indices of the items of one run's lines, also where others are damaged.

    Raises:
        OSError: the file cannot be read.
    """
    found = set()
    mark = json.dumps(sign).encode("ascii")
    with path.open("rb") as file:
        for text in iter(partial(file.readline, MAX_BYTES + 1), b""):
            if mark in text:  # else it is not looked into
                with suppress(ValueError, KeyError, TypeError):
                    fields = parsed(text)
                    if fields[SIGN] == sign:
                        found.add((fields["epoch"], fields["index"]))
    return found


def record_of(line: QuarantineLine, *, trusted: bool, replay: bool = False) -> Quarantined:
    fields = line.fields
    fields.pop(SIGN, None)
    described = fields.pop("repr", None)
    pickled = fields.pop("pickle", None)
    if pickled is not None:
        if not trusted:
            raise InvalidArgumentError(
                f"trusted: got False, but {line} holds a pickled item ({described}); pass"
                " trusted=True if nobody else could have written this file"
            )
        try:
            fields["item"] = pickle.loads(base64.b64decode(pickled, validate=True))
        except Exception as error:  # a damaged pickle may raise anything
            raise line.damaged(f"{type(error).__name__}: {error}") from error
    elif "item" not in fields and described is not None:
        if replay:
            raise InvalidArgumentError(
                f"{line}: the item could not be written, only described: {described}; look it up"
                f" in its source by epoch {fields.get('epoch')} and index {fields.get('index')}"
            )
        fields["item"] = described
    try:
        return Quarantined(**fields)
    except TypeError as error:
        raise line.damaged(error) from None


class Quarantine(Protocol):
    """Where the records of skipped items go. Thread-safe."""

    def add(self, record: Quarantined) -> None:
        """Put one more in."""

    def records(self) -> list[Quarantined]:
        """All that one run has put in."""

    @property
    def sign(self) -> str:
        """What tells its records from those of others, also to later processes; may be empty."""

    def go_on(self, sign: str) -> None:
        """An earlier process has begun, whose records had this sign: put none in twice."""


class QuarantineList:
    """Records in memory."""

    def __init__(self) -> None:
        self._records: list[Quarantined] = []

    def add(self, record: Quarantined) -> None:
        self._records.append(record)

    def records(self) -> list[Quarantined]:
        return list(self._records)

    @property
    def sign(self) -> str:
        return ""

    def go_on(self, sign: str) -> None:
        """What an earlier process had in its memory is gone."""


class _Seal:
    """Tells the lines of one run, and their order, from all else that a file may hold."""

    _BEFORE: Final = b', "seal": "'
    _BEHIND: Final = b'"}\n'
    _DIGITS: Final = 32

    def __init__(self) -> None:
        self._key = os.urandom(32)

    def sealed(self, number: int, record: bytes) -> bytes:
        """The line for a JSON object."""
        return record[:-1] + self._BEFORE + self._of(number, record) + self._BEHIND

    def opened(self, number: int, line: bytes) -> bytes | None:
        """The JSON object, if it is this line that was sealed; else ``None``."""
        behind = len(line) - len(self._BEHIND)
        seal = line[behind - self._DIGITS : behind]
        record = line[: max(0, behind - self._DIGITS - len(self._BEFORE))] + b"}"
        return record if hmac.compare_digest(seal, self._of(number, record)) else None

    def _of(self, number: int, record: bytes) -> bytes:
        numbered = number.to_bytes(8, "big") + record
        digest = hashlib.blake2b(numbered, key=self._key, digest_size=self._DIGITS // 2)
        return digest.hexdigest().encode("ascii")


class QuarantineFile:
    """Records in a file; none stays in memory.

    A record is written when its item is skipped, at once and in one piece, and the file is closed
    again, so that what is there survives whatever happens next, and others may write to it, too.

    A process that continues a killed run prepares items again, and skips some again.
    So all processes of a run sign its lines alike, and what stands there signed is not written a
    second time; such records, as many as were skipped after the last position was saved, are kept
    in memory.

    Args:
        path: the file. Records are added to what is in it.

    Raises:
        InvalidArgumentError: it cannot be written to.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()  # lines are written one at a time, and counted
        self._seal = _Seal()
        self._count = 0
        self._sign = os.urandom(8).hex()
        self._there: set[tuple[int, int]] = set()  # epochs and indices of the run's lines before us
        self._again: list[Quarantined] = []  # of those, what was skipped again
        try:
            with self.path.open("a+b") as file:
                self._start = file.tell()
                file.seek(max(0, self._start - 1))
                self._is_torn = file.read(1) not in (b"", b"\n")  # the last line there has no end
        except OSError as error:
            raise InvalidArgumentError(
                f"quarantine: got {str(path)!r}, which cannot be written to: {error}"
            ) from error

    def add(self, record: Quarantined) -> None:
        """Write one more.

        Raises:
            OSError: the file cannot be written to, or not all of the record.
        """
        key = (record.epoch, record.index)
        if key in self._there:
            with self._lock:
                self._there.discard(key)
                self._again.append(record)
            return
        text = json.dumps({**as_json(record), SIGN: self._sign}).encode("ascii")
        # Without a buffer: what is appended in one call is not mixed with what others append.
        with self._lock, self.path.open("ab", buffering=0) as file:
            line = b"\n" * self._is_torn + self._seal.sealed(self._count, text)
            self._is_torn = True
            written = file.write(line)
            if written != len(line):
                raise OSError(errno.EIO, f"{written} of {len(line)} bytes written", str(self.path))
            self._is_torn = False
            self._count += 1

    @property
    def sign(self) -> str:
        return self._sign

    def go_on(self, sign: str) -> None:
        """See `Quarantine.go_on`.

        Raises:
            OSError: the file cannot be read.
        """
        if sign:
            self._sign = sign
            self._there = signed_in(self.path, sign)

    def records(self) -> list[Quarantined]:
        """All that this process has skipped; an item that is no more than described is its repr.

        Raises:
            OSError: the file cannot be read.
            DataLossError: it does not have them any more.
        """
        with self._lock:
            count, again = self._count, list(self._again)
        path = str(self.path)
        with self.path.open("rb") as file:
            file.seek(self._start)
            found = self._own(file, path, count)
            offset = file.tell()
        if len(found) < count:
            raise DataLossError(
                f"{path}: {count - len(found)} of {counted(count, 'record')} of this run are gone:"
                " the file was changed",
                path=path,
                offset=offset,
                fault="lost records",
            )
        return [*again, *found]

    def _own(self, file: BinaryIO, path: str, count: int) -> list[Quarantined]:
        """So many of this run's records, if the rest of the file has them."""
        found: list[Quarantined] = []
        for text in iter(partial(file.readline, MAX_BYTES + 1), b""):
            own = self._seal.opened(len(found), text)
            if own is not None:
                line = QuarantineLine(path, len(found) + 1, 0, parsed(own))
                found.append(record_of(line, trusted=True))
            if len(found) == count:
                break
        return found


_TOO_FEW: Final = 10
"""Up to this number of failures, their share is not judged before the end."""


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
        """Whether the work continues after a failure."""
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
            backoff = retry.backoff
            return checked_delay(backoff(failures) if callable(backoff) else backoff)
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


_log: Final = logging.getLogger("aioqueue")


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
        self._left_behind = 0
        self.is_known: Callable[[Item], bool] | None = None
        """Returns whether an earlier run has counted an item (and listed it if skipped)."""

    @guarded
    def go_on(self, counts: ItemCounts, is_known: Callable[[Item], bool]) -> None:
        """Start from the counts of an earlier run, some of whose items are prepared again."""
        self._prepared, self._examples, self._left_out, self._skipped, self._retried = counts
        self.is_known = is_known

    @guarded
    def statistics(self) -> PrepareStatistics:
        return PrepareStatistics(
            self._prepared,
            self._examples,
            self._left_out,
            self._skipped,
            self._retried,
            self._workers_died,
            self._window.taken,
            self._timed_out,
            self._left_behind,
        )

    @guarded
    def timed_out(self, left_behind: int = 0) -> None:
        """Count an item that was cut short; this many abandoned threads still run."""
        self._timed_out += 1
        self._left_behind = left_behind

    @guarded
    def entered(self, examples: int) -> None:
        """Count examples that are in the queue although their item has not ended."""
        self._examples += examples

    def left(self, prepared: Prepared) -> None:
        """Count an item that has ended: its last example is in the queue.

        Called under the lock, for each item.
        """
        examples = prepared.entered if prepared.count is None else prepared.count
        item = prepared.item
        if self.is_known is not None and self.is_known(item):
            return  # the earlier run has counted it
        self._examples += examples
        if prepared.is_skipped or isinstance(item.value, EpochEnd):
            return
        if examples:
            self._prepared += 1
        else:
            self._left_out += 1

    @guarded
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
            progress.in_flight,
            progress.workers_died,
            f"; skipped first was {first}" if first else "",
        )

    def _knows(self, item: Item) -> bool:
        return self.is_known is not None and self.is_known(item)

    @guarded
    def _note_retry(self) -> None:
        self._retried += 1

    @guarded
    def _note_skip(self, skip: str) -> str:
        """Count a skipped item; return why it is one too many, if it is."""
        self._skipped += 1
        self._first_skip = self._first_skip or skip
        return self.policy.too_many(self._skipped, self._ended)

    @guarded
    def _why_too_many(self) -> str:
        return self.policy.too_many(self._skipped, self._ended, at_end=True)

    @property
    def _ended(self) -> int:
        return self._prepared + self._left_out + self._skipped
