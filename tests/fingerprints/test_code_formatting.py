"""How a text is written does not count: its lines, comments and brackets."""

from __future__ import annotations

import ast
import os
import random
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

from aioqueue.fingerprints.values import Names, Walk

pytest.importorskip("cloudpickle")


def functions_of(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from functions_of(one)


def differing(texts: list[str]) -> tuple[int, list[str]]:
    """How many functions there are, and which count as others if they are written anew."""
    walk = Walk(has_code=True, names=Names())
    count, found = 0, []
    for text in texts:
        old = compile(text, "<module>", "exec", dont_inherit=True)
        new = compile(ast.unparse(ast.parse(text)), "<module>", "exec", dont_inherit=True)
        pairs = zip(functions_of(old), functions_of(new), strict=True)
        for one, other in pairs:
            count += 1
            if list(walk._code(one)) != list(walk._code(other)):
                found.append(one.co_qualname)
    return count, found


def test_a_statement_on_one_line_is_the_same_on_several() -> None:
    text = """
def f(x):
    try: return 1 // x
    except ZeroDivisionError: return 0

def g(a, b, c):
    return (a or
            b and
                c or
            a)
"""
    assert differing([text]) == (2, [])


def test_where_a_class_in_a_function_stands_does_not_count() -> None:
    """From Python 3.13 on, the code of a class notes its line, and what its methods set."""
    text = "def f():\n class C:\n  def g(self): self.b = self.a = 1\n return C\n"
    functions = [
        [*functions_of(compile(before + text, "<module>", "exec"))] for before in ("", "\n" * 300)
    ]
    walk = Walk(has_code=True, names=Names())
    for one, other in zip(*functions, strict=True):
        assert list(walk._code(one)) == list(walk._code(other)), one.co_qualname


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_modules_of_python_are_the_same_when_they_are_rewritten(seed: int) -> None:
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    texts = [one.read_text("utf-8") for one in random.Random(seed).sample(files, 40)]
    count, found = differing(texts)
    assert count > 1000
    assert not found
