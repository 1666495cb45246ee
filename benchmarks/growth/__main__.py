"""``python -m benchmarks.growth [--check] [--only TEXT ...]``: print costs at three sizes."""

from __future__ import annotations

import argparse
import sys

from benchmarks.growth.rows import INSTRUCTIONS, ROWS, figures_of, load, run_counted


def main() -> None:
    """Count, print, and with ``--check`` fail if a cost has grown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth")
    parser.add_argument("--check", action="store_true", help="fail if a row breaks its bounds")
    parser.add_argument(
        "--only", nargs="+", metavar="TEXT", help="rows whose titles contain a text"
    )
    parser.add_argument("--run", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    load()
    if options.run:
        run_counted(options.run)
        return
    rows = [
        row
        for row in ROWS.values()
        if not options.only or any(t in row.title for t in options.only)
    ]
    failed = False
    figures = figures_of(rows)
    for row in rows:
        if row.unit == INSTRUCTIONS and row.faults(figures[row.title]) and len(rows) > 1:
            # Alone: CPython keeps the attributes of all classes in one small table, from which the
            # rows of one process displace each other.
            figures |= figures_of([row])
        found = figures[row.title]
        shown = "  ".join(
            f"{size:,}: {f'{figure:,.0f}' if row.unit == INSTRUCTIONS else f'{figure:,.4g}'}"
            for size, figure in zip(row.sizes, found, strict=True)
        )
        print(f"{row.title}\n    {row.unit}: {shown}  (x {found[-1] / found[0]:.2f})", flush=True)
        for fault in row.faults(found):
            failed = True
            print(f"    GROWN: {fault}", flush=True)
    if options.check:
        if failed:
            sys.exit(1)
        print("No cost has grown.")


if __name__ == "__main__":
    main()
