"""Programs of training steps: what a run fetches of variables, beside what changes them.

In TensorFlow a computation races with an assignment that it does not depend on. Here the
assignments of a run come after something slow, so that the computations always win; or nothing is
fetched that could lose.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from proofs.oracle.program import Maker

__all__ = ("TRAINING",)

SLOW = "tf.py_func(lambda x: (__import__('time').sleep(0.004), x)[1], [{}], tf.float32)"
RATES = (
    "0.1 * tf.pow(0.5, tf.floor(tf.cast(step, tf.float32) / 2.0))",
    "0.5 / (1.0 + tf.cast(step, tf.float32))",
    "tf.cast(step.read_value(), tf.float32) * 0.1",
)
LOSSES = ("tf.reduce_sum(x * w)", "tf.reduce_sum(w) * x", "x + w.read_value() * 0.5", "x * 2.0")
# Each is the variable's memory in TensorFlow, so it has the value of the end of the run.
VIEWS = (
    *("{v}", "{v}.value()", "{v}.read_value()", "tf.identity({v})", "tf.stop_gradient({v})"),
    *("tf.reshape({v}, [-1])", "tf.expand_dims({v}, 0)", "tf.identity(tf.identity({v}))"),
    "tf.squeeze(tf.expand_dims({v}, 0), [0])",
)
COMPUTED = ("{v} * 2", "{v} + {v}", "tf.negative({v})", "tf.stack([{v}, {v}])", "{v} - {v}")


def _view(draw: random.Random) -> str:
    return draw.choice(VIEWS).format(v=draw.choice(("step", "w")))


def _computed(draw: random.Random) -> str:
    return draw.choice(COMPUTED).format(v=draw.choice(("step", "w")))


def _fetched(draw: random.Random, names: Sequence[str]) -> list[str]:
    """Runs that fetch several of these, in any order."""
    lines = []
    for _ in range(draw.randint(2, 5)):
        some = draw.sample(names, draw.randint(1, min(6, len(names))))
        lines.append(f"near([{', '.join(some)}])")
    return lines


def steps(draw: random.Random) -> list[str]:
    """A training step: a batch of a queue, a loss, updates, and all that scripts fetch beside."""
    shape = draw.choice(("", "", "[2]"))
    first = "1.0" if not shape else "[1.0, 3.0]"
    kind = draw.choice(("tf.int32", "tf.int64"))
    lines = [
        "settle()", "q = tf.FIFOQueue(100, tf.float32, [[]])",
        f"step = tf.Variable(tf.zeros([], {kind}), trainable=False)", f"w = tf.Variable({first})",
        f"(x,) = ({draw.choice(('q.dequeue()', 'q.dequeue()', 'tf.constant(0.5)'))},)",
        f"(rate,) = ({draw.choice(RATES)},)", f"(loss,) = ({draw.choice(LOSSES)},)",
        f"(late,) = ({SLOW.format('tf.reduce_mean(loss) * 0.25')},)",
    ]  # fmt: skip
    change = draw.choice((
        "tf.assign_sub(w, late * tf.ones_like(w))",
        "tf.assign_add(w, rate * late * tf.ones_like(w))",
        "tf.assign(w, late * tf.ones_like(w))",
        "tf.assign(w, w - late)",
        *(("tf.scatter_add(w, [1], [late])",) if shape else ()),
    ))  # fmt: skip
    if draw.random() < 0.6:  # one after the other, as optimizers do
        lines += [
            f"with tf.control_dependencies([{change}]): up = tf.assign_add(step, 1)",
            "(train,) = (up.op,)",
        ]
    else:
        lines += [
            "with tf.control_dependencies([late]): up = tf.assign_add(step, 1)",
            f"(train,) = (tf.group({change}, up),)",
        ]
    names = ["train", "train", "loss", "rate", "step", "w", "up", "x"]
    for number in range(draw.randint(1, 5)):
        name = f"n{number}"
        names.append(name)
        if draw.random() < 0.4:
            read = draw.choice((_view, _computed))(draw)
            lines.append(f"with tf.control_dependencies([train]): {name} = {read}")
        else:
            lines.append(f"({name},) = ({draw.choice((_view, _view, _computed))(draw)},)")
    if draw.random() < 0.3:
        lines += [
            f"with tf.control_dependencies([up]): more = {SLOW.format('tf.constant(1.0)')}",
            "with tf.control_dependencies([more]): more = tf.assign_add(step, 10)",
            "with tf.control_dependencies([more]): after = step * 2",
        ]
        names += ["more", "after"]
    lines += [
        "session()",
        "near(tf.global_variables_initializer())",
        f"near(q.enqueue_many([np.array({[round(draw.uniform(0, 2), 2) for _ in range(30)]})]))",
    ]
    return [*lines, *_fetched(draw, names), "near([step, w])"]


def waiting_steps(draw: random.Random) -> list[str]:
    """Steps whose queues have to be filled by the same run, after the variable was changed."""
    read = draw.choice(("g", "tf.identity(g)", "g.read_value()", "tf.stop_gradient(g)"))
    lines = [
        "settle()",
        f"a, b = tf.FIFOQueue({draw.randint(1, 3)}, tf.float32, [[]]), tf.FIFOQueue(3, tf.float32)",
        "g = tf.Variable(1.0)", f"(slow,) = ({SLOW.format('tf.constant(0.5)')},)",
        "with tf.control_dependencies([slow]): put = a.enqueue(slow)", "x = a.dequeue()",
        f"(change,) = ({draw.choice(('tf.assign_add(g, 2.0)', 'tf.assign(g, [5.0][0])'))},)",
        f"(used,) = ({read} * x,)", "into = b.enqueue(used)",
        f"(seen,) = ({draw.choice(VIEWS[:8]).format(v='g')},)",
        "with tf.control_dependencies([into]): last = tf.assign_add(g, 100.0)", "session()",
        "near(tf.global_variables_initializer())",
    ]  # fmt: skip
    for _ in range(draw.randint(1, 3)):
        some = ["put", "change", "used", *draw.sample(("g", "seen", "into", "last"), 3)]
        if "into" not in some and "last" not in some:
            some.append("x")
        draw.shuffle(some)
        lines.append(f"near([{', '.join(some)}])")
    return [*lines, "near([g, a.size(), b.size()])"]


TRAINING: dict[str, Maker] = {"training steps": steps, "waiting steps": waiting_steps}
"""The kinds of programs of this module by name."""
