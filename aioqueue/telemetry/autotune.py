"""Autotuning: changes the number of workers of a stage while it runs, as the verdict advises.

A stage gets more workers only while it is the bottleneck and its calls wait for something other
than processors or the GIL. It keeps them only if it became faster, or fast enough not to be the
bottleneck any more. It gives workers back when data is ahead and they are idle. A change that did
not help is undone, and not tried again for a while, longer each time. If undoing it made the stage
slower, the change did help (another load on the machine may have hidden that), and it is redone.

Only one change is in progress per run. It is judged by what happens after all its workers have
started, since processes take time to start.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from aioqueue.telemetry.metrics.intervals import Interval
from aioqueue.telemetry.metrics.snapshots import Snapshot, StageNumbers
from aioqueue.telemetry.metrics.watch import Watch, WorkerChange
from aioqueue.telemetry.monitor import Monitor
from aioqueue.telemetry.verdict.bottleneck import Verdict, verdict_of

_SETTLING_SECONDS: Final = 1.0
"""Seconds after a change that are not measured."""

_STARTING_SECONDS: Final = 30.0
"""Wait at most this many seconds for new workers to finish a first item."""

_SHORTEST_MEASUREMENT: Final = 1.8
"""Judge a change by at least this many seconds."""

_LONGEST_MEASUREMENT: Final = 10.0
"""Look back at most this many seconds, if they contain enough items."""

_ITEMS_PER_WORKER: Final = 4
"""Items that each worker must have finished on average before a change is judged."""

_LEAST_SPEEDUP: Final = 1.05
"""Speed-up that a stage must show to keep additional workers."""

_MOST_GROWTH: Final = 3
"""Add at most this many times the current workers at once."""

_ONE_CORE: Final = 0.85
"""From this many cores in use on, threads get all that the GIL allows."""

_UNDECIDED_ADVICE: Final = ("faster source", "slow item", "higher max_in_flight", "processes")
"""Advice that leaves open whether more workers would help."""

_FIRST_PATIENCE: Final = 20.0
"""Seconds until a change that did not help is tried again, for the first time."""

_log: Final = logging.getLogger("aioqueue")


class _Trial(NamedTuple):
    """A change to be judged, with the state before it."""

    workers: int
    rate: float
    is_return: bool = False
    """Whether it undoes a change that seemed not to help."""


class Tuner:
    """Changes the number of workers of one stage.

    Args:
        watch: the watch of the run that the stage belongs to.
        stage: name of the stage.
        into: name of the queue that it fills.
        bounds: the fewest and the most workers.
        count: returns the number of workers.
        resize: sets the number of workers.

    Attributes:
        tuning: the tuning of the run, which calls `tune` when it is due.
    """

    def __init__(
        self,
        watch: Watch,
        stage: str,
        into: str,
        bounds: tuple[int, int],
        count: Callable[[], int],
        resize: Callable[[int], None],
    ) -> None:
        self._watch = watch
        self._stage, self._into = stage, into
        self._low, self._high = bounds
        self._count, self._resize = count, resize
        self._trial: _Trial | None = None
        self._ceiling: tuple[int, float] | None = None  # the most workers to try, and until when
        self._floor: tuple[int, float] | None = None  # the fewest workers to try, and until when
        self._patience = _FIRST_PATIENCE
        self.tuning: _Tuning = _tuning_of(watch)
        self.tuning.tuners.add(self)

    @property
    def is_trying(self) -> bool:
        """Whether a change of this tuner is still to be judged."""
        return self._trial is not None

    def tune(self, history: Sequence[Snapshot]) -> None:
        """Change the number of workers if that is due; called once a second.

        Args:
            history: one snapshot of the run for each second.
        """
        later = history[-1]
        name = self._name_in(later)
        if name is None:
            return
        self._postpone_while_starting(later.stage(name), later.seconds)
        earlier = self._measured_since(history, name)
        if earlier is None:
            return
        rate = _items(earlier, later, name) / (later.seconds - earlier.seconds)
        verdict = verdict_of(earlier, later)
        interval = Interval.between(earlier, later)
        if verdict.cause == "nothing":
            return
        is_bottleneck = _bottleneck(interval, verdict) == name
        if self._trial is not None:
            self._judge(self._trial, rate, verdict, later.seconds, is_bottleneck=is_bottleneck)
        elif is_bottleneck and verdict.advice in ("more workers", "fewer workers"):
            self._follow_advice(verdict, rate, later.seconds)
        elif is_bottleneck and verdict.advice in _UNDECIDED_ADVICE:
            self._try_more(verdict, rate, later.seconds)

    def _postpone_while_starting(self, stage: StageNumbers, now: float) -> None:
        starting = any(not worker.items for worker in stage.workers)
        if starting and now - self.tuning.changed < _STARTING_SECONDS:
            self.tuning.settled = now

    def _measured_since(self, history: Sequence[Snapshot], name: str) -> Snapshot | None:
        """Return the snapshot to measure from: after the last change has settled, and recent if
        possible. ``None`` if too few items have been delivered since."""
        later = history[-1]
        wanted = _ITEMS_PER_WORKER * max(1, len(later.stage(name).workers))
        since = self.tuning.settled + _SETTLING_SECONDS
        seen = [one for one in history if one.seconds >= since and _contains(one, name)]
        recent = [one for one in seen if one.seconds >= later.seconds - _LONGEST_MEASUREMENT]
        for earlier in (*recent[:1], *seen[:1]):
            is_long = later.seconds - earlier.seconds >= _SHORTEST_MEASUREMENT
            if is_long and _items(earlier, later, name) >= wanted:
                return earlier
        return None

    def _name_in(self, snapshot: Snapshot) -> str | None:
        """Return the stage's name in a snapshot, which adds a number to names that are not
        unique."""
        for stage in snapshot.stages:
            if stage.into == self._into and stage.name.startswith(self._stage):
                return stage.name
        return None

    def _judge(
        self, trial: _Trial, rate: float, verdict: Verdict, now: float, *, is_bottleneck: bool
    ) -> None:
        """Keep a change that helped; undo one that did not."""
        count, self._trial = self._count(), None
        if trial.is_return:
            if _LEAST_SPEEDUP * rate < trial.rate:  # they had helped after all: another load hid it
                self._ceiling = None
                self._set(
                    trial.workers, now, f"{count} workers are slower than {trial.workers} were"
                )
        elif count > trial.workers:
            # The rate of a stage that is no longer the bottleneck is that of another: it proves
            # nothing.
            still = is_bottleneck or verdict.cause == "unknown"
            if still and rate < _LEAST_SPEEDUP * trial.rate:
                self._undo(trial, rate, now)
        elif verdict.cause != "step":  # fewer workers, and data is no longer ahead
            self._floor = (trial.workers, now + self._patience)
            self._patience *= 2
            self._set(trial.workers, now, f"{count} workers were too few")

    def _undo(self, trial: _Trial, rate: float, now: float) -> None:
        """Undo an increase that seems not to have helped."""
        count = self._count()
        most = trial.workers
        if _LEAST_SPEEDUP * rate < trial.rate:  # slower than before: half as many may be right
            most += (count - trial.workers) // 2
        self._ceiling = (most, now + self._patience)
        self._patience *= 2
        self._trial = _Trial(count, rate, is_return=True)
        self._set(trial.workers, now, f"{count} workers were no faster")

    def _follow_advice(self, verdict: Verdict, rate: float, now: float) -> None:
        """Do what the verdict advises for this stage."""
        count = self._count()
        if verdict.advice == "more workers":
            more = min(verdict.workers, _MOST_GROWTH * count)
            wanted = max(count, min(self._most(now), count + more))
        else:
            fewer = max(1, verdict.workers // 2)
            wanted = min(count, max(self._least(now), count - fewer))
        self._change(wanted, rate, now, verdict.sentence)

    def _try_more(self, verdict: Verdict, rate: float, now: float) -> None:
        """Try a few more workers, although the verdict does not ask for it."""
        count = self._count()
        wanted = max(count, min(self._most(now), count + max(1, count // 2)))
        why = f"{verdict.sentence}; more workers may still help, so try them"
        self._change(wanted, rate, now, why)

    def _most(self, now: float) -> int:
        if self._ceiling is not None and now < self._ceiling[1]:
            return min(self._high, self._ceiling[0])
        return self._high

    def _least(self, now: float) -> int:
        if self._floor is not None and now < self._floor[1]:
            return max(self._low, self._floor[0])
        return self._low

    def _change(self, wanted: int, rate: float, now: float, why: str) -> None:
        """Set the number of workers, as a change to be judged."""
        count = self._count()
        if wanted != count:
            self._trial = _Trial(count, rate)
            self._set(wanted, now, why)

    def _set(self, count: int, now: float, why: str) -> None:
        before = self._count()
        self.tuning.changed = self.tuning.settled = now
        try:  # a process may fail to start, or the run may be ending
            self._resize(count)
        except RuntimeError as error:
            self._ceiling, self._trial = (before, now + self._patience), None
            _log.warning("cannot give %s %d workers: %s", self._stage, count, error)
            return
        self._watch.add_change(WorkerChange(now, self._stage, before, count, why))
        _log.info("changed the workers of %s from %d to %d: %s", self._stage, before, count, why)


class _WatchHolder:
    """Gives a monitor access to a watch."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def _watched(self) -> Watch:
        return self._watch


class _Tuning(Monitor):
    """A monitor that runs the tuners of a run, for as long as one of them is alive."""

    def __init__(self, watch: Watch) -> None:
        self.tuners: weakref.WeakSet[Tuner] = weakref.WeakSet()
        self.changed: float = 0.0
        """When the last change was made."""
        self.settled: float = 0.0
        """When the workers of the last change had all started."""
        super().__init__(_WatchHolder(watch))

    def _each_second(self) -> None:
        self.tune_all(self.history)

    def tune_all(self, history: Sequence[Snapshot]) -> None:
        """Run each tuner that is due; see `Tuner.tune`."""
        # Judge a trial before any other change, which would distort its result.
        for tuner in sorted(self.tuners, key=lambda one: not one.is_trying):
            tuner.tune(history)


def _tuning_of(watch: Watch) -> _Tuning:
    """Return the tuning that all stages of a run share."""
    tuning: _Tuning | None = watch.tuning()
    if tuning is None:
        tuning = _Tuning(watch)
        watch.tuning = weakref.ref(tuning)
    return tuning


def _bottleneck(interval: Interval, verdict: Verdict) -> str | None:
    """Return the stage that is the bottleneck.

    Where threads hold the GIL, but not all the time, it is the busiest of their stages. Its workers
    wait for the GIL and then for something else; more workers leave less time between the two.
    """
    if verdict.advice != "processes":
        return verdict.stage
    threads = [one for one in interval.stages if one.now.where == "thread"]
    if not threads or interval.cores > _ONE_CORE:
        return None
    return max(threads, key=lambda one: one.busy).now.name


def _contains(snapshot: Snapshot, name: str) -> bool:
    return any(stage.name == name for stage in snapshot.stages)


def _items(earlier: Snapshot, later: Snapshot, name: str) -> int:
    """Return how many items a stage delivered between two snapshots."""
    return later.stage(name).delivered - earlier.stage(name).delivered
