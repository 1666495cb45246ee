"""Programs of rows that are written to places."""

from __future__ import annotations

import random

from proofs.oracle.program import Maker
from proofs.oracle.spelling import Spell, array, tensor, written

__all__ = ("PLACES",)

WRITING = ("update", "add", "sub", "mul", "div", "min", "max")


def places(draw: random.Random) -> str:
    """Slices at places."""
    count, dtype = draw.randint(1, 4), draw.choice(("float32", "int32", "int64"))
    far = 7 if draw.random() < 0.05 else 4
    at = [[draw.randint(0, far)] for _ in range(count)]
    distinct = [[one] for one in draw.sample(range(5), count)]
    rest = draw.choice(((), (2,)))
    slices = tensor(draw, dtype, (count, *rest))
    target = tensor(draw, dtype, (5, *rest))
    return draw.choice(
        (
            f"tf.scatter_nd({at}, {slices}, {[5, *rest]})",
            f"tf.tensor_scatter_update({target}, {distinct}, {slices})",
            f"tf.tensor_scatter_add({target}, {at}, {slices})",
            f"tf.tensor_scatter_sub({target}, {at}, {slices})",
            f"tf.scalar_mul(2, {slices})",
            f"tf.realdiv({tensor(draw, 'float32', (3,))}, {tensor(draw, 'float32', (3,), 1, 4)})",
            f"tf.floormod({tensor(draw, 'int32', (3,))}, {tensor(draw, 'int32', (3,), 1, 4)})",
        )
    )


def place_ops(draw: random.Random) -> list[str]:
    """Some ops on places, each for itself."""
    spells: tuple[Spell, ...] = (places,)
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


PLACES: dict[str, Maker] = {"places": place_ops, "scattering": scattering}
"""The kinds of programs of this module by name."""
