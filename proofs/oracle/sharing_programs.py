"""Programs of queue ops that are one queue, of one that is several, and of two in a chain."""

from __future__ import annotations

import random

from proofs.oracle.program import Maker

__all__ = ("SHARING",)


def shared(draw: random.Random) -> list[str]:
    """Queue ops of one shared name, most of which agree what it is."""
    lines = [f"q{at} = {_queue(draw)}" for at in range(draw.randint(2, 3))]
    count = len(lines)
    for at in range(count):
        lines += [
            f"x{at} = tf.placeholder(tf.int32)",
            f"put{at} = q{at}.enqueue(x{at})",
            f"take{at} = q{at}.dequeue()",
            f"close{at} = q{at}.close()",
            f"size{at} = q{at}.size()",
        ]
    lines.append("session()")
    for number in range(draw.randint(5, 15)):
        at = draw.randrange(count)
        value = draw.choice((str(number), str(number), f"[{number}, 0]"))
        lines.append(
            draw.choice(
                (
                    f"go(put{at}, {{x{at}: {value}}})",
                    f"go(put{at}, {{x{at}: {value}}})",
                    f"go(take{at})",
                    f"here(size{at})",
                    f"go(close{at})" if draw.random() < 0.3 else f"here(size{at})",
                )
            )
        )
    return lines


def _queue(draw: random.Random) -> str:
    """A queue that is like the others but for one thing, at times."""
    odd = draw.choice((None, None, None, "kind", "capacity", "dtype", "shape", "own"))
    if draw.random() < 0.4:
        kind, more = "RandomShuffleQueue", f", {draw.choice((0, 0, 1))}"
        seed = f", seed={draw.choice((3, 3, 3, 4))}"  # without one there is no order to compare
    else:
        kind, more, seed = "FIFOQueue", "", ""
    if odd == "kind":
        kind, more, seed = "PaddingFIFOQueue", "", ""
    capacity = 3 if odd == "capacity" else draw.choice((2, 2, -1))
    dtype = "float32" if odd == "dtype" else "int32"
    shape = "[[2]]" if odd == "shape" else "[[]]"
    if odd is None and draw.random() < 0.2 and kind == "FIFOQueue":
        shape = "None"
    name = "other" if odd == "own" else "common"
    return f"tf.{kind}({capacity}{more}, [tf.{dtype}], shapes={shape}{seed}, shared_name={name!r})"


def listed(draw: random.Random) -> list[str]:
    """A queue chosen from a list when an op is run."""
    lines = []
    count = draw.randint(1, 3)
    for at in range(count):
        dtypes = "[tf.int32, tf.string]" if draw.random() < 0.95 else "[tf.int32, tf.float32]"
        shapes = draw.choice(("[[], []]", "[[], []]", "[[], [2]]", "None"))
        names = ", names=['a', 'b']" if draw.random() < 0.05 else ""
        kind = draw.choice(("FIFOQueue(3, ", "RandomShuffleQueue(3, 0, ", "FIFOQueue(3, "))
        seed = ", seed=1" if "Shuffle" in kind else ""
        lines.append(f"q{at} = tf.{kind}{dtypes}, shapes={shapes}{names}{seed})")
        lines.append(f"put{at} = q{at}.enqueue([{at}, {'[b1, b2]' if '2' in shapes else 'b1'}])")
        lines[-1] = lines[-1].replace("b1", "b'b1'").replace("b2", "b'b2'")
        lines.append(f"size{at} = q{at}.size()")
    queues = ", ".join(f"q{at}" for at in range(count))
    queues = f"[{queues}]" if draw.random() < 0.93 else f"({queues},)"
    lines += [
        "which = tf.placeholder(tf.int32)",
        f"q = tf.QueueBase.from_list(which, {queues})",
        "put = q.enqueue([7, b'any'])",
        "take = q.dequeue()",
        "batch = q.dequeue_many(2)",
        "close = q.close()",
        # Its static shape, which TensorFlow does not know here, is not looked at.
        "(size,) = (q.size(),)",
        "session()",
    ]
    for _ in range(draw.randint(5, 15)):
        index = draw.choice([*range(count)] * 4 + [count, -1])
        fetch = draw.choice(("put", "put", "take", "size", "batch", "size", "close"))
        lines.append(f"go({fetch}, {{which: {index}}})")
        at = draw.randrange(count)
        lines.append(draw.choice((f"go(put{at})", f"here(size{at})")))
    return lines


def chained(draw: random.Random) -> list[str]:
    """Two queues, and runs that move elements from the one to the other."""
    target = draw.choice(
        (
            f"FIFOQueue({draw.randint(1, 3)}, ",
            f"RandomShuffleQueue(4, {draw.randint(0, 2)}, seed=5, dtypes=",
            f"PaddingFIFOQueue({draw.randint(1, 3)}, ",
        )
    )
    lines = [
        f"q0 = tf.FIFOQueue({draw.randint(1, 4)}, [tf.int32], [[]])",
        f"q1 = tf.{target}[tf.int32], shapes=[tf.TensorShape([])])",
        "x = tf.placeholder(tf.int32, [])",
        "move = q1.enqueue(q0.dequeue() * 10)",
        "moves = q1.enqueue_many(q0.dequeue_many(2))",
    ]
    for at in range(2):
        lines += [
            f"put{at} = q{at}.enqueue(x)",
            f"take{at} = q{at}.dequeue()",
            f"batch{at} = q{at}.dequeue_many(2)",
            f"close{at} = q{at}.close()",
            f"cancel{at} = q{at}.close(cancel_pending_enqueues=True)",
            f"size{at} = q{at}.size()",
        ]
    lines.append("session()")
    for number in range(draw.randint(8, 24)):
        # One at a time into the first: several that come at once would be moved in any order.
        action = draw.choices(
            ("put0", "move", "moves", "take1", "batch1", "take0", "put1", "close", "cancel"),
            (8, 5, 2, 5, 2, 1, 1, 0.7, 0.3),
        )[0]
        if action in ("close", "cancel"):
            action += draw.choice("01")
        lines.append(f"go({action}, {{x: {number}}})" if "put" in action else f"go({action})")
        if draw.random() < 0.5:
            lines.append(f"here(size{draw.choice('01')})")
    return lines


SHARING: dict[str, Maker] = {"shared_name": shared, "from_list": listed, "two queues": chained}
"""The kinds of programs of this module by name."""
