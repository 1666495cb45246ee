"""``python -m benchmarks.growth [--check] [--only TEXT ...]``: print costs at three sizes."""

from __future__ import annotations

import argparse
import sys

from benchmarks.growth.rows import (
    INSTRUCTIONS,
    ROWS,
    Row,
    figures_of,
    load,
    run_counted,
    times_of,
)


def _with_peers(rows: list[Row]) -> list[Row]:
    peers = [ROWS[row.peer] for row in rows if row.peer is not None]
    return [*rows, *(peer for peer in peers if peer not in rows)]


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
    rows = _with_peers(rows)
    figures = figures_of(rows)
    for row in rows:
        of_peer = None if row.peer is None else figures[row.peer]
        if row.unit == INSTRUCTIONS and row.faults(figures[row.title], of_peer) and len(rows) > 1:
            # Alone: CPython keeps the attributes of all classes in one small table, from which the
            # rows of one process displace each other.
            figures |= figures_of(_with_peers([row]))
            of_peer = None if row.peer is None else figures[row.peer]
        found = figures[row.title]
        beside = "" if of_peer is None else f", {times_of(found, of_peer):.2f} times its peer"
        shown = "  ".join(
            f"{size:,}: {f'{figure:,.0f}' if row.unit == INSTRUCTIONS else f'{figure:,.4g}'}"
            for size, figure in zip(row.sizes, found, strict=True)
        )
        print(
            f"{row.title}\n    {row.unit}: {shown}  (x {found[-1] / found[0]:.2f}{beside})",
            flush=True,
        )
        for fault in row.faults(found, of_peer):
            failed = True
            print(f"    GROWN: {fault}", flush=True)
    if options.check:
        if failed:
            sys.exit(1)
        print("No cost has grown.")


if __name__ == "__main__":
    main()
