"""What can be changed in a source: its mutants."""

from __future__ import annotations

import ast
import copy
import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

__all__ = ("PROBE", "Mutant", "Source", "codes")

PROBE = "__mutation_probe__"
"""The builtin in which each statement notes that it was reached."""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATIONS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
    ast.Pow: ast.Mult,
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
ABOUT_TYPES = (
    "annotation",
    "returns",
    "decorator_list",
    "args",
    "type_params",
    "keywords",
    "bases",
)
"""What of a function or class is not its body."""


@dataclass(frozen=True)
class Mutant:
    """One change to one place of a source."""

    name: str
    statement: int
    parent: ast.AST
    field: str
    index: int | None
    new: Any

    def exchange(self, new: Any) -> Any:
        """Put something in the place; returns what was there."""
        if self.index is None:
            old = getattr(self.parent, self.field)
            setattr(self.parent, self.field, new)
            return old
        line: list[Any] = getattr(self.parent, self.field)
        old = line[self.index]
        line[self.index : self.index + 1] = [] if new is None else [new]
        return old

    def undo(self, old: Any) -> None:
        """Put back what was there."""
        if self.index is not None and self.new is None:
            getattr(self.parent, self.field).insert(self.index, old)
        else:
            self.exchange(old)


class Source:
    """A file and its mutants.

    Args:
        text: the source.
        name: of the file, for the names of the mutants.
        path: as which it is compiled.
    """

    def __init__(self, text: str, name: str, path: str) -> None:
        self.name = name
        self.path = path
        self.tree = ast.parse(text)
        self.statements: list[ast.stmt] = []
        self._where: list[str] = []
        self.codes = codes(self.code())
        self._found = list(self._of_module(self.tree))

    @functools.cached_property
    def mutants(self) -> list[Mutant]:
        """All changes that make a difference to what is run."""
        return self._with_distinct_names(filter(self._makes_a_difference, self._found))

    @staticmethod
    def _with_distinct_names(mutants: Iterator[Mutant]) -> list[Mutant]:
        """Name those by numbers that read the same."""
        seen: dict[str, int] = {}
        result = []
        for mutant in mutants:
            times = seen[mutant.name] = seen.get(mutant.name, 0) + 1
            name = mutant.name if times == 1 else f"{mutant.name} #{times}"
            result.append(Mutant(**{**vars(mutant), "name": name}))
        return result

    def code(self) -> CodeType:
        """The source as it is, compiled."""
        return compile(self.tree, self.path, "exec", dont_inherit=True)

    def mutated(self, mutant: Mutant) -> tuple[CodeType, str]:
        """The source with one change, compiled and as text."""
        old = mutant.exchange(mutant.new)
        try:
            return self.code(), ast.unparse(self.tree)
        finally:
            mutant.undo(old)

    def probed(self, first: int) -> CodeType:
        """The source with a note in front of each statement, numbered from ``first``, compiled."""
        tree = copy.deepcopy(self.tree)
        twin = Source.__new__(Source)
        twin.statements, twin._where, twin.name = [], [], self.name
        list(twin._of_module(tree))
        numbers = {id(statement): first + n for n, statement in enumerate(twin.statements)}
        for node in ast.walk(tree):
            for field in ("body", "orelse", "finalbody"):
                block = getattr(node, field, None)
                if isinstance(block, list):
                    block[:] = [new for old in block for new in _with_probe(old, numbers)]
        return compile(tree, self.path, "exec", dont_inherit=True)

    def _makes_a_difference(self, mutant: Mutant) -> bool:
        """Whether a change compiles, to other code that a function of before can run."""
        old = mutant.exchange(mutant.new)
        try:
            after = codes(self.code())
        except SyntaxError:
            return False
        finally:
            mutant.undo(old)
        fits = all(
            after[key].co_freevars == code.co_freevars
            for key, code in self.codes.items()
            if key in after
        )
        return fits and any(after.get(key) != code for key, code in self.codes.items())

    def _of_module(self, node: ast.AST) -> Iterator[Mutant]:
        """The mutants of all functions in a module or class."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, FUNCTIONS):
                yield from self._of_function(child)
            elif isinstance(child, ast.ClassDef):
                self._where.append(child.name)
                yield from self._of_module(child)
                self._where.pop()
            elif isinstance(child, ast.If) and _asks_for_platform(child.test):
                yield from self._of_module(ast.Module(getattr(child, _run_here(child)), []))
            elif isinstance(child, (ast.If, ast.Try, ast.With)):
                yield from self._of_module(child)

    def _of_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Mutant]:
        self._where.append(node.name)
        yield from self._of_block(node, "body", is_function=True)
        self._where.pop()

    def _of_block(self, parent: ast.AST, field: str, is_function: bool = False) -> Iterator[Mutant]:
        for index, statement in enumerate(getattr(parent, field)):
            if is_function and index == 0 and _is_text(statement):
                continue  # the docstring
            yield from self._of_statement(parent, field, index, statement)

    def _of_statement(
        self, parent: ast.AST, field: str, index: int, statement: ast.stmt
    ) -> Iterator[Mutant]:
        number = len(self.statements)
        self.statements.append(statement)
        for new in _other_statements(statement):
            yield self._mutant(number, parent, field, index, statement, new)
        if isinstance(statement, ast.If) and _asks_for_platform(statement.test):
            yield from self._of_block(statement, _run_here(statement))
        elif isinstance(statement, FUNCTIONS):
            yield from self._of_function(statement)
        elif not isinstance(statement, (ast.Raise, ast.Assert, ast.ClassDef)):
            yield from self._of_expressions(statement, number)

    def _of_expressions(self, node: ast.AST, number: int) -> Iterator[Mutant]:
        """The mutants of what stands in a node."""
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "type_comment"):
                continue
            many = isinstance(value, list)
            if many and value and isinstance(value[0], ast.stmt):
                yield from self._of_block(node, field)
                continue
            for index, child in enumerate(value if many else [value]):
                if not isinstance(child, ast.AST) or _is_hint(node, field, index):
                    continue
                at = index if many else None
                for new in _others(node, field, child):
                    yield self._mutant(number, node, field, at, child, new)
                yield from self._of_expressions(child, number)

    def _mutant(
        self, number: int, parent: ast.AST, field: str, index: int | None, old: Any, new: Any
    ) -> Mutant:
        statement = self.statements[number]
        shown = [_shown(parent if isinstance(old, (ast.cmpop, ast.operator, ast.boolop)) else old)]
        mutant = Mutant("", number, parent, field, index, new)
        if isinstance(old, (ast.cmpop, ast.operator, ast.boolop)):
            kept = mutant.exchange(new)
            shown.append(_shown(parent))
            mutant.undo(kept)
        else:
            shown.append("nothing" if new is None or _is_left_out(new) else _shown(new))
        line = getattr(old, "lineno", getattr(parent, "lineno", statement.lineno))
        where = ".".join(self._where)
        name = f"{self.name}:{line} {where}: `{shown[0]}` -> `{shown[1]}`"
        return Mutant(name, number, parent, field, index, new)


def codes(code: CodeType) -> dict[tuple[str, int], CodeType]:
    """The code of all functions within, by name and line; not of those that share both."""
    result: dict[tuple[str, int], CodeType] = {}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            result |= {(inner.co_qualname, inner.co_firstlineno): inner, **codes(inner)}
    return result


def _asks_for_platform(test: ast.expr) -> bool:
    return (
        isinstance(test, ast.Compare)
        and ast.unparse(test.left) == "sys.platform"
        and isinstance(test.ops[0], (ast.Eq, ast.NotEq))
    )


def _run_here(branch: ast.If) -> str:
    """Which part of a statement that asks for the platform is run where the tests are."""
    holds = eval(ast.unparse(branch.test), {"sys": sys})
    return "body" if holds else "orelse"


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _is_left_out(node: Any) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Constant)


def _shown(node: ast.AST) -> str:
    lines = ast.unparse(node).splitlines() or [""]
    text = lines[0] + (" ..." if len(lines) > 1 else "")
    return text if len(text) <= 70 else text[:67] + "..."


def _with_probe(statement: ast.stmt, numbers: dict[int, int]) -> list[ast.stmt]:
    number = numbers.get(id(statement))
    if number is None:
        return [statement]
    probe = ast.parse(f"{PROBE}[{number}] = 1").body[0]
    for node in ast.walk(probe):
        if hasattr(node, "lineno"):
            ast.copy_location(node, statement)
            node.end_lineno, node.end_col_offset = statement.lineno, statement.col_offset  # type: ignore[attr-defined]
    return [probe, statement]


def _placed(new: Any, old: ast.AST) -> Any:
    return ast.fix_missing_locations(ast.copy_location(new, old))


def _other_statements(statement: ast.stmt) -> Iterator[ast.stmt]:
    """What a statement is exchanged for."""
    if isinstance(statement, ast.Break):
        yield _placed(ast.Continue(), statement)
    elif isinstance(statement, ast.Continue):
        yield _placed(ast.Break(), statement)
    elif _can_be_left_out(statement):
        # Not cut out, but never reached: a generator stays one, and a local variable too.
        yield _placed(ast.If(ast.Constant(0), [statement], []), statement)


def _can_be_left_out(statement: ast.stmt) -> bool:
    """Whether a function may go on as if nothing were missing."""
    if isinstance(statement, ast.Assign):
        return all(
            isinstance(target, (ast.Attribute, ast.Subscript)) for target in statement.targets
        )
    if isinstance(statement, ast.Expr):
        return not isinstance(statement.value, ast.Constant)
    return isinstance(statement, (ast.AugAssign, ast.Delete, ast.Raise))


def _is_hint(parent: ast.AST, field: str, index: int) -> bool:
    """Whether something is the type in a ``cast``."""
    return (
        isinstance(parent, ast.Call)
        and field == "args"
        and index == 0
        and isinstance(parent.func, ast.Name)
        and parent.func.id == "cast"
    )


def _others(parent: ast.AST, field: str, old: ast.AST) -> Iterator[Any]:
    """What a part of a statement is exchanged for; nothing for leaving it out."""
    if isinstance(old, ast.cmpop):
        yield COMPARISONS[type(old)]()
    elif isinstance(old, ast.boolop):
        yield ast.Or() if isinstance(old, ast.And) else ast.And()
    elif isinstance(old, ast.operator):
        if type(old) in OPERATIONS:
            yield OPERATIONS[type(old)]()
    elif isinstance(old, ast.keyword):
        yield None
    elif isinstance(old, ast.expr):
        yield from _other_expressions(parent, field, old)


def _other_expressions(parent: ast.AST, field: str, old: ast.expr) -> Iterator[ast.expr]:
    if isinstance(old, ast.Constant):
        yield from _other_constants(parent, old)
    if isinstance(old, ast.UnaryOp) and isinstance(old.op, (ast.Not, ast.USub)):
        yield old.operand
    if field == "test" and isinstance(old, (ast.Name, ast.Attribute, ast.Call, ast.NamedExpr)):
        yield _placed(ast.UnaryOp(ast.Not(), old), old)
    is_flag = isinstance(old, ast.Constant) and (old.value is None or isinstance(old.value, bool))
    if not is_flag and _is_a_value(parent, field, old):
        yield _placed(ast.Constant(None), old)


def _is_a_value(parent: ast.AST, field: str, old: ast.expr) -> bool:
    """Whether something is handed over as it is: then nothing is, instead."""
    if isinstance(parent, ast.Call):
        return field == "args" and not isinstance(old, ast.Starred)
    if isinstance(parent, ast.Lambda):
        return field == "body"
    named = (ast.Assign, ast.AnnAssign, ast.Return, ast.keyword, ast.NamedExpr)
    return field == "value" and isinstance(parent, named)


def _other_constants(parent: ast.AST, old: ast.Constant) -> Iterator[ast.expr]:
    if isinstance(parent, ast.JoinedStr):
        return
    value = old.value
    if isinstance(value, bool):
        yield _placed(ast.Constant(not value), old)
    elif isinstance(value, (int, float)):
        yield _placed(ast.Constant(value + 1), old)
    elif isinstance(value, str):
        yield _placed(ast.Constant(f"XX{value}XX"), old)
    elif isinstance(value, bytes):
        yield _placed(ast.Constant(b"XX" + value + b"XX"), old)
