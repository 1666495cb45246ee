"""Explore worlds of one size; see `proofs.explorer`."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from typing import Final

from proofs.explorer import Setting, explore
from proofs.explorer.model import PUTS, TAKES, WEIGHTY_PUTS
from proofs.explorer.stand_ins import STORAGES

WORLDS: Final = ("one-loop", "two-loops", "threads", "mixed")


def wakers_of(name: str, producers: int, consumers: int) -> tuple[str, str]:
    """The wakers of so many callers: everybody in one loop, in two loops, in threads, or mixed."""
    letters = {
        "one-loop": "A",
        "two-loops": "AB",
        "threads": "t",
        "mixed": "AtB",
    }[name]
    cycle = itertools.cycle(letters)
    return "".join(itertools.islice(cycle, producers)), "".join(
        itertools.islice(itertools.cycle(letters), consumers)
    )


def main(arguments: list[str] | None = None) -> int:
    """Explore one size of world, with all wakers and all capacities asked for."""
    parser = argparse.ArgumentParser(prog="python -m proofs.explorer", description=main.__doc__)
    parser.add_argument("--producers", type=int, default=2)
    parser.add_argument("--consumers", type=int, default=2)
    parser.add_argument("--operations", type=int, default=2, help="of each caller")
    parser.add_argument("--capacity", type=int, default=3, help="all from 1 to this one")
    parser.add_argument("--bytes", type=int, help="that fit; rows have 1, 2 or 4")
    parser.add_argument("--keep", type=int, nargs="*", default=[0], help="min_after_dequeue")
    parser.add_argument("--wakers", nargs="*", choices=WORLDS, default=list(WORLDS))
    parser.add_argument("--storage", choices=sorted(STORAGES), default="fifo")
    parser.add_argument("--withdrawals", type=int, default=2, help="in one path, at most")
    parser.add_argument("--closes", type=int, default=1, help="in one path, at most")
    parser.add_argument("--resizes", type=int, default=0, help="the same")
    parser.add_argument("--dones", type=int, default=0, help="calls of task_done; adds joins")
    parser.add_argument("--failures", type=int, default=0, help="the same as closes, by a failure")
    parser.add_argument(
        "--has-standby", action="store_true", help="let tasks stand by, in the worlds with loops"
    )
    parser.add_argument("--seconds", type=float, help="give up after this time")
    given = parser.parse_args(arguments)
    deadline = None if given.seconds is None else time.monotonic() + given.seconds
    began = time.monotonic()
    states = transitions = 0
    finished = True
    for wakers, capacity, keep in itertools.product(
        given.wakers, range(1, given.capacity + 1), given.keep
    ):
        if keep >= capacity:
            continue
        producers, consumers = wakers_of(wakers, given.producers, given.consumers)
        setting = Setting(
            producers,
            consumers,
            given.operations,
            capacity,
            keep,
            given.storage,
            puts=PUTS if given.bytes is None else WEIGHTY_PUTS,
            takes=(*TAKES, "join") if given.dones or given.failures else TAKES,
            withdrawals=given.withdrawals,
            closes=given.closes,
            max_bytes=given.bytes,
            resizes=given.resizes,
            dones=given.dones,
            failures=given.failures,
            has_standby=given.has_standby,
        )
        print(setting, flush=True)
        result = explore(setting, deadline=deadline, progress=True)
        print(f"  {result}, {time.monotonic() - began:.0f} s so far", flush=True)
        states += result.states
        transitions += result.transitions
        finished &= result.finished
    print(f"all: {states} states, {transitions} transitions, {'' if finished else 'NOT '}finished")
    return 0 if finished else 1


if __name__ == "__main__":
    sys.exit(main())
