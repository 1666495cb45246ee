"""The tool that `docs/mutation.md` describes: what it changes, and how."""

from __future__ import annotations

import builtins
import gc
import textwrap

import pytest

from proofs.mutation.__main__ import FILES, PACKAGE, PROCESS_TESTS, ROOT, TESTS, main, sampled
from proofs.mutation.judge import functions_of_heap
from proofs.mutation.mutants import PROBE, Source

TEXT = '''
class Shelf:
    """Some text."""

    limit: int = 3

    @property
    @functools.cache
    def is_full(self) -> bool:
        """Whether nothing fits any more."""
        if self.rows >= self.limit and not self.open:
            raise RuntimeError("full", 1)
        return cast("bool", self.look(1, of="all"))

    async def fill(self) -> None:
        super().fill()
        for row in self.given:
            if row:
                continue
            self.rows += 1
'''


def source(text: str) -> Source:
    return Source(textwrap.dedent(text), "shelf.py", "shelf.py")


def test_each_change_is_made_alone() -> None:
    shelf = source(TEXT)
    changes = [mutant.name.removeprefix("shelf.py:").split(": ") for mutant in shelf.mutants]
    assert [(where.split(" ", 1)[1], change) for where, change in changes] == [
        (
            "Shelf.is_full",
            "`self.rows >= self.limit and (not self.open)` -> "
            "`self.rows >= self.limit or not self.open`",
        ),
        ("Shelf.is_full", "`self.rows >= self.limit` -> `self.rows > self.limit`"),
        ("Shelf.is_full", "`not self.open` -> `self.open`"),
        ("Shelf.is_full", "`raise RuntimeError('full', 1)` -> `nothing`"),
        ("Shelf.is_full", "`cast('bool', self.look(1, of='all'))` -> `None`"),
        ("Shelf.is_full", "`self.look(1, of='all')` -> `None`"),
        ("Shelf.is_full", "`1` -> `2`"),
        ("Shelf.is_full", "`1` -> `None`"),
        ("Shelf.is_full", "`of='all'` -> `nothing`"),
        ("Shelf.is_full", "`'all'` -> `'XXallXX'`"),
        ("Shelf.is_full", "`'all'` -> `None`"),
        ("Shelf.fill", "`super().fill()` -> `nothing`"),
        ("Shelf.fill", "`row` -> `not row`"),
        ("Shelf.fill", "`continue` -> `break`"),
        ("Shelf.fill", "`self.rows += 1` -> `nothing`"),
        ("Shelf.fill", "`self.rows += 1` -> `self.rows -= 1`"),
        ("Shelf.fill", "`1` -> `2`"),
    ]
    unchanged = shelf.code()
    for mutant in shelf.mutants:
        code, text = shelf.mutated(mutant)
        assert code != unchanged
        compile(text, "shelf.py", "exec")
        assert shelf.code() == unchanged  # it was undone


def test_changes_without_a_difference_are_none() -> None:
    assert source("def f():\n    x: int = 0\n    return x + 0").mutants
    assert not source('def f(x: int = 1) -> "int":\n    """Text."""\n    pass\nY = 1').mutants


@pytest.mark.parametrize("place", ["module", "function"])
@pytest.mark.parametrize(("asked", "run"), [("==", "f(2)"), ("!=", "f(1)")])
def test_code_for_windows_is_left_alone(place: str, asked: str, run: str) -> None:
    text = f"""
if sys.platform {asked} "win32":
    def g():
        f(1)
else:
    def g():
        f(2)
"""
    if place == "function":
        text = f"def outer():{textwrap.indent(text, '    ')}    return g"
    changed = {mutant.name.split("`")[1] for mutant in source(text).mutants}
    assert changed - {"g"} == {run, run[2:-1]}


def test_a_statement_notes_that_it_was_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
    def f(x):
        '''Text.'''
        if x:
            return 1
        else:
            y = 2
        return y
    """
    noted = bytearray(9)
    monkeypatch.setattr(builtins, PROBE, noted, raising=False)
    space: dict[str, object] = {}
    exec(source(text).probed(5), space)
    f = space["f"]
    assert callable(f)
    assert f(0) == 2
    assert noted == bytes([0, 0, 0, 0, 0, 1, 0, 1, 1])


@pytest.mark.slow
def test_functions_are_found_though_the_heap_is_frozen() -> None:
    gc.freeze()
    code = source.__code__
    found = functions_of_heap()[code.co_filename, code.co_qualname, code.co_firstlineno]
    gc.freeze()  # as before, for the tests that follow
    assert any(one is source for one in found)


def test_a_sample_is_the_same_each_time_and_all_files_have_their_part() -> None:
    numbered = [*enumerate(source(TEXT).mutants)]
    chosen = {"a": numbered, "b": numbered * 4}
    some = sampled(chosen, 0.5, 1)
    assert some == sampled(chosen, 0.5, 1)
    assert some != sampled(chosen, 0.5, 2)
    assert [len([one for one in some if one[0] == name]) for name in chosen] == [8, 34]
    beginning = [name for name, _, _ in some[:10]]
    assert 1 <= beginning.count("a") <= 3


@pytest.mark.slow
def test_its_files_and_tests_are_there() -> None:
    missing = [pattern for pattern in FILES.split() if not [*(ROOT / PACKAGE).glob(pattern)]]
    tests = [f"tests/{name}" for name in TESTS.split()]
    tests += [name.partition("::")[0] for name in PROCESS_TESTS]
    assert not missing + [name for name in tests if not (ROOT / name).exists()]


def test_the_command_lists_mutants(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "core/attempts.py:* WaitLists.remove:*"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(" WaitLists.remove: `" in line for line in lines)
