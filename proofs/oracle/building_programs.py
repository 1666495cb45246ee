"""Programs that build queues and ops of them, many of which must be refused."""

from __future__ import annotations

import random

from proofs.oracle.program import Maker

__all__ = ("BUILDING",)

CAPACITIES = ("3", "3", "10", "-1", "0", "2.5")
DTYPES = (
    "[tf.int32]", "[tf.int32]", "tf.float32", "[tf.int32, tf.string]", "(tf.float32, tf.int64)",
    "['float', 'int32']", "[tf.bool, tf.int32, tf.float64]",
)  # fmt: skip
SHAPES = (
    "None", "[[]]", "[]", "()", "[2]", "(3, 2)", "[[2], [3]]", "[[], []]", "[(), (2, 2)]",
    "tf.TensorShape([2])", "[tf.TensorShape([]), [2]]", "[None]", "[[None]]", "[[None, 2], [3]]",
    "[[None, 2]]", "tf.TensorShape(None)", "[tf.TensorShape(None)]", "[[], [2], [None]]", "5",
)  # fmt: skip
NAMES = (
    "None", "None", "None", "'a'", "['a']", "['a', 'b']", "('a', 'b')", "['a', 'b', 'c']",
    "['a', 'a']",
)  # fmt: skip
VALUES = (
    "1", "1.5", "'text'", "b'bytes'", "True", "None", "[1]", "[1, 2]", "(1, 2)", "[1, 'a']",
    "[[1, 2]]", "[[1, 2], [3, 4]]", "([1, 2, 3],)", "([1, 2], ['a', 'b'])",
    "([1, 2], ['a', 'b', 'c'])", "[1, 'a', 3]", "{'a': 1}", "{'a': 1, 'b': 'x'}",
    "{'a': [1, 2], 'b': ['x', 'y']}", "{'c': 1}", "np.array([1, 2])", "np.zeros((2, 2), 'int32')",
    "np.float64(3.7)", "np.array(['a', 'b'])", "[np.ones(2, 'float32'), np.ones(2, 'int64')]",
    "[np.ones((2, 2)), np.ones((2, 2))]", "tf.constant(1)", "tf.constant([1, 2])",
    "tf.constant(1.0)", "[tf.constant([[1], [2]])]", "tf.placeholder(tf.int32)",
    "tf.placeholder(tf.int32, [None])", "tf.placeholder(tf.float32, [None, 2])",
    "[tf.placeholder(tf.int32, [None, 2]), tf.placeholder(tf.string, [3])]", "([],)",
)  # fmt: skip
COUNTS = (
    "0", "2", "-1", "None", "'a'", "tf.constant(2)", "tf.constant(2, tf.int64)",
    "tf.placeholder(tf.int32)", "tf.placeholder(tf.int32, [])", "np.int32(3)", "np.int64(3)",
)  # fmt: skip
METHODS = (
    *("enqueue", "enqueue", "enqueue", "enqueue_many", "enqueue_many", "enqueue_many"),
    *("dequeue", "dequeue_many", "dequeue_up_to", "close", "size", "is_closed"),
)


def building(draw: random.Random) -> list[str]:
    """A few queues and ops."""
    lines = []
    for number in range(draw.randint(1, 3)):
        kind = draw.choice(("FIFOQueue", "RandomShuffleQueue", "PaddingFIFOQueue", "PriorityQueue"))
        arguments = [draw.choice(CAPACITIES)]
        if kind == "RandomShuffleQueue":
            arguments.append(draw.choice(("0", "2", "-1")))
        arguments += _components(draw, kind)
        # Names of their own: one that was refused may have taken its name.
        if number or draw.random() < 0.6:
            arguments.append(f"name={'None' if draw.random() < 0.1 else repr(f'queue_{number}')}")
        queue = f"q{number}"
        lines.append(f"{queue} = tf.{kind}({', '.join(arguments)})")
        lines += [_op(draw, queue, at) for at in range(draw.randint(2, 7))]
    return lines


def _components(draw: random.Random, kind: str) -> list[str]:
    """Dtypes, shapes and names, which fit each other more often than not."""
    if draw.random() < 0.4:
        made = [draw.choice(DTYPES), f"shapes={draw.choice(SHAPES)}"]
        return [*made, f"names={draw.choice(NAMES)}"] if draw.random() < 0.4 else made
    count = draw.randint(1, 2)
    dtypes = draw.sample(("tf.int32", "tf.string", "tf.float32", "tf.bool"), count)
    shapes = [draw.choice(("[]", "[]", "[2]", "[2, 2]")) for _ in range(count)]
    if kind == "PaddingFIFOQueue":
        shapes = [draw.choice(("[None]", "[None, 2]", "[2]")) for _ in range(count)]
    made = [f"[{', '.join(dtypes)}]", f"shapes=[{', '.join(shapes)}]"]
    if kind not in ("PaddingFIFOQueue", "PriorityQueue") and draw.random() < 0.3:
        made.pop()
    if draw.random() < 0.3:
        made.append(f"names={['a', 'b', 'c'][: count + (kind == 'PriorityQueue')]}")
    return made


def _op(draw: random.Random, queue: str, number: int) -> str:
    name = f", name={draw.choice(('mine', 'a/b'))!r}" if draw.random() < 0.1 else ""
    method = draw.choice(METHODS)
    call = {
        "enqueue": f"({draw.choice(VALUES)}{name})",
        "enqueue_many": f"({draw.choice(VALUES)}{name})",
        "dequeue_many": f"({draw.choice(COUNTS)}{name})",
        "dequeue_up_to": f"({draw.choice(COUNTS)}{name})",
        "close": draw.choice(("()", "(True)", "(cancel_pending_enqueues=False)", "(1)")),
    }.get(method, f"({name[2:]})")
    made = f"{queue}.{method}{call}"
    if draw.random() < 0.15:
        return f"with tf.name_scope('scope'): o{queue[1:]}{number} = {made}"
    return f"o{queue[1:]}{number} = {made}"


BUILDING: dict[str, Maker] = {"building": building}
"""The kinds of programs of this module by name."""
