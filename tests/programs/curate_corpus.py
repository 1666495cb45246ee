"""Curate texts into Parquet files and archives; start it again when it was stopped.

    python curate_corpus.py FOLDER [--stop-after TEXTS]

The folder has ``*.jsonl``, as other programs write them: a text a line, with a language. Kept are
long texts of one language, without those that cannot be read. Half of the work is done in a
coroutine, as in a service.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from aioqueue.inputs import (
    Pipeline,
    files,
    per_second,
    read_lines,
    read_parquet,
    to_parquet,
    to_tar,
)

STOP = count(1)


def parsed(line: str) -> Any:
    text = json.loads(line)
    return text if text["language"] == "en" and len(text["words"]) > 2 else None


def features(text: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    words = text["words"]
    return {
        "text": " ".join(words),
        "words": len(words),
        "lengths": np.array([len(word) for word in words], np.int32),
        "weight": np.float32(rng.random()),
    }


def pipeline(folder: Path, stop_after: int | None) -> Pipeline[dict[str, Any]]:
    def counted(text: dict[str, Any]) -> dict[str, Any]:
        if next(STOP) == stop_after:
            os.kill(os.getpid(), signal.SIGKILL)
        return text

    lines = read_lines(files(str(folder / "*.jsonl"), shuffle=True, seed=1))
    texts = lines.prepare(parsed, on_error="skip", drop_none=True, workers=2)
    return texts.shuffle(100).prepare(features, workers=2).prepare(counted, workers=1)


async def pack(parts: list[str], folder: Path) -> int:
    """Archives of the same texts, from the Parquet files."""

    async def sample(row: dict[str, Any]) -> dict[str, Any]:
        # It would ask a service that allows so many requests a second.
        return {"txt": row["text"], "npy": row["lengths"], "cls": int(row["words"])}

    samples = read_parquet(parts).prepare(sample, rate=per_second(2000), burst=100)
    return (await samples.awrite(to_tar(folder, rows_per_file=64))).rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stop-after", type=int, default=None)
    given = parser.parse_args()
    texts = pipeline(given.folder, given.stop_after)
    written = texts.write(to_parquet(given.folder / "texts", rows_per_file=50, compression="zstd"))
    parts = [str(path) for path in written.paths]
    packed = asyncio.run(pack(parts, given.folder / "archives"))
    words = sum(int(row["words"]) for row in read_parquet(parts))
    digest = sum(float(row["weight"]) * at for at, row in enumerate(read_parquet(parts)))
    print(
        f"{written.rows} texts in {len(parts)} files, {packed} packed, {words} words, {digest:.3f}"
    )
    print(f"resumed at {written.resumed}")


if __name__ == "__main__":
    main()
