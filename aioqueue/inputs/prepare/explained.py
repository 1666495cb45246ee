"""What a `prepare` says of itself to whoever asks why nothing moves."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import PurePath
from time import monotonic

from aioqueue.checks import counted
from aioqueue.inputs.prepare.hands import Hand
from aioqueue.inputs.prepare.job import Job
from aioqueue.inputs.sources.item import EpochEnd, Item, value_told
from aioqueue.telemetry.explanations import ExplainedItem, ExplainedStage, ExplainedWorker
from aioqueue.telemetry.stacks import Stack, stack_of

__all__ = ("explained_item", "explained_stage")

_PATIENCE = 0.5
"""Seconds that processes have to say where they are, all of a stage together."""


def explained_stage(runner: ExplainedStage, job: Job, description: str) -> ExplainedStage:
    """What a runner says of itself, with what its job knows.

    Args:
        runner: what is known of any runner: its workers, and where they are.
        job: what they work for.
        description: what it does, in words.
    """
    hands = job.hands.all()
    deadline = monotonic() + _PATIENCE
    workers = [_worker(worker, hands.get(worker.key), deadline) for worker in runner.workers]
    workers.sort(key=lambda one: 0.0 if one.item is None else -one.item.seconds)
    source = job.feed.queue
    return replace(
        runner,
        name=_named(description),
        source=None if source is None else source.name,
        source_key=0 if source is None else id(source._core),
        workers=tuple(workers),
        in_flight=job.window.taken,
        limit=job.window.limit,
        idle_seconds=min((hand.seconds for hand in hands.values()), default=None),
        notes=tuple(_notes(job)),
    )


def explained_item(item: Item, failures: int, seconds: float) -> ExplainedItem:
    """An item that is being prepared."""
    return ExplainedItem(
        value_told(item.value), item.number, item.epoch, item.index, failures + 1, seconds
    )


def _named(description: str) -> str:
    """Of "decode on 4 threads", what it does and then by whom."""
    function, _, workers = description.rpartition(" on ")
    return f"{function} ({workers})"


def _worker(worker: ExplainedWorker, hand: Hand | None, deadline: float) -> ExplainedWorker:
    if hand is None or worker.state != "running":
        return replace(worker, is_at_source=_is_at_source(worker.stack))
    if hand.process is not None:
        told: ExplainedWorker = hand.process.explained(max(0.02, deadline - monotonic()))
        return replace(told, key=worker.key)
    if hand.thread is not None:
        stack = stack_of(hand.thread)
        worker = replace(worker, stack=stack, key=id(hand.thread), registered=worker.key)
    item, failures, seconds = hand.item, hand.failures, hand.seconds
    if item is None or isinstance(item.value, EpochEnd):
        return replace(worker, is_at_source=_is_at_source(worker.stack))
    return replace(worker, item=explained_item(item, failures, seconds))


def _is_at_source(stack: Stack) -> bool:
    """Whether a call to the source has not returned: one of `feed` that a ``take`` has made."""
    for inner, outer in pairwise(stack):
        if outer.function.endswith("Source.take"):
            return (
                PurePath(inner.file).name == "feed.py" and "prepare" in PurePath(inner.file).parts
            )
    return any(frame.function.endswith("AsyncReader._read") for frame in stack)


def _notes(job: Job) -> list[str]:
    notes = []
    waiting = job.waiting_in_order()
    if waiting:
        notes.append(
            f"{counted(waiting, 'item')} prepared, waiting for one before them (ordered=True)"
        )
    if job.key_limit is not None:
        notes += job.key_limit.told()
    died = job.progress.statistics().workers_died
    if died:
        notes.append(f"{died} of its processes have died and were replaced")
    cut_short = job.progress.statistics().timed_out
    if cut_short:
        notes.append(f"item_timeout has cut short {counted(cut_short, 'item')}")
    return notes
