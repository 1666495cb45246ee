"""What the pages for contributors name is in the code: paths, classes, and private names."""

from __future__ import annotations

import ast
import functools
import gc
import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest

from tests.kit.children import ROOT
from tests.project.test_layers import HEIGHTS

PAGES = ("docs/design.md", "CONTRIBUTING.md")
OTHER_PAGES = [
    path.relative_to(ROOT).as_posix()
    for path in sorted((ROOT / "docs").rglob("*.md"))
    if path.relative_to(ROOT).as_posix() not in PAGES
]
PACKAGE = ROOT / "aioqueue"
WHERE_PATHS_BEGIN = (ROOT, PACKAGE, PACKAGE / "compat" / "v1")

_PATH = re.compile(r"[\w.-]*/[\w./-]*|[\w-]+\.(?:py|pxd|md|toml|cff|yml)")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")

pytestmark = pytest.mark.skipif(
    not (ROOT / "CONTRIBUTING.md").is_file(), reason="these tests lie beside no sources"
)


class Names:
    """The names that the modules of the package define.

    Attributes:
        modules: Of each file, relative to the package: its names at the top.
        members: Of each class name: its methods, fields and slots. Classes of one name are one.
        bases: Of each class name: those of its bases.
        others: Parameters and local names.
        imported: The packages that are imported, whose names these are not.
    """

    def __init__(self) -> None:
        self.modules: dict[str, set[str]] = {}
        self.members: dict[str, set[str]] = {}
        self.bases: dict[str, set[str]] = {}
        self.others: set[str] = set()
        self.imported: set[str] = set()
        gc.disable()  # trees have no cycles, and the tests before have left much to look through
        try:
            self._read_package()
        finally:
            gc.enable()

    def _read_package(self) -> None:
        for path in sorted(PACKAGE.rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            names = self.modules[path.relative_to(PACKAGE).as_posix()] = set()
            for statement in tree.body:
                names |= set(_names_bound_by(statement))
            self._read(tree)

    def _read(self, tree: ast.Module) -> None:
        """Go through a file once, which `ast.walk` would take twice the time for."""
        # What is to be read, each with the members of the classes around it.
        todo: list[tuple[Any, tuple[set[str], ...]]] = [(tree, ())]
        while todo:
            node, around = todo.pop()
            kind = type(node)
            if kind is ast.Name:
                self.others.add(node.id)
                continue
            if kind is ast.Constant:
                continue
            if kind is ast.Attribute:
                if type(node.ctx) is ast.Store:
                    for members in around:
                        members.add(node.attr)
                todo.append((node.value, around))
                continue
            if kind is ast.ClassDef:
                around = (*around, self._enter_class(node))
            elif kind is ast.arg:
                self.others.add(node.arg)
            elif kind is ast.Import:
                self.imported |= {alias.name for alias in node.names}
            for field in kind._fields:
                value = getattr(node, field, None)
                if type(value) is list:
                    todo += [(one, around) for one in value if isinstance(one, ast.AST)]
                elif isinstance(value, ast.AST):
                    todo.append((value, around))

    def _enter_class(self, node: ast.ClassDef) -> set[str]:
        members = self.members.setdefault(node.name, set())
        for statement in node.body:
            members |= set(_names_bound_by(statement))
            if "__slots__" in _names_bound_by(statement):
                strings = (one for one in ast.walk(statement) if isinstance(one, ast.Constant))
                members |= {str(one.value) for one in strings}
        self.bases.setdefault(node.name, set()).update(
            ast.unparse(base).split("[")[0].rpartition(".")[2] for base in node.bases
        )
        return members

    def has(self, owner: str, name: str) -> bool:
        """Whether a class has a member, itself or by its bases."""
        if name in self.members.get(owner, ()):
            return True
        return any(self.has(base, name) for base in self.bases.get(owner, ()) if base != owner)

    @functools.cached_property
    def all(self) -> set[str]:
        found = (*self.modules.values(), *self.members.values())
        return set().union(self.members, self.others, *found)


def _names_bound_by(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield statement.name
        return
    if isinstance(statement, ast.Expr | ast.Import | ast.ImportFrom):
        return
    parts: list[ast.AST] = [statement]
    if isinstance(statement, ast.Assign):
        parts = [*statement.targets]  # values are long, and bind nothing that stays
    elif isinstance(statement, ast.AnnAssign):
        parts = [statement.target]
    for node in chain.from_iterable(map(ast.walk, parts)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


@functools.cache
def package() -> Names:
    return Names()


def lines_of(page: str) -> list[str]:
    """The lines of a page. Those of a block are empty."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blank = re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL)
    return blank.split("\n")


def code_in(line: str) -> list[str]:
    return re.findall(r"`([^`]+)`", line)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def is_class(name: str) -> bool:
    return re.fullmatch(r"_?[A-Z][A-Za-z]*[a-z][A-Za-z]*", name) is not None


def missing_paths(line: str) -> list[str]:
    named = (path for code in code_in(line) if _PATH.fullmatch(code) for path in [code])
    return [path for path in named if not any((at / path).exists() for at in WHERE_PATHS_BEGIN)]


def missing_names(line: str) -> list[str]:
    """The classes and private names in a line that the package lacks.

    A name behind the name of a class, as in `Machine.try_grant`, is a member of that class.
    """
    missing = []
    for code in code_in(line):
        if not _DOTTED.fullmatch(code):
            continue
        first, *rest = code.split(".")
        if first in package().members:
            missing += [code for name in rest[:1] if not package().has(first, name)]
        elif first not in package().imported and any(
            (is_private(name) or is_class(name)) and name not in package().all
            for name in (first, *rest)
        ):
            missing.append(code)
    return missing


def rows_of_shared_state() -> list[tuple[str, str]]:
    """The rows of the tables of shared state: what is shared, and what guards it."""
    text = "\n".join(lines_of("docs/design.md"))
    section = text.split("\n## Shared state, and what guards it\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \|$", section, re.MULTILINE)
    return [row for row in rows if row[0] not in ("field", "---")]


def without_an_owner(field: str, guard: str = "") -> list[str]:
    """The names of a row that belong to no class and to no file which the row names.

    Of what guards it, only private names are looked at.
    """
    names = package()
    codes = [code for code in code_in(field) if _DOTTED.fullmatch(code)]
    codes += [code for code in code_in(guard) if _DOTTED.fullmatch(code) and is_private(code)]
    named = [code.split(".")[0] for code in code_in(f"{field} {guard}")]
    owners = [name for name in named if name in names.members]
    paths = [
        at / code
        for code in code_in(f"{field} {guard}")
        for at in WHERE_PATHS_BEGIN
        if code.endswith(".py") and (at / code).is_file()
    ]
    in_files = [names.modules[path.relative_to(PACKAGE).as_posix()] for path in paths]
    return [
        code
        for code in codes
        if code.split(".")[0] not in names.members
        and not code.endswith(".py")
        and not any(code in found for found in in_files)
        and not any(names.has(owner, code) for owner in owners)
    ]


@pytest.mark.slow  # it reads the whole package
@pytest.mark.parametrize("page", PAGES)
def test_paths_and_names_are_in_the_code(page: str) -> None:
    found = {
        f"{page}:{number}": missing
        for number, line in enumerate(lines_of(page), 1)
        if (missing := missing_paths(line) + missing_names(line))
    }
    assert not found


@pytest.mark.slow
def test_shared_fields_belong_to_what_their_row_names() -> None:
    rows = rows_of_shared_state()
    assert len(rows) > 100
    found = {row: missing for row in rows if (missing := without_an_owner(*row))}
    assert not found


COMMAND = re.compile(r"(?:python3? -m|pytest) ((?:tests|proofs|benchmarks)[\w./]*)")


@pytest.mark.parametrize("page", ["README.md", *PAGES, *OTHER_PAGES])
def test_commands_run_what_is_there(page: str) -> None:
    missing = []
    for name in COMMAND.findall((ROOT / page).read_text(encoding="utf-8")):
        path = ROOT / name.rstrip(".").replace(".py", "").replace(".", "/")
        files = [path.with_suffix(".py"), path / "__main__.py"]
        if "/" in name:  # what pytest runs; else a module
            files.append(path)
        if not any(one.exists() for one in files):
            missing.append(name)
    assert not missing


def test_the_drawing_of_the_tree_has_each_folder_in_its_place() -> None:
    """Folders within `compat` and `ray` are left to them."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.split("\n## Where things live\n")[1].split("\nBeside the package:\n")[0]
    rows = re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
    drawn = [code.rstrip("/") for row in rows for code in code_in(row)]
    folders = {
        path.parent.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if "compat" not in path.parts
    }
    assert folders - {"."} <= {*drawn}, "a folder without a row"
    heights = [
        HEIGHTS[room]
        for name in drawn
        if (room := name.removesuffix(".py").replace("/", ".")) in HEIGHTS
    ]
    assert heights == sorted(heights), "the rows are in the order of ROOMS"


@pytest.mark.slow
def test_a_name_that_is_nowhere_is_found() -> None:
    assert missing_paths("See `core/machine.py` and `core/engine.py`.") == ["core/engine.py"]
    assert missing_names("`Machine.try_grant`, `Machine.try_it`, `_nowhere`, `Nobody`") == [
        "Machine.try_it",
        "_nowhere",
        "Nobody",
    ]
    assert without_an_owner("`_is_open`, `_nothing` of a `Gate`") == ["_nothing"]
    assert without_an_owner("`_is_open` of a `Gate`", "its `_key`") == ["_key"]
    assert without_an_owner("`_queues` in `system/forks.py`") == []
