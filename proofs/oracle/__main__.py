"""The command: ``python -m proofs.oracle [--programs N] [--seed N] [--only KIND ...]``."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm

from proofs.oracle import kinds
from proofs.oracle.comparing import LIMIT, Watched
from proofs.oracle.libraries import MISSING
from proofs.oracle.program import Program

SHRUNK = 3
"""How many programs of a kind are shown as scripts, made as short as they can be."""


@dataclass
class Row:
    """What came of the programs of one kind."""

    programs: int = 0
    operations: int = 0
    differences: int = 0
    unsteady: int = 0
    lost: int = 0
    kinder: Counter[str] = field(default_factory=Counter)

    def add(self, program: Program, watched: Watched, bar: Any) -> bool:
        """Compare one more, and tell of a difference; whether there is none."""
        verdict = watched.compare(program)
        self.programs += 1
        self.operations += program.operations
        self.kinder.update([verdict.kinder] if verdict.kinder is not None else [])
        if verdict.unsteady is not None:
            self.unsteady += 1
            seen = verdict.unsteady.summary()
            bar.write(f"# {program.kind}, seed {program.seed}, once and not again:\n{seen}")
        if verdict.lost is not None:
            self.lost += 1
            bar.write(f"# {program.kind}, seed {program.seed}: {verdict.lost}")
            return False
        if verdict.difference is None:
            return True
        self.differences += 1
        if self.differences <= SHRUNK:
            bar.write(str(watched.shrunk(verdict.difference)))
        else:
            bar.write(f"# {program.kind}, seed {program.seed}:\n{verdict.difference.summary()}")
        return False

    def __iadd__(self, other: Row) -> Row:
        self.programs += other.programs
        self.operations += other.operations
        self.differences += other.differences
        self.unsteady += other.unsteady
        self.lost += other.lost
        self.kinder += other.kinder
        return self


def main() -> int:
    """Compare so many programs; the exit status is 1 if any differs, or does not come back."""
    parser = argparse.ArgumentParser(prog="python -m proofs.oracle", description=__doc__)
    parser.add_argument("--programs", type=int, default=2000, help="how many (default 2000)")
    parser.add_argument("--seed", type=int, default=1, help="of the first one (default 1)")
    parser.add_argument("--only", nargs="+", metavar="KIND", help="kinds that contain such text")
    parser.add_argument("--stop", action="store_true", help="at the first difference")
    parser.add_argument(
        "--limit",
        type=float,
        default=LIMIT,
        help=f"seconds that a library may take for a program (default {LIMIT:.0f})",
    )
    parser.add_argument("--show", action="store_true", help="print the programs, compare nothing")
    options = parser.parse_args()
    if MISSING:
        print(MISSING, file=sys.stderr)
        return 2
    chosen = kinds.chosen(options.only)
    if not chosen:
        parser.error(f"--only: got {options.only}; expected part of one of {list(kinds.KINDS)}")
    table = {kind: Row() for kind in chosen}
    with tqdm(total=options.programs, unit="program") as bar, Watched(options.limit) as watched:
        for program in kinds.programs(options.programs, options.seed, chosen):
            bar.set_postfix_str(f"{program.kind} {program.seed}")
            bar.update()
            row = table[program.kind]
            if options.show:
                bar.write(program.script())
            elif not row.add(program, watched, bar) and options.stop:
                break
    _print(table)
    return int(any(row.differences or row.lost for row in table.values()))


def _print(table: dict[str, Row]) -> None:
    total = Row()
    print(
        f"{'kind':<34}{'programs':>9}{'operations':>12}{'differences':>13}{'unsteady':>10}"
        f"{'lost':>6}  kinder"
    )
    for kind, row in [*table.items(), ("all", total)]:
        kinder = ", ".join(f"{count} x {name}" for name, count in row.kinder.items())
        print(
            f"{kind:<34}{row.programs:>9}{row.operations:>12}{row.differences:>13}"
            f"{row.unsteady:>10}{row.lost:>6}  {kinder}"
        )
        total += row


if __name__ == "__main__":
    sys.exit(main())
