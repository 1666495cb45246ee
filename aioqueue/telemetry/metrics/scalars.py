"""A flat dict of what happened in an interval, for dashboards and trackers of experiments."""

from __future__ import annotations

import re
from collections.abc import Iterable

from aioqueue.base.display_text import without_secrets
from aioqueue.telemetry.metrics.intervals import Interval
from aioqueue.telemetry.metrics.snapshots import Snapshot


def scalars_of(earlier: Snapshot, later: Snapshot) -> dict[str, float]:
    """Return what happened between two snapshots as a flat dict; see `Monitor.scalars`."""
    interval = Interval.between(earlier, later)
    scalars = {"data/rate": interval.step.rate, "data/step_wait": interval.step.waits}
    tags = _unique_tags(queue.now.name for queue in interval.queues)
    for queue in interval.queues:
        now = queue.now
        name = f"data/{tags[now.name]}"
        scalars[f"{name}/fill"] = now.size / now.capacity if now.capacity else float(now.size)
        scalars[f"{name}/rate"] = queue.rate_out
    tags = _unique_tags(stage.now.name for stage in interval.stages)
    for stage in interval.stages:
        name = f"data/{tags[stage.now.name]}"
        scalars[f"{name}/busy"] = stage.busy
        scalars[f"{name}/blocked"] = stage.blocked
        scalars[f"{name}/starved"] = stage.starved
        scalars[f"{name}/rate"] = stage.rate
        scalars[f"{name}/seconds"] = stage.service.mean
        scalars[f"{name}/workers"] = float(len(stage.now.workers))
        generation = stage.generation
        if generation is not None:
            scalars[f"{name}/workers"] = float(stage.now.in_flight)
            scalars[f"{name}/staleness"] = generation.mean_staleness
            scalars[f"{name}/worst_staleness"] = float(generation.now.worst_staleness)
            scalars[f"{name}/publish_lag"] = float(generation.now.publish_lag)
            scalars[f"{name}/waits_for_slots"] = generation.slots
            scalars[f"{name}/waits_at_gate"] = generation.gate
    stage_names = {stage.now.name for stage in interval.stages}
    for function in interval.functions:
        tag = function.now.name
        if tag in stage_names:
            tag = f"{tag}-{function.now.kind}"
        name = f"data/{_tag(tag)}"
        scalars[f"{name}/busy"] = function.busy
        scalars[f"{name}/seconds"] = function.service.mean
    return scalars


def _unique_tags(names: Iterable[str]) -> dict[str, str]:
    """Return a tag for each name, with a number where two names would share one."""
    found: dict[str, str] = {}
    for name in names:
        tag, count = _tag(name), 1
        while tag in found.values():
            count += 1
            tag = f"{_tag(name)}-{count}"
        found[name] = tag
    return found


def _tag(name: str) -> str:
    """Return a name that all trackers accept as part of a tag (they reject ``<lambda>``)."""
    return re.sub(r"[^\w\-. ]+", "_", without_secrets(name)).strip("_") or "_"
