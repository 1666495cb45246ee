"""Tensors of random contents, spelled as Python, and lines that show what ops make of them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

Shape = tuple[int, ...]
Spell = Callable[[random.Random], str]
"""Spells one random expression."""

WORDS = ("", "a", "bc", "Hello World", "x,y,,z", "  pad\t", "1.5", "-7", "äÖ", "a b  c", "word")


def _item(draw: random.Random, dtype: str, low: int, high: int) -> str:
    match dtype:
        case "string":
            return repr(draw.choice(WORDS).encode())
        case "bool":
            return str(draw.random() < 0.5)
        case _ if dtype.startswith("float"):
            return str(round(draw.uniform(low, high), 2))
        case _:
            return str(draw.randint(max(low, 0) if dtype[0] == "u" else low, high))


def array(
    draw: random.Random, dtype: str, shape: Sequence[int], low: int = -5, high: int = 9
) -> str:
    """An array of a dtype and a shape, of numbers between two."""
    items = ", ".join(_item(draw, dtype, low, high) for _ in range(math.prod(shape)))
    kind = "object" if dtype == "string" else repr(dtype)
    return f"np.array([{items}], {kind}).reshape({tuple(shape)})"


def given(draw: random.Random, value: str, shape: Sequence[int]) -> str:
    """An array as a tensor, of whose shape all, some or nothing is known."""
    partly = [size if draw.random() < 0.5 else None for size in shape]
    known = draw.choice((f"{list(shape)}", f"{partly}", "None"))
    return draw.choice((f"tf.constant({value})", f"tf.placeholder_with_default({value}, {known})"))


def tensor(
    draw: random.Random, dtype: str, shape: Sequence[int], low: int = -5, high: int = 9
) -> str:
    """A tensor of a dtype and a shape, of numbers between two; see `given`."""
    return given(draw, array(draw, dtype, shape, low, high), shape)


def shown(name: str, expression: str, runs: int = 1) -> list[str]:
    """Lines that make something, see what is known of it, and compute it."""
    # No plain assignment: of that the name would be seen, and ops are made of others there.
    return [f"({name},) = ({expression},)", f"form({name})", *[f"near({name})"] * runs]


def written(
    draw: random.Random, spells: Sequence[Spell], most: int = 6, runs: int = 1
) -> list[str]:
    """A program that shows some expressions, one after another."""
    lines = ["session()"]
    for number, spell in enumerate(draw.choices(spells, k=draw.randint(2, most))):
        lines += shown(f"x{number}", spell(draw), runs)
    return lines
