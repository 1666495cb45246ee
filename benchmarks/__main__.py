"""The command: ``python -m benchmarks [--quick] [--only NAME ...] [--no-write]``.

``--redraw`` measures nothing: it lays out the pages and their pictures again, from what they say.
"""

from __future__ import annotations

import argparse

from benchmarks import (
    batches,
    clusters,
    compat,
    devices,
    elements,
    expressions,
    files,
    loaders,
    nesting,
    pipelines,
    report,
    resuming,
    scaling,
    sharing,
    stalls,
    starting,
    watching,
)
from benchmarks.harness import Comparison, Mode

PARTS = {
    "elements": elements.measure,
    "batches": batches.measure,
    "pipelines": pipelines.measure,
    "expressions": expressions.measure,
    "devices": devices.measure,
    "scaling": scaling.measure,
    "compat": compat.measure,
    "stalls": stalls.measure,
    "starting": starting.measure,
    "files": files.measure,
    "nesting": nesting.measure,
    "loaders": loaders.measure,
    "clusters": clusters.measure,
    "sharing": sharing.measure,
    "watching": watching.measure,
    "resuming": resuming.measure,
}


def main() -> None:
    """Measure, print as it goes, and write the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small counts: to see that it runs")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="some parts; writes no report")
    parser.add_argument("--update", action="store_true", help="write the rows of --only as well")
    parser.add_argument("--no-write", action="store_true", help="print only")
    parser.add_argument("--redraw", action="store_true", help="lay out the pages again")
    options = parser.parse_args()
    if options.redraw:
        report.redraw()
        return
    mode = Mode(options.quick)
    comparisons: list[Comparison] = []
    for name in options.only or PARTS:
        for c in PARTS[name](mode):
            comparisons.append(c)
            aim = f"{'>=' if c.row.at_least else '<='} {c.row.target:.2f}"
            figures = ", ".join(f"{side} {figure}" for side, figure in c.figures.items())
            print(
                f"{c.row.number:>3}  {c.row.title} / {c.row.over}: {c.ratio:.2f}"
                f" ({c.spread}; aim {aim}, {'met' if c.met else 'SHORT'})  {figures}",
                flush=True,
            )
    if options.quick or options.no_write:
        return
    if options.only and options.update:
        report.update(comparisons)
    elif not options.only:
        report.write(comparisons)


if __name__ == "__main__":
    main()
