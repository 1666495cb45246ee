"""Programs that parse serialized examples of all sorts, in batches and alone."""

from __future__ import annotations

import random

from proofs.oracle.program import Maker
from tests.compat.serialized import Slot, damaged, record

KINDS = {"string": "tf.string", "float": "tf.float32", "int64": "tf.int64"}
DEFAULTS = {"string": b"d", "float": 1.5, "int64": 7}
KEYS = ("a", "b", "key", "longer_key", "i", "é")


def _feature(draw: random.Random, key: str) -> tuple[Slot, str | None]:
    """What records have, and what is asked for; None for nothing."""
    kind = draw.choice(list(KINDS))
    dtype = KINDS[kind]
    way = draw.choice(("fixed", "fixed", "any", "any", "padded", "unwanted"))
    if way == "fixed":
        shape = draw.choice(([], [1], [3], [2, 2]))
        count = {0: 1, 1: shape[0] if shape else 1, 2: 4}[len(shape)]
        default = ""
        if draw.random() < 0.5:
            value: object = DEFAULTS[kind]
            for size in reversed(shape):
                value = [value] * size
            default = f", {value!r}"
        return Slot(key, kind, count), f"tf.FixedLenFeature({shape}, {dtype}{default})"
    if way == "any":
        return Slot(key, kind), f"tf.VarLenFeature({dtype})"
    if way == "padded":
        # With steps of several values TensorFlow's message counts those of earlier rows too.
        shape = draw.choice(([], [1]))
        default = draw.choice(("None", repr(DEFAULTS[kind])))
        wanted = f"tf.FixedLenSequenceFeature({shape}, {dtype}, True, {default})"
        return Slot(key, kind), wanted
    return Slot(key, kind), None


def _records(draw: random.Random, slots: list[Slot]) -> list[bytes]:
    plain = draw.random() < 0.6
    made = [record(draw, slots, plain=plain) for _ in range(draw.choice((1, 2, 9, 20)))]
    if draw.random() < 0.3:
        at = draw.randrange(len(made))
        broken = damaged(draw, made[at])
        # A message with what is no text, or has zeros in it, TensorFlow cannot raise whole.
        if broken.isascii() and b"\0" not in broken:
            made[at] = broken
    return [one for one in made if plain or _is_distinguishable(one)] or [b""]


def _is_distinguishable(data: bytes) -> bool:
    return data.isascii() and b"\0" not in data


def examples(draw: random.Random) -> list[str]:
    """Batches of serialized examples, and one of each batch alone."""
    chosen = [_feature(draw, key) for key in draw.sample(KEYS, draw.randint(1, 5))]
    wanted = {slot.key: text for slot, text in chosen if text is not None}
    if not wanted:
        return examples(draw)
    slots = [slot for slot, _ in chosen]
    lines = [
        "rows = tf.placeholder(tf.string, [None])",
        "row = tf.placeholder(tf.string, [])",
        f"wanted = {{{', '.join(f'{key!r}: {text}' for key, text in wanted.items())}}}",
        # Made where nobody sees the outputs' names: the ops have other ones in TensorFlow 2.
        "batch, single = {}, {}",
        "batch.update(tf.parse_example(rows, wanted))",
        "single.update(tf.parse_single_example(row, wanted))",
        "session()",
    ]
    for _ in range(draw.randint(2, 6)):
        records = _records(draw, slots)
        lines.append(f"here(batch, {{rows: {records!r}}})")
        lines.append(f"here(single, {{row: {draw.choice(records)!r}}})")
    return lines


EXAMPLES: dict[str, Maker] = {"serialized examples": examples}
"""The kinds of programs of this module by name."""
