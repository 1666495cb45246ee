"""Changing the number of workers of a stage while it runs, by the verdict.

A stage is given more workers only while it is the one that limits, and its calls wait for something
else than processors or the interpreter; and it keeps them only if it has become faster by that. It
gives some back when data are ahead and they have nothing to do. What did not help is not tried
again for some time, and for longer each time.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from aioqueue.telemetry.monitor import Monitor
from aioqueue.telemetry.numbers import Snapshot
from aioqueue.telemetry.parts import Change, Watch
from aioqueue.telemetry.reading import verdict_of
from aioqueue.telemetry.verdicts import Verdict

__all__ = ("Tuner",)

_SETTLE: Final = 1.0
"""Seconds after a change that say nothing of what follows."""

_WINDOW: Final = 1.8
"""Seconds, at least, that a change is judged by."""

_LONGEST: Final = 10.0
"""Seconds, at most, that are looked back."""

_BETTER: Final = 1.05
"""Times as fast that a stage must be to keep workers that it was given."""

_MOST_AT_ONCE: Final = 3
"""Times the workers of now that are added at once, at most."""

_PATIENCE: Final = 20.0
"""Seconds until what did not help is tried again, for the first time."""

_log: Final = logging.getLogger("aioqueue")


class _Trial(NamedTuple):
    """A change that is to be judged: what was before."""

    workers: int
    rate: float


class Tuner:
    """Changes the number of workers of one stage.

    Args:
        watch: of the run that the stage belongs to.
        stage: its name.
        into: name of the queue that it fills.
        bounds: the fewest and the most workers.
        count: tells how many there are.
        resize: sets how many there are.
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
        self._changed = 0.0
        self._trial: _Trial | None = None
        self._ceiling: tuple[int, float] | None = None  # what did not help, and until when
        self._floor: tuple[int, float] | None = None  # what was too few
        self._patience = _PATIENCE
        self._tuning = _tuning_of(watch)
        self._tuning.tuners.add(self)

    def tune(self, history: Sequence[Snapshot]) -> None:
        """Change something, if that is due; called once a second.

        Args:
            history: what was seen of the run, a snapshot each second.
        """
        later = history[-1]
        begin = max(self._changed + _SETTLE, later.seconds - _LONGEST)
        seen = [one for one in history if one.seconds >= begin]
        if not seen or later.seconds - seen[0].seconds < _WINDOW:
            return
        name = self._name_in(later)
        rate = None if name is None else _rate(seen[0], later, name)
        verdict = verdict_of(seen[0], later)
        if rate is None or verdict.cause == "nothing":
            return
        if self._trial is not None:
            self._judge(self._trial, rate, verdict, later.seconds)
        elif verdict.stage == name:
            self._consider(verdict, rate, later.seconds)

    def _name_in(self, snapshot: Snapshot) -> str | None:
        """What it is called there: others may have the same name, and are told apart."""
        for stage in snapshot.stages:
            if stage.into == self._into and stage.name.startswith(self._stage):
                return stage.name
        return None

    def _judge(self, trial: _Trial, rate: float, verdict: Verdict, now: float) -> None:
        """Keep what has helped, and take back what has not."""
        count = self._count()
        self._trial = None
        if count > trial.workers and rate < _BETTER * trial.rate and verdict.cause != "step":
            self._ceiling = (trial.workers, now + self._patience)
            self._patience *= 2
            self._set(trial.workers, now, f"{count} were no faster")
        elif count < trial.workers and verdict.cause != "step":
            self._floor = (trial.workers, now + self._patience)
            self._patience *= 2
            self._set(trial.workers, now, f"{count} were too few")

    def _consider(self, verdict: Verdict, rate: float, now: float) -> None:
        """Follow the verdict, which is about this stage."""
        count, most, least = self._count(), self._high, self._low
        if self._ceiling is not None and now < self._ceiling[1]:
            most = min(most, self._ceiling[0])
        if self._floor is not None and now < self._floor[1]:
            least = max(least, self._floor[0])
        wanted = count
        if verdict.advice == "more workers":
            wanted = min(most, count + min(verdict.workers, _MOST_AT_ONCE * count))
        elif verdict.advice == "fewer workers":
            wanted = max(least, count - max(1, verdict.workers // 2))
        if (verdict.advice == "more workers" and wanted > count) or (
            verdict.advice == "fewer workers" and wanted < count
        ):
            self._trial = _Trial(count, rate)
            self._set(wanted, now, verdict.sentence)

    def _set(self, count: int, now: float, why: str) -> None:
        before, self._changed = self._count(), now
        try:
            self._resize(count)
        except RuntimeError as error:
            self._ceiling, self._trial = (before, now + self._patience), None
            _log.warning("%s cannot have %d workers: %s", self._stage, count, error)
            return
        self._watch.note(Change(now, self._stage, before, count, why))
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
        super().__init__(_Watched(watch))

    def _each_second(self) -> None:
        for tuner in list(self.tuners):
            tuner.tune(self.history)


def _tuning_of(watch: Watch) -> _Tuning:
    """The one that all stages of a run share."""
    tuning: _Tuning | None = watch.tuning()
    if tuning is None:
        tuning = _Tuning(watch)
        watch.tuning = weakref.ref(tuning)
    return tuning


def _rate(earlier: Snapshot, later: Snapshot, name: str) -> float | None:
    """Items that a stage has delivered per second; ``None`` if it was not there all the time."""
    try:
        items = later.stage(name).delivered - earlier.stage(name).delivered
    except KeyError:
        return None
    return items / (later.seconds - earlier.seconds)
