"""Programs of `tf.train`'s producers and batchers, in which one thread fills each queue."""

from __future__ import annotations

import random
import re

from proofs.oracle.program import Maker
from proofs.oracle.runner_programs import consumed

__all__ = ("INPUTS",)


def _producer_options(draw: random.Random) -> str:
    options = []
    if draw.random() < 0.8:
        options.append(f"num_epochs={draw.choice((1, 2, 2, 3, 5))}")
        if draw.random() < 0.03:
            options[-1] = f"num_epochs={draw.choice((0, -1))}"
    if draw.random() < 0.5:
        seed = draw.choice((0, 1, 7, 123456789, -3))
        options.append(f"shuffle=True, seed={seed}")
    else:
        options.append("shuffle=False")
    if draw.random() < 0.5:
        options.append(f"capacity={draw.choice((1, 2, 5, 100))}")
    if draw.random() < 0.2:
        options.append(f"name={draw.choice(('input', 'producer'))!r}")
    if draw.random() < 0.1:
        options.append("shared_name='shared'")
    return ", ".join(options)


def _seeded(draw: random.Random) -> list[str]:
    return [f"tf.set_random_seed({draw.randint(0, 99)})"] if draw.random() < 0.3 else []


def producer(draw: random.Random) -> list[str]:
    """A producer and a consumer."""
    lines = _seeded(draw)
    options = _producer_options(draw)
    count = draw.choice((1, 2, 3, 5, 8, 13))
    names = [f"file{at}" for at in range(count)]
    match draw.choice(("string", "string", "range", "slice", "slice", "input", "input")):
        case "string":
            given = draw.choice((f"{names}", f"tuple({names})", f"tf.constant({names})"))
            if draw.random() < 0.06:
                given = draw.choice(("[]", "tf.constant([], tf.string)", "''", "[1, 2]"))
            if "constant([]" in given:
                # Both no names and a count that is not initialised are told in the thread; of
                # the two, it is chance in TensorFlow which is told first.
                options = re.sub(r"num_epochs=-?\d+, ", "", options)
            lines.append(f"q = tf.train.string_input_producer({given}, {options})")
        case "range":
            given = draw.choice((f"{count}", f"tf.constant({count})"))
            lines.append(f"q = tf.train.range_input_producer({given}, {options})")
        case "slice":
            rows = f"np.arange({count * 2}.0).reshape(({count}, 2))"
            given = draw.choice(
                (f"[{rows}]", f"[{rows}, {names}]", f"[{names}, np.arange({count})]", "[]")
                if draw.random() < 0.1
                else (f"[{rows}]", f"[{rows}, {names}]", f"[{names}, {names[:-1] or names}]")
            )
            lines.append(f"item = tf.train.slice_input_producer({given}, {options})")
            return [*lines, *consumed(draw, ["item", "item", "item[0]"], 14)]
        case "input":
            given = draw.choice(
                (
                    f"np.arange({count * 3}).reshape(({count}, 3))",
                    f"{list(range(count))}",
                    f"tf.constant({names})",
                    "5",
                    "tf.placeholder(tf.int32)",
                )
                if draw.random() < 0.3
                else (f"np.arange({count * 3}, dtype='int32').reshape(({count}, 3))",)
            )
            lines.append(f"q = tf.train.input_producer({given}, {options})")
    lines += [
        "item = q.dequeue()",
        f"several = q.dequeue_many({draw.randint(1, 4)})",
        "size = q.size()",
    ]
    return [*lines, *consumed(draw, ["item", "item", "item", "several", "size"], 16)]


def _source(draw: random.Random) -> list[str]:
    """Lines that end with one example: a number ``i``, and what is made of it."""
    count = draw.choice((1, 3, 5, 8, 13))
    return [
        *_seeded(draw),
        f"q = tf.train.range_input_producer({count}, {_producer_options(draw)})",
        "i = q.dequeue()",
        "text = tf.as_string(i)",
        "pair = tf.stack([i, i * 10])",
        "row = tf.fill([i % 4], i)",
        # Not none for ever: what is filled with nothing again and again never comes to rest.
        f"rows = tf.fill([{'(i + 1)' if count == 1 else 'i'} % 3, 2], i)",
        "even = tf.equal(i % 2, 0)",
        "half = tf.cast(i, tf.float32) / 2.0",
    ]


def _tensors(draw: random.Random, names: list[str]) -> str:
    chosen = draw.sample(names, draw.randint(1, min(3, len(names))))
    if draw.random() < 0.25:
        return "{" + ", ".join(f"{name!r}: {name}" for name in chosen) + "}"
    if draw.random() < 0.1:
        return f"({', '.join(chosen)},)"
    return f"[{', '.join(chosen)}]"


def batcher(draw: random.Random) -> list[str]:
    """A producer, a batcher and a consumer."""
    lines = _source(draw)
    shuffles = draw.random() < 0.4
    joins = draw.random() < 0.3
    maybe = draw.random() < 0.3
    many = draw.random() < 0.3
    pads = not shuffles and draw.random() < 0.4
    tensors = _tensors(
        draw,
        ["pair", "rows"]
        if many and pads
        else ["pair"]
        if many
        else (["i", "text", "row", "half", "rows"] if pads else ["i", "text", "pair", "half"]),
    )
    if many and not pads:
        tensors = draw.choice(
            ("[pair]", "[pair, tf.stack([text, text])]", "{'a': pair}", "[tf.stack([pair, pair])]")
        )
    name = "shuffle_batch" if shuffles else "batch"
    if joins:
        name, tensors = f"{name}_join", f"[{tensors}]"
    options = [f"batch_size={draw.choice((1, 2, 2, 3, 4))}"]
    if maybe:
        name = f"maybe_{name}"
        vector = "tf.stack([even, True])" if many and not pads else "even"
        options.append(f"keep_input={draw.choice(('even', vector, 'True'))}")
    if shuffles:
        capacity = draw.choice((4, 6, 12, 30))
        options += [f"capacity={capacity}", f"min_after_dequeue={draw.choice((0, 1, 3, 5))}"]
        options.append(f"seed={draw.choice((0, 1, 5, 99))}")
    elif draw.random() < 0.6:
        options.append(f"capacity={draw.choice((1, 2, 5, 40))}")
    if many:
        options.append("enqueue_many=True")
    if pads:
        options.append("dynamic_pad=True")
    if draw.random() < 0.5:
        options.append("allow_smaller_final_batch=True")
    if draw.random() < 0.1:
        options.append(f"name={draw.choice(('batcher', 'b'))!r}")
    lines.append(f"b = tf.train.{name}({tensors}, {', '.join(options)})")
    return [*lines, *consumed(draw, ["b"], 9)]


def limited(draw: random.Random) -> list[str]:
    """A tensor that can be had so many times."""
    lines = [
        f"limited = tf.train.limit_epochs({draw.choice(('[1, 2]', '7', repr('text')))},"
        f" num_epochs={draw.choice((1, 2, 3, 0, None))})",
        "session()",
        "here(limited)",
        "here(tf.local_variables_initializer())",
    ]
    return lines + ["here(limited)"] * draw.randint(1, 5)


INPUTS: dict[str, Maker] = {"producer": producer, "batcher": batcher, "limit_epochs": limited}
"""The kinds of programs of this module by name."""
