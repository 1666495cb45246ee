"""Average the answers of a survey that three programs have written, each in its own form.

    python survey_answers.py FOLDER [--stop-after BATCHES]

The folder has JSON lines in ``web-{000..002}.jsonl``, tables in ``phone-*.csv``, and Parquet files
in folders such as ``year=2024``, whose columns have changed over the years. Some files are damaged:
what is sound in them counts, and ``damaged.jsonl`` lists them. The position is in the folder, so a
run that was stopped continues.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from aioqueue.inputs import (
    Pipeline,
    files,
    load_position,
    read_csv,
    read_json_lines,
    read_parquet,
    read_quarantine,
    save_position,
)


def answer(row: dict[str, Any]) -> tuple[int, float] | None:
    """The year and the score of an answer; none without a score."""
    return None if row["score"] is None else (int(row["year"]), float(row["score"]))


def answers(folder: Path) -> Pipeline[Any]:
    damaged: dict[str, Any] = {"on_error": "skip", "quarantine": folder / "damaged.jsonl"}
    web = read_json_lines(folder / "web-{000..002}.jsonl", seed=1, **damaged)
    phone = read_csv(
        files(folder / "phone-*.csv", seed=1),
        {"year": "int64", "score": "float64", "remark": str},
        skip_header_lines=1,
        null_values=["", "n/a"],
        **damaged,
    )
    paper = read_parquet(
        files(folder / "year=*" / "*.parquet", seed=1),
        ["year", "score"],
        schema="union",
        partitioning="hive",
        filters=[("valid", "==", True)],
        **damaged,
    )
    found = web.prepare(answer, drop_none=True).concat(
        phone.prepare(answer, drop_none=True), paper.prepare(answer, drop_none=True)
    )
    return found.shuffle(10, seed=4).batch(4, collate=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stop-after", type=int, default=None)
    given = parser.parse_args()
    position, totals = given.folder / "position.json", Counter[int]()
    counts: Counter[int] = Counter()
    kept = load_position(position, default=None)
    if kept is not None:
        known = json.loads((given.folder / "totals.json").read_text())
        totals.update({int(year): total for year, (total, _) in known.items()})
        counts.update({int(year): count for year, (_, count) in known.items()})
    with answers(given.folder).epochs(1, resume=kept) as epochs:
        for step, batch in enumerate((batch for epoch in epochs for batch in epoch), 1):
            for year, score in batch:
                totals[year] += round(10 * score)
                counts[year] += 1
            if step == given.stop_after:
                both = {str(year): (totals[year], counts[year]) for year in counts}
                (given.folder / "totals.json").write_text(json.dumps(both))
                save_position(position, epochs.state_dict())
                return
    for year in sorted(counts):
        print(f"{year}: {totals[year] / counts[year] / 10:.2f} of {counts[year]} answers")
    for record in read_quarantine(given.folder / "damaged.jsonl").records:
        print(f"damaged at byte {record.offset}: {Path(record.item).name}")


if __name__ == "__main__":
    main()
