"""Count word pairs in two corpora, mixed by tokens, and go on where an earlier run was stopped.

    python mix_corpora.py FOLDER [--stop-after BATCHES]

The folder has ``common-*.txt`` and ``rare.txt``, a text a line. A tenth of the common texts is for
validation. What was counted so far and the position are in the folder.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np

from aioqueue.inputs import Pipeline, files, load_position, read_lines, save_position

LENGTH = 16


def words_of(line: str) -> list[str]:
    return ["<s>", *line.split()]


def pairs_of(texts: list[list[str]]) -> list[str]:
    """A function of a batch: all pairs of words that follow each other."""
    return [f"{left} {right}" for text in texts for left, right in pairwise(text)]


def pipelines(folder: Path) -> tuple[Pipeline[list[str]], Pipeline[list[str]]]:
    common = read_lines(files(str(folder / "common-*.txt"), shuffle=True, seed=1)).interleave(2)
    train, valid = common.split([0.9, 0.1])
    rare = read_lines(str(folder / "rare.txt"), seed=2).repeat(3)
    mixture = train.prepare(words_of).mix(
        rare.skip(1).prepare(words_of), weights=[2, 1], tokens=len, seed=3
    )
    batches = mixture.shuffle(20).batch(8, collate=list).map_batches(pairs_of, workers=2)
    checks = valid.prepare(words_of).batch(8, collate=list).map_batches(pairs_of)
    return batches, checks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stop-after", type=int, default=None)
    given = parser.parse_args()
    train, valid = pipelines(given.folder)
    (first,) = train.peek()
    assert isinstance(first, list)
    kept = load_position(given.folder / "position.json", default=None)
    counts: Counter[str] = Counter()
    if kept is not None:
        counts.update(json.loads((given.folder / "counts.json").read_text()))
    with train.epochs(2, resume=kept) as epochs:
        for step, batch in enumerate((batch for epoch in epochs for batch in epoch), 1):
            counts.update(batch)
            if step == given.stop_after:
                (given.folder / "counts.json").write_text(json.dumps(counts))
                save_position(given.folder / "position.json", epochs.state_dict())
                print(f"stopped after {step} batches")
                return
    # The validation texts beside the sizes of their batches, to weight them.
    sizes = valid.prepare(len)
    total, losses = sum(counts.values()), []
    for number, (batch, size) in valid.zip(sizes, strict=True).enumerate():
        loss = -np.mean([math.log((counts[pair] + 1) / (total + 1)) for pair in batch])
        losses.append((float(loss), size))
        assert number == len(losses) - 1
    mean = sum(loss * size for loss, size in losses) / sum(size for _, size in losses)
    print(f"{total} pairs, {len(counts)} different, loss {mean:.4f}")


if __name__ == "__main__":
    main()
