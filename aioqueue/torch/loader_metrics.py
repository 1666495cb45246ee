"""What a loader tells of its runs: its counts, its workers for monitors, and skipped samples.

Each worker of a loader is a `prepare` of its own. For monitors all of them are one stage, and the
queues of their batches have one name.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final

from aioqueue.base.public_names import public
from aioqueue.core.meters import Tracer
from aioqueue.inputs import Quarantined
from aioqueue.items.quarantine import QuarantineFile
from aioqueue.telemetry import EndingPart, StageNumbers, Watch
from aioqueue.telemetry.metrics.counters import concurrent
from aioqueue.workers.retries import FailurePolicy, QuarantineList
from aioqueue.workers.stage_metrics import JobStage

QUEUE_NAME: Final = "batches"
"""The name of the queues of batches, for monitors."""


@public("aioqueue.torch")
@dataclass(frozen=True, slots=True)
class LoaderStatistics:
    """Counts of a `DataLoader`, over all its epochs and iterators in this process.

    Every batch that was requested from a worker is in ``batches``, ``waiting`` or ``in_progress``,
    except for those of epochs that were left.
    """

    epochs: int
    """How many epochs have begun."""
    batches: int
    """How many batches the loop has received."""
    waiting: int
    """How many finished batches wait for the loop now."""
    in_progress: int
    """How many batches are being made, or wait for a worker."""
    workers: int
    """How many workers the current epoch has; 0 if the loop makes its batches itself."""
    skipped: int
    """How many samples were skipped (``on_error="skip"``)."""
    workers_died: int
    """How many worker processes have died."""


class LoaderStage(EndingPart):
    """The workers of an iterator, as one stage that monitors see.

    Args:
        stages: those of their `prepare`, one for each worker.
        name: the name of the dataset.
    """

    def __init__(self, stages: Sequence[JobStage], name: str) -> None:
        self.key: Hashable = "DataLoader"
        self.name = name
        self._stages = tuple(stages)

    @property
    def is_over(self) -> bool:
        return all(stage.is_over for stage in self._stages)

    def queues(self) -> Iterable[Any]:
        return [stage.queues()[-1] for stage in self._stages]  # not those with their tasks

    def sample(self, now: float) -> None:
        for stage in self._stages:
            stage.sample(now)

    def stop_sampling(self) -> None:
        for stage in self._stages:
            stage.stop_sampling()

    def trace(self, tracer: Tracer | None) -> None:
        for stage in self._stages:
            stage.trace(tracer)

    def numbers(self, now: float) -> StageNumbers:
        numbers = reduce(concurrent, [stage.numbers(now) for stage in self._stages])
        messages = sum(stage.left_out() for stage in self._stages)
        return replace(
            numbers,
            name=self.name,
            source=None,
            resizable=False,
            # The loop requests a batch for each one that it receives. So a worker that waits for a
            # task has as many finished batches before it as it may.
            blocked=numbers.blocked + numbers.starved,
            starved=0.0,
            taken=numbers.taken - messages,
            delivered=numbers.delivered - messages,
            # For the same reason, what may be in flight is no limit of the workers'.
            max_in_flight=None,
            in_flight_bytes=None,
            limit_bytes=None,
            seconds_window_full=0.0,
            seconds_bytes_full=0.0,
        )


class LoaderRecord:
    """What a loader counts and keeps over all its epochs. Thread-safe.

    Args:
        on_error: ``"stop"`` or ``"skip"``.
        max_failures: how many samples may be skipped; as for `prepare`.
        quarantine: the file for skipped samples; ``None`` keeps them in memory.

    Raises:
        InvalidArgumentError: an argument is not as described.
    """

    def __init__(self, on_error: Any, max_failures: Any, quarantine: Any) -> None:
        self._policy = FailurePolicy(on_error, max_failures, has_quarantine=quarantine is not None)
        self.skips: bool = self._policy.skips
        self._records = QuarantineList() if quarantine is None else QuarantineFile(quarantine)
        self.watch: Watch = Watch(is_repeatable=True)
        self.watch.last_queue = QUEUE_NAME
        self._lock = threading.Lock()  # guards the counts
        self._epochs = 0
        self._batches = 0
        self._samples = 0
        self._skipped = 0
        self._died = 0

    def epoch_begun(self) -> None:
        with self._lock:
            self._epochs += 1

    def batch_received(self, samples: int, skipped: Iterable[Quarantined]) -> None:
        """Count a batch that the loop receives, and list what was left out of it.

        Args:
            samples: how many samples it was to have.
            skipped: the records of those that were skipped.

        Raises:
            RuntimeError: too many samples have failed.
            OSError: the quarantine file cannot be written to.
        """
        records = list(skipped)
        with self._lock:
            self._samples += samples
            self._batches += len(records) < samples or not samples
            self._skipped += len(records)
            epoch = max(0, self._epochs - 1)
            reason = self._policy.too_many(self._skipped, self._samples) if records else ""
        for record in records:
            self._records.add(replace(record, epoch=epoch))
        if reason:
            raise RuntimeError(f"{reason}; the quarantine of the loader tells which and why")

    def workers_died(self, count: int) -> None:
        with self._lock:
            self._died += count

    def quarantine(self) -> list[Quarantined]:
        return self._records.records()

    def statistics(
        self, waiting: int, in_progress: int, workers: int, died: int
    ) -> LoaderStatistics:
        """Return the counts, together with those of the current epoch."""
        with self._lock:
            return LoaderStatistics(
                self._epochs,
                self._batches,
                waiting,
                in_progress,
                workers,
                self._skipped,
                self._died + died,
            )
