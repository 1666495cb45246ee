"""A program: lines of Python, made from a kind and a seed."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable
from dataclasses import dataclass

from proofs.oracle.stage import PRELUDE

Maker = Callable[[random.Random], list[str]]
"""Writes the lines of one random program."""

IDLE = ("session()", "session(timeout=40)", "settle()", "pause()")


@dataclass(frozen=True)
class Program:
    """Lines of Python that build and run queues of a library called ``tf``."""

    kind: str
    seed: int
    lines: tuple[str, ...]

    @property
    def operations(self) -> int:
        """How many lines do something; where nothing is run, how many build something."""
        done = [ast.parse(line).body[0] for line in self.lines if line not in IDLE]
        return sum(isinstance(statement, (ast.Expr, ast.If)) for statement in done) or len(done)

    def script(self) -> str:
        """The program as a script that runs by itself."""
        lines = "\n".join(self.lines)
        return f"{PRELUDE}\n# {self.kind}, seed {self.seed}\n{lines}\n"


def made_from(kind: str, maker: Maker, seed: int) -> Program:
    """The program of a kind and a seed: always the same."""
    return Program(kind, seed, tuple(maker(random.Random(f"{kind} {seed}"))))
