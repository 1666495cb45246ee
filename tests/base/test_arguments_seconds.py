"""All arguments in seconds take the same values: a table of all public arguments that do."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioqueue
from aioqueue import InvalidArgumentError, inputs, sync
from aioqueue.base.arguments import (
    checked_count,
    checked_flag,
    checked_grace,
    checked_seconds,
    is_int,
)
from aioqueue.pipeline.nodes.rows import EpochRange
from aioqueue.workers.retries import FailurePolicy

NUMBERS = [
    0,
    1,
    0.5,
    10**400,
    float("inf"),
    np.int8(1),
    np.uint64(2**64 - 1),
    np.float16(1),
    np.float32(0.25),
    np.float64(1),
    np.longdouble(1),
]
NEGATIVE = [-1, -0.001, -(10**400), float("-inf"), np.int8(-1), np.float16(-1), np.float32(-0.5)]
NO_NUMBERS = [
    True,
    np.True_,
    float("nan"),
    np.float32("nan"),
    "1",
    b"1",
    1j,
    [1],
    np.array(1.0),
    Decimal(1),
    timedelta(seconds=1),
    np.timedelta64(1, "s"),
    object(),
]


def shown(value: Any) -> str:
    """A value as the name of a case."""
    return repr(value).split(" at ")[0][:20]


def filled() -> sync.FIFOQueue:
    queue = sync.FIFOQueue(9)
    queue.enqueue_many(range(4))
    return queue


def urgent() -> sync.PriorityQueue:
    return sync.PriorityQueue(99)


def closed() -> sync.FIFOQueue:
    queue = sync.FIFOQueue(9)
    queue.close()
    return queue


def stopped() -> sync.Coordinator:
    coord = sync.Coordinator()
    coord.request_stop()
    return coord


async def joined(seconds: Any) -> None:
    await aioqueue.Coordinator().join(stop_grace_period=seconds)


async def taken(seconds: Any) -> None:
    await filled().aio.dequeue_up_to(2, max_wait=seconds)


def batched(seconds: Any) -> None:
    coord = sync.Coordinator()
    list(inputs.batch([1, 2], 2, coord=coord, max_wait=seconds))
    coord.join()


def looped(seconds: Any) -> None:
    coord = sync.Coordinator()
    sync.LooperThread.loop(coord, seconds, coord.request_stop)
    coord.join()


def numbers_() -> inputs.Pipeline[Any]:
    return inputs.numbers(1).batch(1)


def same(values: list[Any]) -> list[Any]:
    return values


def watched() -> aioqueue.Monitor:
    with aioqueue.Monitor(sync.Coordinator()) as monitor:
        return monitor
    raise AssertionError("unreachable")


def drained(coord: Any, seconds: Any) -> None:
    coord.drain(seconds)
    coord.request_stop()


def traced(seconds: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        watched().trace(Path(folder) / "trace.json", seconds=seconds).stop()


def found_by_name(connect: Callable[..., object], seconds: Any) -> None:
    name = "seconds-" + os.urandom(4).hex()
    sync.FIFOQueue(1).share(name=name)
    connect(name, timeout=seconds)


SECONDS: dict[str, Callable[[Any], object]] = {
    "connect(timeout)": lambda s: found_by_name(aioqueue.connect, s),
    "sync.connect(timeout)": lambda s: found_by_name(sync.connect, s),
    "sync.BlockingQueue.enqueue(timeout)": lambda s: filled().enqueue(1, timeout=s),
    "sync.BlockingQueue.enqueue_many(timeout)": lambda s: filled().enqueue_many([1], timeout=s),
    "sync.BlockingQueue.dequeue(timeout)": lambda s: filled().dequeue(timeout=s),
    "sync.BlockingQueue.dequeue_many(timeout)": lambda s: filled().dequeue_many(2, timeout=s),
    "sync.BlockingQueue.dequeue_up_to(timeout)": lambda s: filled().dequeue_up_to(2, timeout=s),
    "sync.BlockingQueue.dequeue_up_to(max_wait)": lambda s: filled().dequeue_up_to(2, max_wait=s),
    "sync.BlockingQueue.wait_closed(timeout)": lambda s: closed().wait_closed(timeout=s),
    "sync.BlockingQueue.join(timeout)": lambda s: closed().join(timeout=s),
    "AsyncQueue.dequeue_up_to(max_wait)": lambda s: asyncio.run(taken(s)),
    "sync.CancelScope.__init__(timeout)": sync.CancelScope,
    "sync.Coordinator.wait_for_stop(timeout)": lambda s: stopped().wait_for_stop(s),
    "sync.LooperThread.__init__(timer_interval_secs)": lambda s: sync.LooperThread(stopped(), s),
    "sync.LooperThread.loop(timer_interval_secs)": looped,
    "LooperTask.__init__(interval)": lambda s: aioqueue.LooperTask(s, print),
    "AsyncQueue.batches(max_wait)": lambda s: filled().aio.batches(2, max_wait=s),
    "sync.BlockingQueue.batches(max_wait)": lambda s: filled().batches(2, max_wait=s),
    "Batcher.__init__(max_wait)": lambda s: aioqueue.Batcher(same, max_wait=s),
    "sync.Batcher.__init__(max_wait)": lambda s: sync.Batcher(same, max_wait=s),
    "inputs.Preemption.__init__(every)": lambda s: inputs.Preemption(every=s),
    "inputs.Preemption.__init__(grace)": lambda s: inputs.Preemption(grace=s),
    "inputs.Preemption.request(seconds)": lambda s: inputs.Preemption().request(seconds=s),
    "inputs.aws_notice(timeout)": lambda s: inputs.aws_notice(timeout=s),
    "inputs.azure_notice(timeout)": lambda s: inputs.azure_notice(timeout=s),
    "inputs.gcp_notice(timeout)": lambda s: inputs.gcp_notice(timeout=s),
    "inputs.batch(max_wait)": batched,
    "sync.Coordinator.drain(deadline)": lambda s: drained(sync.Coordinator(), s),
    "Coordinator.drain(deadline)": lambda s: drained(aioqueue.Coordinator(), s),
    "Monitor.scalars(seconds)": lambda s: watched().scalars(s),
    "Monitor.verdict(seconds)": lambda s: watched().verdict(s),
    "sync.Latest.get(timeout)": lambda s: sync.Latest(1).get(timeout=s),
    "sync.Latest.wait_newer(timeout)": lambda s: sync.Latest(1).wait_newer(0, timeout=s),
    "Restart.__init__(backoff)": lambda s: aioqueue.Restart(1, s),
    "Restart.__init__(reset_after)": lambda s: aioqueue.Restart(1, reset_after=s),
    "inputs.Retry.__init__(backoff)": lambda s: inputs.Retry(1, s),
    "inputs.Retry.__init__(backoff), function": lambda s: FailurePolicy(
        inputs.Retry(1, lambda _: s), None, has_quarantine=False
    ).delay(OSError(), 1),
}
GRACES: dict[str, Callable[[Any], object]] = {
    "sync.Coordinator.__init__(stop_grace_period)": lambda s: sync.Coordinator(stop_grace_period=s),
    "sync.Coordinator.join(stop_grace_period)": lambda s: stopped().join(stop_grace_period=s),
    "Coordinator.__init__(stop_grace_period)": lambda s: aioqueue.Coordinator(stop_grace_period=s),
    "Coordinator.join(stop_grace_period)": lambda s: asyncio.run(joined(s)),
}
LIMITS: dict[str, Callable[[Any], object]] = {
    "Batcher.__init__(ageing)": lambda s: aioqueue.Batcher(same, queue=urgent(), ageing=s),
    "sync.Batcher.__init__(ageing)": lambda s: sync.Batcher(same, queue=urgent(), ageing=s),
    "Batcher.__init__(watchdog)": lambda s: aioqueue.Batcher(same, watchdog=s),
    "sync.Batcher.__init__(watchdog)": lambda s: sync.Batcher(same, watchdog=s),
    "sync.Coordinator.__init__(watchdog)": lambda s: sync.Coordinator(watchdog=s),
    "Coordinator.__init__(watchdog)": lambda s: aioqueue.Coordinator(watchdog=s),
    "inputs.Pipeline.epochs(watchdog)": lambda s: numbers_().epochs(watchdog=s),
    "inputs.Source.epochs(watchdog)": lambda s: inputs.numbers(3).epochs(watchdog=s),
    "inputs.Epochs.__init__(watchdog)": lambda s: inputs.Epochs(
        numbers_(), EpochRange(0, 1), None, s
    ),
    "inputs.AdaptiveRate.__init__(recovery)": lambda s: inputs.AdaptiveRate(
        inputs.per_second(1), on=OSError, recovery=s
    ),
    "inputs.Rate.__init__(seconds)": lambda s: inputs.Rate(1, s),
    "Monitor.column(seconds)": lambda s: watched().column(s),
    "Monitor.live(every)": lambda s: watched().live(every=s),
    "Monitor.live(seconds)": lambda s: watched().live(seconds=s),
    "Monitor.live(log_interval)": lambda s: watched().live(log_interval=s),
    "Monitor.table(seconds)": lambda s: watched().table(s),
    "Monitor.trace(seconds)": traced,
    "Monitor.waits(seconds)": lambda s: watched().waits(s),
    "inputs.prepare(item_timeout)": lambda s: inputs.prepare(
        [1], float, into=sync.FIFOQueue(1), item_timeout=s
    ),
}
"""Where no time at all would be none of the time."""
ALL = SECONDS | GRACES | LIMITS
NEED_RICH = {
    name for name in LIMITS if name.startswith(("Monitor.live", "Monitor.table", "Monitor.column"))
}
NEEDED = (
    *("inputs.Retry", "Batcher.__init__(max_wait)", "sync.Batcher.__init__(max_wait)"),
    "Restart.__init__(backoff)",
    "inputs.Rate",
    "inputs.AdaptiveRate",
    "inputs.Preemption.__init__(every)",
    *("inputs.aws_notice", "inputs.azure_notice", "inputs.gcp_notice", "Monitor.scalars"),
    *("Monitor.column", "Monitor.live(every)", "Monitor.live(seconds)", "Monitor.table"),
    *("Monitor.trace", "Monitor.waits"),
)
OPTIONAL = {
    name for name in SECONDS | LIMITS if not name.startswith(NEEDED)
}  # where None means: no limit, or no pause


def refuses(name: str, value: Any) -> bool:
    """Whether a call refuses a value, and in the words that all of them have."""
    argument = name.partition("(")[2].partition(")")[0]
    try:
        ALL[name](value)
    except InvalidArgumentError as error:
        return re.match(f"{argument}: got .* a number of seconds", str(error)) is not None
    return False


def accepts(name: str, value: Any) -> bool:
    ALL[name](value)
    return True


class TestSeconds:
    """Every call that takes seconds, with every value: one test lists all that differ."""

    @pytest.mark.parametrize("value", NUMBERS, ids=shown)
    def test_numbers_are_accepted(self, value: Any) -> None:
        refused = {name for name in LIMITS if not value}
        left_out = refused | {name for name in NEED_RICH if find_spec("rich") is None}
        assert not [name for name in ALL if name not in left_out and not accepts(name, value)]
        assert not [name for name in refused if not refuses(name, value)]

    @pytest.mark.parametrize("value", NEGATIVE, ids=shown)
    def test_less_than_none_is_refused_and_no_grace(self, value: Any) -> None:
        assert not [name for name in GRACES if not accepts(name, value)]
        assert not [name for name in SECONDS | LIMITS if not refuses(name, value)]

    @pytest.mark.parametrize("value", NO_NUMBERS, ids=shown)
    def test_what_is_no_number_is_refused(self, value: Any) -> None:
        assert not [name for name in ALL if not refuses(name, value)]

    def test_none(self) -> None:
        assert not [name for name in OPTIONAL if not accepts(name, None)]
        assert not [name for name in ALL if name not in OPTIONAL and not refuses(name, None)]


def public_seconds() -> Iterator[str]:
    """All public arguments that are floats, by the name that the table has for them."""
    for prefix, module in (("", aioqueue), ("sync.", sync), ("inputs.", inputs)):
        for name in module.__all__:
            if (
                prefix
                and name in aioqueue.__all__
                and getattr(aioqueue, name) is getattr(module, name)
            ):
                continue
            thing = getattr(module, name)
            members: dict[str, Any] = {"": thing}
            if inspect.isclass(thing):
                members = {
                    f".{member}": getattr(thing, member, None)  # names of other libraries raise
                    for member in dir(thing)
                    if member == "__init__" or not member.startswith("_")
                }
            for member, function in members.items():
                if not inspect.isfunction(function):
                    continue
                for argument in inspect.signature(function).parameters.values():
                    if "float" in str(argument.annotation):
                        yield f"{prefix}{name}{member}({argument.name})"


NO_SECONDS = (
    *("Batcher.__init__(weight)", "Batcher.__init__(max_batch_weight)"),
    *("AdaptiveRate.__init__(cut)", "Batches.__init__(max_wait)"),
    *("Rate.__init__(count)", "per_minute(count)", "per_second(count)"),
    "mix(weights)",
    "opentelemetry(attributes)",
    "prepare(max_failures)",
    "split(fractions)",
    "ItemTimeoutError.__init__(seconds)",
    "Restart.__init__(jitter)",
)
SOURCES = ("QuarantinedItems", "Reader", "RayDataset", "Kafka")
AS_SOURCES_HAVE_IT = tuple(f"inputs.{kind}.epochs(watchdog)" for kind in SOURCES)
RESULTS = ("Statistics",)
KINDS = ("FIFOQueue", "RandomShuffleQueue", "PaddingFIFOQueue", "PriorityQueue")  # as their faces


def test_the_table_has_all_of_them() -> None:
    found = {
        name
        for name in public_seconds()
        if not any(f"{kind}." in name for kind in (*KINDS, *RESULTS))
    }
    found = {name for name in found if not name.endswith((*NO_SECONDS, *AS_SOURCES_HAVE_IT))}
    assert found == {name.partition(",")[0] for name in ALL}


class TestChecks:
    def test_the_longest_time(self) -> None:
        for value in (float("inf"), 10**400, np.float64("inf"), np.uint64(2**64 - 1)):
            assert checked_seconds(value, "s") == threading.TIMEOUT_MAX
        assert checked_grace(-(10**400), "s") == 0

    @pytest.mark.parametrize("value", [1, -3, np.int8(1), np.uint64(2**64 - 1)], ids=repr)
    def test_ints(self, value: Any) -> None:
        assert is_int(value)

    @pytest.mark.parametrize(
        "value",
        [True, np.True_, 1.0, np.float32(1), "1", None, np.timedelta64(1, "s"), np.array(1)],
        ids=repr,
    )
    def test_what_is_no_int(self, value: Any) -> None:
        assert not is_int(value)
        with pytest.raises(InvalidArgumentError, match=r"^n: got .*; expected an int >= 0$"):
            checked_count(value, "n")

    def test_counts(self) -> None:
        assert type(checked_count(np.int8(3), "n", least=3)) is int
        with pytest.raises(InvalidArgumentError, match=r"^n: got 2; expected an int >= 3$"):
            checked_count(2, "n", least=3)

    def test_flags(self) -> None:
        assert checked_flag(True, "f") is True
        for wrong in (1, None, "yes", np.True_):
            with pytest.raises(InvalidArgumentError, match=r"^f: got .*; expected a bool$"):
                checked_flag(wrong, "f")
