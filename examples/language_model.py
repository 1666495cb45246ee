"""Data for a language model: packed rows, on two ranks that are killed and resumed, then on four.

How the data flows, on each rank::

    gzip files of   ──► its own ──► tokens, made ──► packed into rows ──► rows   ──► batches
    JSON lines,         documents   in a process     of 128, and cut      shuffled    of 8
    in an order

* ``pack(128, cut=True)`` fills each row to its end. A document that does not fit is cut there, and
  the next row begins with the rest, as a segment of its own. So hardly any place is padding.
* Each row has segment ids, for an attention mask, and a loss mask: it leaves out the last token of
  each segment, whose successor belongs to another document.
* The ranks get different numbers of rows. If one made fewer steps than the others, these would
  hang in their next all-reduce. ``epochs(steps=n)`` gives each rank n steps.
* Each rank saves the position of its data beside its weights. A killed run continues with the
  very next batch, and `merge_positions` deals the rest out to another number of ranks.

The "model" counts which tokens it was asked to predict, and adds up a checksum. So it shows
whether two runs have learned the same. All of this is checked::

    $ python examples/language_model.py
    79 documents in 4 files: 114,029 tokens
    2 ranks, not disturbed: 40 steps each, weights 0eb7e6fd
    2 ranks, killed at the steps 13 and 18, and resumed: 40 steps each, weights 0eb7e6fd
    4 ranks, from where the two were: 122 steps each, 0.2% padding
    each of 114,029 tokens of the first epoch came once

Ranks are processes here. In a training, a launcher such as ``torchrun`` starts them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioqueue.inputs import (
    Pipeline,
    files,
    load_position,
    merge_positions,
    read_json_lines,
    save_position,
)

LENGTH = 128
VOCABULARY = 8192
GLOBAL_BATCH = 16
SAVE_EVERY = 5
SEED = 7
FILES = 4

Example = dict[str, NDArray[Any]]


# The data.


def write_corpus(folder: Path) -> int:
    """Write what ``help("topics")`` shows into gzip files of JSON lines; return the documents."""
    documents = [{"id": number, "text": topics[name]} for number, name in enumerate(sorted(topics))]
    for number in range(FILES):
        with gzip.open(folder / f"part-{number}.jsonl.gz", "wt", encoding="utf-8") as file:
            for document in documents[number::FILES]:
                file.write(json.dumps(document) + "\n")
    return len(documents)


def tokenize(document: dict[str, Any]) -> Example:
    """The tokens of a document. (A hash of each word: use the tokenizer of your model.)

    ``place`` is for the check at the end: it names the document and the token in it.
    """
    words = re.findall(r"\w+|[^\w\s]", document["text"])
    tokens = [1 + zlib.crc32(word.encode()) % (VOCABULARY - 1) for word in words]
    return {
        "tokens": np.array(tokens, np.int32),
        "place": np.arange(len(tokens), dtype=np.int64) + (document["id"] << 32),
    }


def training_data(folder: Path, rank: int, ranks: int) -> Pipeline[Example]:
    """The batches of one rank."""
    paths = files(str(folder / "part-*.jsonl.gz"), shuffle=True, seed=SEED)
    return (
        read_json_lines(paths)
        .prepare(tokenize, where="process", workers=1)
        .pack(LENGTH, cut=True, loss_mask=True)
        .shuffle(32)
        .batch(GLOBAL_BATCH // ranks)
        .shard(rank, ranks, uneven="allow")
    )


# The training, in each rank.


class Model:
    """Stands for a model: it counts the tokens that it was asked to predict."""

    def __init__(self, weights: NDArray[np.int64] | None = None) -> None:
        self.weights = np.zeros(VOCABULARY, np.int64) if weights is None else weights

    def step(self, batch: Example) -> None:
        """Learn to predict each token from those before it in its segment."""
        targets, counts = batch["tokens"][:, 1:], batch["loss_mask"][:, :-1]
        # The order of the batches matters, as in a training.
        self.weights = self.weights * 3 % 2**40
        self.weights += np.bincount(targets[counts], minlength=VOCABULARY)


def train(options: argparse.Namespace) -> None:
    """Train on one rank, from where this rank or others were."""
    folder, rank, ranks = options.train, options.rank, options.ranks
    model, position = Model(), None
    if options.resume:
        saved = step_folder(folder, options.resume_ranks, options.resume)
        if options.resume_ranks == ranks:
            position = load_position(saved / f"rank-{rank}.json")
            model = Model(np.load(saved / f"rank-{rank}.npy"))
        else:
            before = [load_position(path) for path in sorted(saved.glob("rank-*.json"))]
            position = merge_positions(before)
            # A training would load the weights that all ranks had in common.
    data = training_data(folder, rank, ranks)
    seen = (folder / f"seen-{ranks}-{rank}.txt").open("a")
    step = options.resume
    with data.epochs(steps=options.steps, resume=position) as epochs:
        for epoch in epochs:
            for batch in epoch:
                model.step(batch)
                step += 1
                used = batch["segment_ids"] > 0
                line = [step, epoch.number, int(used.size), batch["place"][used].tolist()]
                print(json.dumps(line), file=seen, flush=True)
                if step % SAVE_EVERY == 0:
                    save(step_folder(folder, ranks, step), rank, model, epochs.state_dict())
                if step == options.kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
    print(zlib.crc32(model.weights.tobytes()))


def save(folder: Path, rank: int, model: Model, position: dict[str, Any]) -> None:
    """Save a checkpoint of a rank: the position of the data last, which says that it is whole."""
    folder.mkdir(exist_ok=True)
    np.save(folder / f"rank-{rank}.npy", model.weights)
    save_position(folder / f"rank-{rank}.json", position)


def step_folder(folder: Path, ranks: int, step: int) -> Path:
    """The checkpoint of a step."""
    return folder / f"ranks-{ranks}-step-{step}"


# The launcher.


def launch(
    folder: Path,
    ranks: int,
    steps: int,
    *,
    resume: tuple[int, int] = (0, 0),
    kill_at: Sequence[int] = (),
) -> list[str]:
    """Run all ranks; return what each has printed.

    Args:
        folder: of the corpus and of all checkpoints.
        ranks: how many there are.
        steps: how many each makes, with those before.
        resume: a number of ranks, and the step of their checkpoint to continue from.
        kill_at: for each rank, the step at which it is killed.
    """
    children = []
    for rank in range(ranks):
        command = [sys.executable, __file__, "--train", str(folder), "--rank", str(rank)]
        command += ["--ranks", str(ranks), "--steps", str(steps)]
        command += ["--resume-ranks", str(resume[0]), "--resume", str(resume[1])]
        command += ["--kill-at", str(kill_at[rank] if kill_at else 0)]
        children.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    printed = [child.communicate()[0].strip() for child in children]
    expected = -signal.SIGKILL if kill_at else 0
    if any(child.returncode != expected for child in children):
        raise SystemExit(f"a rank has ended with {[child.returncode for child in children]}")
    return printed


def last_step(folder: Path, ranks: int) -> int:
    """The last step for which all ranks have saved a checkpoint."""
    steps = [int(path.name.rpartition("-")[2]) for path in folder.glob(f"ranks-{ranks}-step-*")]
    return max(
        step
        for step in steps
        if len([*step_folder(folder, ranks, step).glob("rank-*.json")]) == ranks
    )


def weights_of(printed: Sequence[str]) -> str:
    """The checksums of all ranks' weights, in one."""
    return f"{zlib.crc32(' '.join(printed).encode()):08x}"


def tokens_seen(
    folder: Path, ranks: int, *, upto: int | None = None
) -> tuple[Counter[int], int, int]:
    """The tokens of the first epoch, how many places the rows had, and how many were padding."""
    seen: Counter[int] = Counter()
    places = padding = 0
    for rank in range(ranks):
        for line in (folder / f"seen-{ranks}-{rank}.txt").read_text().splitlines():
            step, epoch, size, tokens = json.loads(line)
            if upto is not None and step > upto:
                continue
            places, padding = places + size, padding + size - len(tokens)
            if epoch == 0:
                seen.update(tokens)
    return seen, places, padding


# The program.


def demonstrate(steps: int) -> None:
    """Train undisturbed, then with kills, then with more ranks; and compare."""
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        quiet, disturbed = Path(one), Path(other)
        documents = write_corpus(quiet)
        write_corpus(disturbed)
        texts = [gzip.decompress(path.read_bytes()) for path in sorted(quiet.glob("*.gz"))]
        lines = [line for text in texts for line in text.splitlines()]
        tokens = sum(len(tokenize(json.loads(line))["tokens"]) for line in lines)
        print(f"{documents} documents in {FILES} files: {tokens:,} tokens", flush=True)

        expected = weights_of(launch(quiet, 2, steps))
        print(f"2 ranks, not disturbed: {steps} steps each, weights {expected}", flush=True)

        kills = (steps // 3, steps // 3 + SAVE_EVERY)
        launch(disturbed, 2, steps, kill_at=kills)
        found = weights_of(launch(disturbed, 2, steps, resume=(2, last_step(disturbed, 2))))
        print(
            f"2 ranks, killed at the steps {kills[0]} and {kills[1]}, and resumed: {steps} steps"
            f" each, weights {found}",
            flush=True,
        )
        if found != expected:
            raise SystemExit("the runs have learned different things")

        # Enough for the rest of the first epoch, though some ranks have more of it than others.
        more = 10 + 2 * math.ceil(tokens / LENGTH / GLOBAL_BATCH)
        launch(quiet, 4, more, resume=(2, steps))
        before, after = tokens_seen(quiet, 2, upto=steps), tokens_seen(quiet, 4)
        padding = (before[2] + after[2]) / (before[1] + after[1])
        print(
            f"4 ranks, from where the two were: {more} steps each, {padding:.1%} padding",
            flush=True,
        )
        seen = before[0] + after[0]
        if set(seen.values()) != {1} or len(seen) != tokens:
            raise SystemExit(f"{len(seen):,} of {tokens:,} tokens came, not each of them once")
        print(f"each of {tokens:,} tokens of the first epoch came once", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Pack documents for a language model, on ranks that are killed and changed.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--steps", type=int, default=40, help="steps of the two ranks")
    add("--train", type=Path, help=argparse.SUPPRESS)
    for name in ("--rank", "--ranks", "--resume", "--resume-ranks", "--kill-at"):
        add(name, type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.train is None:
        demonstrate(options.steps)
    else:
        train(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
