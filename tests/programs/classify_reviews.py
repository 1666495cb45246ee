"""Learn which words are kind from a dataset of Hugging Face, and go on where it was stopped.

    python classify_reviews.py POSITION [--stop-after BATCHES] [--streaming]

What was learned so far and the position are in the file POSITION.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import numpy as np

from aioqueue.inputs import huggingface_dataset, load_position, save_position

KIND, UNKIND = ("good", "fine", "great"), ("bad", "dull", "poor")


def reviews(count: int) -> datasets.Dataset:
    """What ``load_dataset`` would get from the hub."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, count)
    texts = [" ".join(rng.choice((UNKIND, KIND)[label], 3)) for label in labels]
    return datasets.Dataset.from_dict({"text": texts, "label": labels})


def words_of(row: dict[str, Any]) -> dict[str, Any]:
    return {"words": " ".join(sorted(set(row["text"].split()))), "label": row["label"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("position", type=Path)
    parser.add_argument("--stop-after", type=int, default=None)
    parser.add_argument("--streaming", action="store_true")
    given = parser.parse_args()
    dataset = reviews(500)
    if given.streaming:
        source = huggingface_dataset(dataset.to_iterable_dataset(num_shards=4), seed=7)
    else:
        source = huggingface_dataset(dataset, shuffle=True, seed=7)
    pipeline = source.prepare(words_of, workers=2).shuffle(50).batch(16)
    kept = load_position(given.position, default=None)
    score: Counter[str] = Counter({} if kept is None else kept["score"])
    with pipeline.epochs(2, resume=None if kept is None else kept["run"]) as epochs:
        for step, batch in enumerate((batch for epoch in epochs for batch in epoch), 1):
            for words, label in zip(batch["words"], batch["label"], strict=True):
                # Each step forgets a little, so the order of the batches counts.
                for word in words.split():
                    score[word] = score[word] * 999 // 1000 + (1000 if label else -1000)
            if step == given.stop_after:
                state = {"run": epochs.state_dict(), "score": dict(score)}
                save_position(given.position, state)
                print(f"stopped after {step} batches")
                return
    assert all(score[word] > 0 for word in KIND)
    assert all(score[word] < 0 for word in UNKIND)
    print(sorted(score.items()))


if __name__ == "__main__":
    main()
