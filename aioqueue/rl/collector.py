"""The statistics of rollout queues for Prometheus: a collector for `prometheus_client`.

That package is an extra: ``pip install '.[prometheus]'``. The collector keeps no counts of its own:
each scrape reads the statistics at that moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from aioqueue.base import extras
from aioqueue.base.display_text import on_one_line
from aioqueue.base.public_names import public
from aioqueue.errors import InvalidArgumentError
from aioqueue.rl.queue import RolloutQueueFace
from aioqueue.rl.statistics import RolloutStatistics
from aioqueue.telemetry.export.numbering import Exported
from aioqueue.telemetry.export.shared_collector import SharedCollector

_STATES: Final = ("open", "judged", "ready", "held")
_SECONDS: Final = ("trainer_waited", "waited_for_slots", "waited_at_gate", "publishing")
_GAUGES: Final = {
    "running": "Rollouts in flight.",
    "evaluating": "Prompts of evaluations that have not ended.",
    "step": "The number of the next step.",
    "version": "Steps in the published weights.",
    "publish_lag": "Steps that were handed out, minus the version.",
}


@public("aioqueue.rl")
class RolloutCollector(SharedCollector):
    """Metrics of rollout queues, each with the label ``rollouts``, its name.

    A registry takes any number of them: beside another running queue of the same name, one also has
    ``monitor="2"``.

    =================================== ========= ==================================================
    metric                              kind      meaning
    =================================== ========= ==================================================
    aioqueue_rollout_groups_total       counter   groups that have ended, by ``outcome``: trained,
                                                  refused, returned, or the reason of a drop
    aioqueue_rollout_existing_groups    gauge     groups that have a slot, by ``state``
    aioqueue_rollout_running            gauge     rollouts in flight
    aioqueue_rollout_evaluating         gauge     prompts of evaluations that have not ended
    aioqueue_rollout_step               gauge     the number of the next step
    aioqueue_rollout_version            gauge     steps in the published weights
    aioqueue_rollout_publish_lag        gauge     steps that were handed out, minus the version
    aioqueue_rollout_staleness          histogram staleness of the groups that were handed out
    aioqueue_rollout_wait_seconds_total counter   seconds, by ``what``: see `RolloutStatistics`
    =================================== ========= ==================================================

    Args:
        rollouts: the queues, as either of their faces; their names must differ.

    Raises:
        ImportError: `prometheus_client` is not installed.
        InvalidArgumentError: an argument is no rollout queue, or two have the same name.
    """

    def __init__(self, *rollouts: RolloutQueueFace[Any, Any]) -> None:
        _families()
        super().__init__()
        for one in rollouts:
            if not isinstance(one, RolloutQueueFace):
                raise InvalidArgumentError(
                    f"rollouts: got {one!r}; expected an aioqueue.rl.RolloutQueue"
                )
        names = [one.name for one in rollouts]
        if len(set(names)) < len(names):
            raise InvalidArgumentError(
                f"rollouts: got the names {names}; expected different ones (`name=`)"
            )
        self._rollouts = rollouts

    def _exported(self) -> list[Exported]:
        return [Exported(one.name, one._core, partial(_is_over, one)) for one in self._rollouts]

    def _families(self, numbers: list[int]) -> Iterator[Any]:
        records = [
            (
                {"rollouts": on_one_line(one.name)}
                | ({"monitor": str(number)} if number > 1 else {}),
                one.statistics(),
            )
            for one, number in zip(self._rollouts, numbers, strict=True)
            if number
        ]
        yield from _counters(records)
        yield from _gauges(records)
        yield _staleness(records)


def _is_over(rollouts: RolloutQueueFace[Any, Any]) -> bool:
    return rollouts._core.over.is_open


Records = list[tuple[dict[str, str], RolloutStatistics]]


def _counters(records: Records) -> Iterator[Any]:
    counter = _families().CounterMetricFamily
    groups = counter("aioqueue_rollout_groups", "Groups that have ended.")
    waits = counter("aioqueue_rollout_wait_seconds", "Where time went.")
    for labels, record in records:
        outcomes = {
            "trained": record.trained,
            "refused": record.refused,
            "returned": record.returned,
            **dict.fromkeys(("failed", "stale", "remainder"), 0),
            **record.dropped_by,
        }
        for outcome, number in outcomes.items():
            _add(groups, {**labels, "outcome": outcome}, number)
        for what in _SECONDS:
            _add(waits, {**labels, "what": what}, getattr(record, what))
    yield from (groups, waits)


def _gauges(records: Records) -> Iterator[Any]:
    gauge = _families().GaugeMetricFamily
    groups = gauge("aioqueue_rollout_existing_groups", "Groups that have a slot.")
    for labels, record in records:
        for state in _STATES:
            _add(groups, {**labels, "state": state}, getattr(record, state))
    yield groups
    for field, meaning in _GAUGES.items():
        family = gauge(f"aioqueue_rollout_{field}", meaning)
        for labels, record in records:
            _add(family, labels, getattr(record, field))
        yield family


def _staleness(records: Records) -> Any:
    histogram = _families().HistogramMetricFamily
    family = histogram("aioqueue_rollout_staleness", "Staleness of groups, in steps.")
    bounds = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
    for labels, record in records:
        buckets = [
            (f"{bound:.1f}", float(sum(n for age, n in record.staleness.items() if age <= bound)))
            for bound in bounds
        ]
        buckets.append(("+Inf", float(sum(record.staleness.values()))))
        total = sum(age * number for age, number in record.staleness.items())
        _add(family, labels, buckets, total)
    return family


def _add(family: Any, labels: dict[str, str], *values: Any) -> None:
    """Add a metric with labels of its own: not all have the same ones."""
    family._labelnames = tuple(labels)
    family.add_metric(list(labels.values()), *values)


def _families() -> Any:
    """Import and return `prometheus_client`.

    Raises:
        ImportError: it is not installed.
    """
    try:
        from prometheus_client import core
    except ImportError as error:
        raise ImportError(
            f"RolloutCollector needs prometheus_client: {extras.command_for('prometheus')}"
        ) from error
    return core
