"""Programs of rows that are reduced by their numbers, counted, or written to places."""

from __future__ import annotations

import random

from tests.oracle.program import Maker
from tests.oracle.spelling import Spell, array, given, tensor, written

__all__ = ("SEGMENTS",)

DTYPES = ("float32", "int32", "float64", "int64")
REDUCING = ("sum", "prod", "max", "min", "mean")
WRITING = ("update", "add", "sub", "mul", "div", "min", "max")


def segments(draw: random.Random) -> str:
    """Rows that are reduced by their numbers, at times wrong ones."""
    count = draw.randint(1, 6)
    dtype, rest = draw.choice(DTYPES), draw.choice(((), (2,)))
    rows = tensor(draw, dtype, (count, *rest), 1, 4)
    numbers = [draw.randint(0, 3) for _ in range(count)]
    kind = draw.choice(("int32", "int64"))
    space = draw.choice(("tf", "tf.math"))
    if draw.random() < 0.5:
        if draw.random() < 0.95:
            numbers.sort()
        spelled = given(draw, f"np.array({numbers}, {kind!r})", (count,))
        return f"{space}.segment_{draw.choice(REDUCING)}({rows}, {spelled})"
    op = draw.choice((*REDUCING, "sqrt_n")) if dtype.startswith("float") else "sum"
    if draw.random() < 0.2:
        # Of two sums, it is chance in TensorFlow which fails first.
        numbers[0] = -1 if op in ("mean", "sqrt_n") else draw.choice((-1, 9))
    spelled = given(draw, f"np.array({numbers}, {kind!r})", (count,))
    return f"{space}.unsorted_segment_{op}({rows}, {spelled}, {draw.randint(4, 6)})"


def places(draw: random.Random) -> str:
    """Slices at places, where numbers belong, and how often they occur."""
    count, dtype = draw.randint(1, 4), draw.choice(("float32", "int32", "int64"))
    far = 7 if draw.random() < 0.05 else 4
    at = [[draw.randint(0, far)] for _ in range(count)]
    distinct = [[one] for one in draw.sample(range(5), count)]
    rest = draw.choice(((), (2,)))
    slices = tensor(draw, dtype, (count, *rest))
    target = tensor(draw, dtype, (5, *rest))
    lengths = [draw.randint(0, 3 + (draw.random() < 0.05)) for _ in range(2)]
    whole = array(draw, "int32", (draw.randint(0, 6),), 0, 5)
    ordered = sorted(draw.randint(0, 9) for _ in range(4))
    order = draw.sample(range(4), 4)
    shape = [None if draw.random() < 0.5 else 2, draw.choice((3, None, 4))]
    axes = draw.choice(("seq_axis=1, batch_axis=0", "seq_dim=1, batch_dim=0"))
    return draw.choice(
        (
            f"tf.scatter_nd({at}, {slices}, {[5, *rest]})",
            f"tf.tensor_scatter_update({target}, {distinct}, {slices})",
            f"tf.tensor_scatter_add({target}, {at}, {slices})",
            f"tf.tensor_scatter_sub({target}, {at}, {slices})",
            f"tf.reverse_sequence({tensor(draw, dtype, (2, 3, *rest))}, {lengths}, {axes})",
            f"tf.invert_permutation({given(draw, f'np.array({order})', (4,))})",
            f"tf.batch_gather({tensor(draw, dtype, (2, 3, *rest))}, [[0, 2], [1, 1]])",
            f"tf.ensure_shape({tensor(draw, dtype, (2, 3))}, {shape})",
            f"tf.bincount({whole}, minlength={draw.choice((None, 3))}, maxlength=5)",
            f"tf.bincount({whole}, tf.cast({whole}, tf.float32))",
            f"tf.histogram_fixed_width({tensor(draw, 'float32', (5,))}, [0.0, 4.0], 4)",
            f"tf.searchsorted({ordered}, {array(draw, 'int32', (3,))}, side='right')",
            f"tf.searchsorted({ordered}, {array(draw, 'int32', (3,))})",
            f"tf.scalar_mul(2, {slices})",
            f"tf.realdiv({tensor(draw, 'float32', (3,))}, {tensor(draw, 'float32', (3,), 1, 4)})",
            f"tf.floormod({tensor(draw, 'int32', (3,))}, {tensor(draw, 'int32', (3,), 1, 4)})",
        )
    )


def segment_ops(draw: random.Random) -> list[str]:
    """Some ops on rows by their numbers, each for itself."""
    spells: tuple[Spell, ...] = (segments, places)
    return written(draw, spells)


def scattering(draw: random.Random) -> list[str]:
    """A variable, places of which are written to, one op after another."""
    dtype, rest = draw.choice(("float32", "int32")), draw.choice(((), (2,)))
    lines = [
        "session()",
        f"(v,) = (tf.Variable({array(draw, dtype, (4, *rest))}, name='v'),)",
        "here(v.initializer)",
    ]
    for number in range(draw.randint(1, 4)):
        op, count = draw.choice(WRITING), draw.randint(1, 3)
        # The order in which places are written to that come twice is no promise.
        at = draw.sample(range(4), count) if op == "update" else draw.choices(range(4), k=count)
        is_far = draw.random() < 0.06 and dtype == "float32"  # TensorFlow checks no other's
        if is_far:
            at[-1] = 8
        size = rest if draw.random() < 0.95 else (5,)
        slices = array(draw, dtype, (count, *size), 1, 3)
        made = f"tf.scatter_{op}(v, {at}, {slices})"
        if op in ("update", "add", "sub") and draw.random() < 0.5:
            made = f"tf.scatter_nd_{op}(v, {[[one] for one in at]}, {slices})"
        lines += [f"(x{number},) = ({made},)", f"form(x{number})", f"near(x{number})"]
        if is_far:
            break  # TensorFlow has written to the places before that one
        lines.append("near(v)")
    return lines


SEGMENTS: dict[str, Maker] = {"segments and places": segment_ops, "scattering": scattering}
"""The kinds of programs of this module by name."""
