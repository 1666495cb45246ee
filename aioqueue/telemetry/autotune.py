"""Changing the number of workers of a stage while it runs, by the verdict.

A stage is given more workers only while it is the one that limits, and its calls wait for something
else than processors or the interpreter; and it keeps them only if it has become faster by that, or
so fast that it limits no more. It gives some back when data are ahead and they have nothing to do.
What did not help is taken back, and not tried again for some time, and for longer each time; unless
it turns out to have helped when it is gone, since a machine has other things to do at times.

One change is made at a time in all of a run, and judged by what was seen after all of its workers
had begun: processes take their time to start.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from aioqueue.telemetry.bottleneck import Verdict, verdict_of
from aioqueue.telemetry.intervals import IntervalShares
from aioqueue.telemetry.metrics import Snapshot, StageNumbers
from aioqueue.telemetry.monitor import Monitor
from aioqueue.telemetry.registry import Watch, WorkerChange

__all__ = ("Tuner",)

_SETTLE: Final = 1.0
"""Seconds after a change that say nothing of what follows."""

_START: Final = 30.0
"""Seconds, at most, that a change waits for workers which have not done anything yet."""

_WINDOW: Final = 1.8
"""Seconds, at least, that a change is judged by."""

_LONGEST: Final = 10.0
"""Seconds, at most, that are looked back, if enough was done in them."""

_ITEMS: Final = 4
"""Items, at least, that each worker must have done by then, in the mean."""

_BETTER: Final = 1.05
"""Times as fast that a stage must be to keep workers that it was given."""

_MOST_AT_ONCE: Final = 3
"""Times the workers of now that are added at once, at most."""

_ONE_CORE: Final = 0.85
"""Cores in use, at least, where threads have all that the interpreter gives them."""

_OPEN: Final = ("faster source", "slow item", "higher max_in_flight", "processes")
"""Advice that does not rule out that more workers would help."""

_PATIENCE: Final = 20.0
"""Seconds until what did not help is tried again, for the first time."""

_log: Final = logging.getLogger("aioqueue")


class _Trial(NamedTuple):
    """A change that is to be judged: what was before."""

    workers: int
    rate: float
    is_return: bool = False
    """It has taken back what had not helped, as it seemed."""


class Tuner:
    """Changes the number of workers of one stage.

    Args:
        watch: of the run that the stage belongs to.
        stage: its name.
        into: name of the queue that it fills.
        bounds: the fewest and the most workers.
        count: tells how many there are.
        resize: sets how many there are.

    Attributes:
        tuning: that of the run, which has it tune when that is due.
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
        self._ceiling: tuple[int, float] | None = None  # what did not help, and until when
        self._floor: tuple[int, float] | None = None  # what was too few
        self._patience = _PATIENCE
        self.tuning = _tuning_of(watch)
        self.tuning.tuners.add(self)

    @property
    def is_trying(self) -> bool:
        """Whether it has made a change that is still to be judged."""
        return self._trial is not None

    def tune(self, history: Sequence[Snapshot]) -> None:
        """Change something, if that is due; called once a second.

        Args:
            history: what was seen of the run, a snapshot each second.
        """
        later = history[-1]
        name = self._name_in(later)
        if name is None:
            return
        self._settle(later.stage(name), later.seconds)
        earlier = self._begin(history, name)
        if earlier is None:
            return
        rate = _items(earlier, later, name) / (later.seconds - earlier.seconds)
        verdict = verdict_of(earlier, later)
        window = IntervalShares(earlier, later)
        if verdict.cause == "nothing":
            return
        is_accused = _accused(window, verdict) == name
        if self._trial is not None:
            self._judge(self._trial, rate, verdict, later.seconds, is_accused=is_accused)
        elif is_accused and verdict.advice in ("more workers", "fewer workers"):
            self._follow(verdict, rate, later.seconds)
        elif is_accused and verdict.advice in _OPEN:
            self._try_more(verdict, rate, later.seconds)

    def _settle(self, stage: StageNumbers, now: float) -> None:
        """A change says nothing as long as workers are only being started: processes take time."""
        starting = any(not worker.items for worker in stage.workers)
        if starting and now - self.tuning.changed < _START:
            self.tuning.settled = now

    def _begin(self, history: Sequence[Snapshot], name: str) -> Snapshot | None:
        """From when on to look: since the last change has settled, and not much further back than
        it takes to see something; ``None``: there is too little to be seen."""
        later = history[-1]
        wanted = _ITEMS * max(1, len(later.stage(name).workers))
        since = self.tuning.settled + _SETTLE
        seen = [one for one in history if one.seconds >= since and _has(one, name)]
        recent = [one for one in seen if one.seconds >= later.seconds - _LONGEST]
        for earlier in (*recent[:1], *seen[:1]):
            is_long = later.seconds - earlier.seconds >= _WINDOW
            if is_long and _items(earlier, later, name) >= wanted:
                return earlier
        return None

    def _name_in(self, snapshot: Snapshot) -> str | None:
        """What it is called there: others may have the same name, and are told apart."""
        for stage in snapshot.stages:
            if stage.into == self._into and stage.name.startswith(self._stage):
                return stage.name
        return None

    def _judge(
        self, trial: _Trial, rate: float, verdict: Verdict, now: float, *, is_accused: bool
    ) -> None:
        """Keep what has helped, and take back what has not."""
        count, self._trial = self._count(), None
        if trial.is_return:
            if _BETTER * rate < trial.rate:  # it had helped: the machine had other things to do
                self._ceiling = None
                self._set(trial.workers, now, f"{count} are slower than {trial.workers} were")
        elif count > trial.workers:
            still = is_accused or verdict.cause == "unknown"
            if still and rate < _BETTER * trial.rate:
                self._take_back(trial, rate, now)
        elif verdict.cause != "step":
            self._floor = (trial.workers, now + self._patience)
            self._patience *= 2
            self._set(trial.workers, now, f"{count} were too few")

    def _take_back(self, trial: _Trial, rate: float, now: float) -> None:
        """More workers have not helped, as it seems."""
        count = self._count()
        most = trial.workers
        if _BETTER * rate < trial.rate:  # it was too much of a good thing: half of it may do
            most += (count - trial.workers) // 2
        self._ceiling = (most, now + self._patience)
        self._patience *= 2
        self._trial = _Trial(count, rate, is_return=True)
        self._set(trial.workers, now, f"{count} were no faster")

    def _follow(self, verdict: Verdict, rate: float, now: float) -> None:
        """Do what the verdict says of this stage."""
        count = self._count()
        if verdict.advice == "more workers":
            more = min(verdict.workers, _MOST_AT_ONCE * count)
            wanted = max(count, min(self._most(now), count + more))
        else:
            fewer = max(1, verdict.workers // 2)
            wanted = min(count, max(self._least(now), count - fewer))
        self._change(wanted, rate, now, verdict.sentence)

    def _try_more(self, verdict: Verdict, rate: float, now: float) -> None:
        """See whether some more workers help, though nothing says so."""
        count = self._count()
        wanted = max(count, min(self._most(now), count + max(1, count // 2)))
        why = f"{verdict.sentence}; but it may be that more workers help"
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
        """Have so many workers, and judge that later."""
        count = self._count()
        if wanted != count:
            self._trial = _Trial(count, rate)
            self._set(wanted, now, why)

    def _set(self, count: int, now: float, why: str) -> None:
        before = self._count()
        self.tuning.changed = self.tuning.settled = now
        try:
            self._resize(count)
        except RuntimeError as error:
            self._ceiling, self._trial = (before, now + self._patience), None
            _log.warning("%s cannot have %d workers: %s", self._stage, count, error)
            return
        self._watch.note(WorkerChange(now, self._stage, before, count, why))
        _log.info("%s has %d workers now, after %d: %s", self._stage, count, before, why)


class _Watched:
    """What has a watch."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def _watched(self) -> Watch:
        return self._watch


class _Tuning(Monitor):
    """A monitor that lets stages be tuned, for as long as any of these tuners lives."""

    def __init__(self, watch: Watch) -> None:
        self.tuners: weakref.WeakSet[Tuner] = weakref.WeakSet()
        self.changed = 0.0
        """When something was changed last."""
        self.settled = 0.0
        """When all workers that there were to be had begun."""
        super().__init__(_Watched(watch))

    def _each_second(self) -> None:
        self.tune_all(self.history)

    def tune_all(self, history: Sequence[Snapshot]) -> None:
        """Have each do what is due; see `Tuner.tune`."""
        # A trial is judged before anything else is changed, which would have a part in it.
        for tuner in sorted(self.tuners, key=lambda one: not one.is_trying):
            tuner.tune(history)


def _tuning_of(watch: Watch) -> _Tuning:
    """The one that all stages of a run share."""
    tuning: _Tuning | None = watch.tuning()
    if tuning is None:
        tuning = _Tuning(watch)
        watch.tuning = weakref.ref(tuning)
    return tuning


def _accused(window: IntervalShares, verdict: Verdict) -> str | None:
    """The stage that limits. Where threads hold the interpreter, but not all the time, it is the
    busiest of those stages: its workers wait for the interpreter, and then for something else, and
    leave less time between both if there are more of them.
    """
    if verdict.advice != "processes":
        return verdict.stage
    threads = [one for one in window.stages if one.stage.where == "thread"]
    if not threads or window.cores > _ONE_CORE:
        return None
    return max(threads, key=lambda one: one.busy).stage.name


def _has(snapshot: Snapshot, name: str) -> bool:
    """Whether a stage was there."""
    return any(stage.name == name for stage in snapshot.stages)


def _items(earlier: Snapshot, later: Snapshot, name: str) -> int:
    """How many items a stage has delivered in between."""
    return later.stage(name).delivered - earlier.stage(name).delivered
