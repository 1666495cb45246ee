"""Explore the machine of a `RolloutQueue`; see `proofs.rollouts`."""

from __future__ import annotations

import argparse
import sys
import time

from aioqueue.rl.machine import RolloutMachine
from proofs.rollouts.exploring import explore
from proofs.rollouts.mistakes import MISTAKES, PROTOCOL_MISTAKES, finder_of
from proofs.rollouts.process_world import ProcessWorld
from proofs.rollouts.settings import SETTINGS


def main(arguments: list[str] | None = None) -> int:
    """Explore the configurations whose name contains a text, or look for the seeded mistakes."""
    parser = argparse.ArgumentParser(prog="python -m proofs.rollouts", description=main.__doc__)
    parser.add_argument("name", nargs="?", default="", help="a part of the names of configurations")
    parser.add_argument("--mistakes", action="store_true", help="look for the seeded mistakes")
    given = parser.parse_args(arguments)
    began, bad, states = time.monotonic(), 0, 0
    if given.mistakes:
        mistakes: list[type[RolloutMachine] | type[ProcessWorld]] = [*MISTAKES, *PROTOCOL_MISTAKES]
        for mistake in mistakes:
            if given.name not in mistake.__name__:
                continue
            found = finder_of(mistake)
            bad += found is None
            print(f"{mistake.__name__:40} {'MISSED' if found is None else ': '.join(found)[:300]}")
            sys.stdout.flush()
        return bool(bad)
    for setting in SETTINGS:
        if given.name in setting.name:
            result = explore(setting)
            states += result.states
            bad += bool(result.violation)
            print(
                f"{setting.name:48} {result.states:8} {result.violation[:700] or 'ok'}", flush=True
            )
    print(f"{states} states, {bad} bad, {time.monotonic() - began:.0f} s")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
