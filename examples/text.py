"""Batch real sentences of all lengths, padded; see how much padding bucketing saves.

How the data flows::

    sentences of Python's                one bucket for each            (lengths, tokens)
     documentation,  ──► encode, on ──►  range of lengths  ──batches──►  int64[n],
     shuffled             a thread       1..7, 8..11, ...                int32[n, longest]

A batch is a rectangle: its rows are padded to the longest. In the order in which sentences come, a
batch has long ones and short ones, and most of it is padding. `bucket_by_sequence_length` batches
those of like length. With a budget of tokens, batches of short ones have more rows, so that
each costs a model about the same.

The text is what ``help("topics")`` shows: every Python has it. Each way of batching must give every
sentence exactly once, which is checked::

    python examples/text.py
    python examples/text.py --batch-size 64 --tokens 4096
"""

from __future__ import annotations

import argparse
import re
import sys
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pydoc_data.topics import topics
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioqueue import inputs, sync

Tokens = NDArray[np.int32]
Batch = tuple[NDArray[np.int64], Tokens]

PADDING = 0
UNKNOWN = 1
VOCABULARY = 8000
BOUNDARIES = [8, 12, 16, 24, 32, 48, 64, 96, 128]
INTERRUPTED = 130  # exit status of a program that Ctrl-C has ended: 128 + SIGINT
DRAWN_ROWS, DRAWN_COLUMNS = 8, 60


# The text.


def read_sentences() -> list[str]:
    """The sentences of Python's documentation, as far as it is installed with Python."""
    paragraphs = (part for name in sorted(topics) for part in topics[name].split("\n\n"))
    sentences = (part for text in paragraphs for part in re.split(r"(?<=[.!?:])\s+", text))
    return [
        sentence for sentence in sentences if re.fullmatch(r"\W*[A-Z].*[.!?:]", sentence, re.DOTALL)
    ]


def words_of(text: str) -> list[str]:
    """Words, numbers and punctuation marks."""
    return re.findall(r"\w+|[^\w\s]", text.lower())


class Vocabulary:
    """The words that are frequent in a text, each with a number."""

    def __init__(self, texts: Iterable[str]) -> None:
        counts = Counter(word for text in texts for word in words_of(text))
        frequent = sorted(counts, key=lambda word: (-counts[word], word))[: VOCABULARY - 2]
        self._numbers = {word: number for number, word in enumerate(frequent, UNKNOWN + 1)}

    def encode(self, text: str) -> Tokens:
        """A text as numbers of words."""
        numbers = self._numbers
        return np.array([numbers.get(word, UNKNOWN) for word in words_of(text)], np.int32)


# What batches are judged by.


@dataclass
class Tally:
    """What one way of batching has given out."""

    name: str
    batches: int = 0
    rows: int = 0
    tokens: int = 0
    cells: int = 0
    largest: int = 0
    checksum: int = 0
    drawing: str = ""
    verdict: str = ""

    def add(self, batch: Batch) -> None:
        lengths, tokens = batch
        self.batches += 1
        self.rows += len(lengths)
        self.tokens += int(lengths.sum())
        self.cells += tokens.size
        self.largest = max(self.largest, tokens.size)
        self.checksum += sum(
            hash(row[:length].tobytes()) for row, length in zip(tokens, lengths, strict=True)
        )
        if self.batches == 12:  # one from the middle of things
            self.drawing = draw(lengths)

    @property
    def padding(self) -> float:
        return 1 - self.tokens / self.cells if self.cells else 0.0

    def row(self) -> str:
        return f"{self.name:<34}{self.batches:>9,}{self.largest:>14,}{self.padding:>12.1%}"


def draw(lengths: NDArray[np.int64]) -> str:
    """The first rows of a batch: what is text in them, and what is padding."""
    scale = min(1.0, DRAWN_COLUMNS / lengths.max())
    width = round(lengths.max() * scale)
    return "\n".join(
        "    " + "#" * round(length * scale) + "." * (width - round(length * scale))
        for length in lengths[:DRAWN_ROWS]
    )


# The three ways.


def batched(options: argparse.Namespace, texts: Any, encode: Any, coord: sync.Coordinator) -> Any:
    """In the order in which the sentences come."""
    batches = inputs.batch(
        texts,
        options.batch_size,
        coord=coord,
        function=lambda text: (len(words_of(text)), encode(text)),
        workers=1,
        dynamic_pad=True,
    )
    yield from batches


def bucketed(options: argparse.Namespace, texts: Any, encode: Any, coord: sync.Coordinator) -> Any:
    """Those of like length together, as many rows in each batch."""
    yield from inputs.bucket_by_sequence_length(
        texts,
        BOUNDARIES,
        options.batch_size,
        coord=coord,
        function=encode,
        workers=1,
        padding_value=PADDING,
    )


def budgeted(options: argparse.Namespace, texts: Any, encode: Any, coord: sync.Coordinator) -> Any:
    """Those of like length together, as many tokens in each batch at most."""
    yield from inputs.bucket_by_sequence_length(
        texts,
        BOUNDARIES,
        coord=coord,
        tokens_per_batch=options.tokens,
        function=encode,
        workers=1,
        padding_value=PADDING,
    )


def run(options: argparse.Namespace) -> list[Tally]:
    """Batch the same sentences in each way."""
    sentences = read_sentences()
    vocabulary = Vocabulary(sentences)
    lengths = sorted(len(words_of(text)) for text in sentences)
    print(
        f"{len(sentences):,} sentences, {sum(lengths):,} words and marks: {lengths[0]} to"
        f" {lengths[-1]} each, half of them up to {lengths[len(lengths) // 2]}\n",
        flush=True,
    )
    tallies = []
    for name, way in (
        (f"as they come, {options.batch_size} rows", batched),
        (f"bucketed, {options.batch_size} rows", bucketed),
        (f"bucketed, up to {options.tokens:,} tokens", budgeted),
    ):
        tally = Tally(name)
        texts = inputs.items(sentences, epochs=1, shuffle=True, seed=options.seed)
        with sync.Coordinator() as coord, coord.monitor() as monitor:
            for batch in monitor.steps(way(options, texts, vocabulary.encode, coord)):
                tally.add(batch)
        tally.verdict = str(monitor.verdict())
        tallies.append(tally)
    expected = sum(hash(vocabulary.encode(text).tobytes()) for text in sentences)
    for tally in tallies:
        if (tally.rows, tally.checksum) != (len(sentences), expected):
            raise AssertionError(f"{tally.name}: not every sentence came exactly once")
    return tallies


def summary(tallies: list[Tally]) -> str:
    plain, bucketed = tallies[:2]
    saved = 1 - bucketed.cells / plain.cells
    return "\n".join(
        [
            f"{'':<34}{'batches':>9}{'largest':>14}{'padding':>12}",
            *(tally.row() for tally in tallies),
            "",
            f"a batch {plain.name}, and one bucketed (# text, . padding):",
            plain.drawing,
            "",
            bucketed.drawing,
            "",
            f"bucketing saves {saved:.0%} of what a model would have to go through",
            "every sentence came exactly once, each way",
            "",
            *(f"{tally.name}: {tally.verdict}" for tally in tallies),
        ]
    )


# The program.


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Batch real text of all lengths; see how much padding bucketing saves.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--batch-size", type=positive, default=32, help="rows per batch")
    add("--tokens", type=positive, default=2048, help="cells of a batch, with a budget")
    add("--seed", type=int, default=7, help="of the order of the sentences")
    return parser.parse_args(arguments)


def positive(text: str) -> int:
    """A number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"got {number}; expected at least 1")
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    status = 0
    try:
        print(summary(run(options)), flush=True)
    except* KeyboardInterrupt:
        status = INTERRUPTED
        print("interrupted", flush=True)
    except* Exception as failures:
        status = 1
        traceback.print_exception(failures)
    return status


if __name__ == "__main__":
    sys.exit(main())
