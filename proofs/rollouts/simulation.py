"""A trainer and an engine in virtual time, around the machine of a `RolloutQueue`.

Nothing sleeps: a heap of events is the clock. So a run of hours takes a moment, and two runs of the
same arguments are equal.

    python -m proofs.rollouts.simulation            the table of the documentation
    python -m proofs.rollouts.simulation --large    10,240 rollouts in flight, a million groups

**Against others.** `run_formula` is the rule of AReaL and SkyRL: how many rollouts may begin
follows from the version and from counts of what was accepted and what runs. `run_synchronously` is
the loop without a queue: generate a batch, train, publish. Where the machine promises the same, it
must give the same batches, the same staleness and the same time.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Final

from aioqueue.rl.machine import Effects, MachineGroup, Order, RolloutMachine

Latency = Callable[[int, int], float]
"""Seconds that a rollout takes, by the ordinal of its prompt and its index."""

WARM_UP: Final = 5
"""The first steps, which tell nothing about staleness: the queue fills."""


def lognormal(sigma: float = 1.0, mean: float = 1.0) -> Latency:
    """Return latencies with a long tail, as those of language models have."""

    def latency(ordinal: int, index: int) -> float:
        generator = random.Random(ordinal * 1009 + index)
        return mean * math.exp(generator.gauss(0, sigma) - sigma * sigma / 2)

    return latency


@dataclass
class Result:
    """What a run has given.

    Attributes:
        batches: the ordinals of each step's groups.
        staleness: of the same groups.
        waited: seconds that the trainer waited for batches.
        seconds: how long all steps took, the last publication included.
        most_in_flight: how many rollouts ran at the same time.
        dropped: how many groups were dropped.
    """

    batches: list[list[int]] = field(default_factory=list)
    staleness: list[list[int]] = field(default_factory=list)
    waited: float = 0.0
    seconds: float = 0.0
    most_in_flight: int = 0
    dropped: int = 0

    def _settled(self) -> list[int]:
        return [one for step in self.staleness[WARM_UP:] for one in step]

    @property
    def mean_staleness(self) -> float:
        return fmean(self._settled())

    @property
    def worst_staleness(self) -> int:
        return max(self._settled())

    @property
    def idle(self) -> float:
        """The part of its time for which the trainer waits."""
        return self.waited / self.seconds

    @property
    def trained(self) -> list[int]:
        return [ordinal for batch in self.batches for ordinal in batch]


class Simulation:
    """One trainer that publishes each step, and an engine.

    Args:
        machine: a new machine.
        steps: how many steps to train.
        group_size: rollouts a group.
        train_seconds: what training on a batch takes.
        publish_seconds: what a publication takes.
        latency: what a rollout takes.
        accepts: whether a group is accepted, by its ordinal.
        prompts: how many prompts the source has.
    """

    def __init__(
        self,
        machine: RolloutMachine,
        steps: int,
        *,
        group_size: int = 1,
        train_seconds: float = 1.0,
        publish_seconds: float = 0.05,
        latency: Latency | None = None,
        accepts: Callable[[int], bool] = lambda ordinal: True,
        prompts: float = math.inf,
    ) -> None:
        self.machine = machine
        self.steps = steps
        self.group_size = group_size
        self.train_seconds = train_seconds
        self.publish_seconds = publish_seconds
        self.latency = lognormal() if latency is None else latency
        self.accepts = accepts
        self.prompts = prompts
        self.now = 0.0
        self.events = 0
        self.result = Result()
        self._heap: list[tuple[float, int, Callable[..., Effects | None], tuple[Any, ...]]] = []
        self._numbers = itertools.count()
        self._asked = 0.0
        self._is_over = False

    def run(self) -> Result:
        machine, result = self.machine, self.result
        self._carry_out(machine.begin())
        self._carry_out(machine.take())
        while self._heap and not self._is_over:
            self.now, _, call, arguments = heapq.heappop(self._heap)
            self.events += 1
            effects = call(*arguments)
            if effects is not None:
                self._carry_out(effects)
        result.dropped = sum(machine.dropped.values())
        return result

    def _after(self, seconds: float, call: Callable[..., Effects | None], *arguments: Any) -> None:
        event = (self.now + seconds, next(self._numbers), call, arguments)
        heapq.heappush(self._heap, event)

    def _carry_out(self, effects: Effects) -> None:
        machine = self.machine
        if effects.pull is not None:
            if effects.pull < self.prompts:
                self._after(0, self._answer, effects.pull)
            else:
                self._after(0, machine.source_end)
        for call in effects.starts:
            # A task begins at once: nothing comes between the decision and its first step.
            assert machine.enter(call)
            self._after(self.latency(call.group.ordinal, call.index), machine.finished, call)
        self.result.most_in_flight = max(self.result.most_in_flight, machine.running)
        for call in effects.cancels:
            self._after(0, machine.call_ended, call)
        for group in effects.judge:
            self._after(0, machine.judged, group, self.accepts(group.ordinal))
        if effects.step is not None:
            self._note_step(effects.step, effects.groups)
        self._is_over = self._is_over or effects.is_end

    def _answer(self, ordinal: int) -> Effects:
        return self.machine.prompt(ordinal, self.group_size)[1]

    def _note_step(self, step: int, groups: Sequence[MachineGroup]) -> None:
        result = self.result
        result.waited += self.now - self._asked
        result.batches.append([group.ordinal for group in groups])
        versions = (group.version for group in groups if group.version is not None)
        result.staleness.append([step - version for version in versions])
        self._after(self.train_seconds, self._publish)

    def _publish(self) -> Effects:
        self._after(self.publish_seconds, self._end_step)
        return self.machine.pause()

    def _end_step(self) -> Effects | None:
        effects = self.machine.resume(self.machine.step)
        self.result.seconds = self.now
        if len(self.result.batches) == self.steps:
            self._is_over = True
            return None
        self._carry_out(effects)
        self._asked = self.now
        return self.machine.take()


def run_formula(
    batch_size: int,
    steps_ahead: int,
    limit: int,
    steps: int,
    order: Order,
    *,
    train_seconds: float = 1.0,
    publish_seconds: float = 0.05,
    latency: Latency | None = None,
) -> Result:
    """Run the loop of AReaL (``"oldest"``) and SkyRL (``"ready"``), with groups of one rollout.

    The number of rollouts that may begin is ``min(limit - running, (steps_ahead + version + 1) *
    batch_size - (accepted + running))``. Source: the public code of both, as of November 2026.
    """
    latency = lognormal() if latency is None else latency
    result = Result()
    now = asked = 0.0
    heap: list[tuple[float, int, str, int]] = []
    numbers = itertools.count()
    following = running = accepted = version = 0
    is_training = is_paused = False
    buffer: list[int] = []
    versions: dict[int, int] = {}
    while True:
        while not is_paused:
            room = (steps_ahead + version + 1) * batch_size - (accepted + running)
            if min(limit - running, room) <= 0:
                break
            heapq.heappush(heap, (now + latency(following, 0), next(numbers), "ended", following))
            versions[following] = version
            following += 1
            running += 1
        if not is_training and len(buffer) >= batch_size:
            batch = (buffer if order == "ready" else sorted(buffer))[:batch_size]
            buffer = [one for one in buffer if one not in set(batch)]
            result.batches.append(batch)
            result.staleness.append([version - versions[one] for one in batch])
            result.waited += now - asked
            is_training = True
            heapq.heappush(heap, (now + train_seconds, next(numbers), "trained", 0))
            continue
        now, _, what, ordinal = heapq.heappop(heap)
        if what == "ended":
            running -= 1
            accepted += 1
            buffer.append(ordinal)
        elif what == "trained":
            is_paused = True
            heapq.heappush(heap, (now + publish_seconds, next(numbers), "published", 0))
        else:
            is_paused = is_training = False
            version += 1
            asked = result.seconds = now
            if len(result.batches) == steps:
                return result


def run_synchronously(
    batch_size: int,
    group_size: int,
    steps: int,
    *,
    train_seconds: float = 1.0,
    publish_seconds: float = 0.05,
    latency: Latency | None = None,
    accepts: Callable[[int], bool] = lambda ordinal: True,
) -> Result:
    """Run the loop without a queue: generate a batch, train on it, publish, and so on.

    The next prompt takes the place of a group that is refused.
    """
    latency = lognormal() if latency is None else latency
    result = Result()
    following = 0
    while len(result.batches) < steps:
        places = [result.seconds] * batch_size
        batch: list[int] = []
        end = result.seconds
        while len(batch) < batch_size:
            began = heapq.heappop(places)
            ended = began + max(latency(following, index) for index in range(group_size))
            end = max(end, ended)
            if accepts(following):
                batch.append(following)
            else:
                heapq.heappush(places, ended)
            following += 1
        result.batches.append(batch)
        result.staleness.append([0] * batch_size)
        result.waited += end - result.seconds
        result.seconds = end + train_seconds + publish_seconds
    return result


@dataclass(frozen=True)
class Row:
    """A row of the table in the documentation."""

    steps_ahead: int
    order: Order
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        if "on_stale" not in self.options:
            return self.order
        again = ", again" if self.options.get("stale_prompt") == "again" else ""
        return f"{self.options['on_stale']}, {self.options['max_staleness']}{again}"

    def run(self, steps: int = 60) -> Result:
        """Simulate 32 groups of 8 a step, 384 rollouts in flight at most, and a slow trainer."""
        machine = RolloutMachine(
            batch_size=32, steps_ahead=self.steps_ahead, limit=384, order=self.order, **self.options
        )
        latency = lognormal(1.0, 1.2)
        return Simulation(machine, steps, group_size=8, train_seconds=4.0, latency=latency).run()


def _rows() -> list[Row]:
    rows = [Row(0, "oldest")]
    for ahead in (1, 2):
        rows += [Row(ahead, "oldest"), Row(ahead, "strict")]
        rows.append(Row(ahead, "oldest", {"on_stale": "wait", "max_staleness": ahead + 1}))
        for prompt in ("drop", "again"):
            stale = {"on_stale": "drop", "max_staleness": ahead, "stale_prompt": prompt}
            rows.append(Row(ahead, "ready", stale))
    return rows


ROWS: Final = _rows()


def trained_length(result: Result, group_size: int = 8, mean: float = 1.2) -> tuple[float, float]:
    """Return the mean length of the trained groups, and of all groups up to the last of them."""
    latency = lognormal(1.0, mean)

    def length(ordinal: int) -> float:
        return max(latency(ordinal, index) for index in range(group_size))

    trained = result.trained
    return fmean(map(length, trained)), fmean(map(length, range(max(trained) + 1)))


def print_table() -> None:
    print("| steps ahead | order | mean | worst | trainer idle | length of trained groups |")
    print("|---|---|---|---|---|---|")
    for row in ROWS:
        result = row.run()
        length, length_of_all = trained_length(result)
        print(
            f"| {row.steps_ahead} | {row} | {result.mean_staleness:.2f} | {result.worst_staleness}"
            f" | {result.idle:.0%} | {length:.2f} (all: {length_of_all:.2f}) |",
            flush=True,
        )


def print_large() -> None:
    began = time.process_time()
    machine = RolloutMachine(batch_size=128, steps_ahead=4)
    simulation = Simulation(machine, 20, group_size=16, latency=lognormal(1.2, 1.2))
    result = simulation.run()
    seconds = time.process_time() - began
    print(
        f"{result.most_in_flight} rollouts in flight, {simulation.events} events,"
        f" {seconds / simulation.events * 1e6:.1f} us each; staleness {result.mean_staleness:.2f},"
        f" at most {result.worst_staleness}"
    )
    for groups in (10_000, 100_000, 1_000_000):
        began = time.process_time()
        machine = RolloutMachine(batch_size=100, steps_ahead=1)
        simulation = Simulation(machine, groups // 100, latency=lambda ordinal, index: 1.0)
        simulation.result.batches, simulation.result.staleness = _Length(), _Length()
        simulation.run()
        seconds = time.process_time() - began
        print(
            f"{machine.trained} groups: {seconds / simulation.events * 1e6:.1f} us an event,"
            f" {len(machine.groups)} groups are left, {machine.ended.ranges()} have ended",
            flush=True,
        )


class _Length(list[Any]):
    """A list that keeps only how many were appended."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0

    def append(self, one: Any, /) -> None:
        self._count += 1

    def __len__(self) -> int:
        return self._count


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m proofs.rollouts.simulation")
    parser.add_argument("--large", action="store_true", help="many rollouts, and many groups")
    given = parser.parse_args(arguments)
    if given.large:
        print_large()
    else:
        print_table()
    return 0


if __name__ == "__main__":
    sys.exit(main())
