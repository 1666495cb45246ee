"""Checks what a script would miss, without running it: ``python -m aioqueue.compat.v1 --check``.

It parses the script, and the files beside it that the script imports. It looks up every name that
they take from TensorFlow. It omits names in a ``try`` whose handler expects them to be missing.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from aioqueue.base import extras
from aioqueue.compat.v1.absent import DATASETS, DEVICES, GRAPHS, PACKAGE, AbsentNameError
from aioqueue.compat.v1.private import ABSENT
from aioqueue.compat.v1.shim import ROOT, find
from aioqueue.compat.v1.summaries.writer import can_write

TIMEOUTS_ONLY = "only timeouts have an effect"
NOT_AHEAD = "elements are made on demand"

INERT: dict[str, str] = {
    "colocate_with": DEVICES, "ConfigProto": TIMEOUTS_ONLY, "data.Dataset.prefetch": NOT_AHEAD,
    "device": DEVICES, "GPUOptions": TIMEOUTS_ONLY, "GraphOptions": TIMEOUTS_ONLY,
    "RunMetadata": "nothing is traced", "RunOptions": TIMEOUTS_ONLY,
    "train.replica_device_setter": DEVICES,
}  # fmt: skip
"""Names that are accepted and have no effect, or almost none."""

TIMEOUTS = {"ConfigProto": "operation_timeout_in_ms", "RunOptions": "timeout_in_ms"}
"""Arguments of the names above that have an effect."""

SUMMARIES = (
    *("audio_summary", "histogram_summary", "image_summary", "merge_all_summaries"),
    *("merge_summary", "scalar_summary", "summary."),
    "train.SummaryWriter",
)
"""Names, or prefixes of names, that have no effect unless event files can be written."""

REFUSED: dict[str, dict[str, str]] = {"train.Saver": {"builder": GRAPHS, "saver_def": GRAPHS}}
"""Arguments that exist, and raise NotImplementedError unless they are None."""


NOTEBOOK = "this is a notebook: `jupyter nbconvert --to script` makes a script of it"
PYTHON_2 = "this is not Python 3: {}; 2to3 and python-modernize convert Python 2"

_NEEDS = (
    "image.decode_and_crop_jpeg image.decode_bmp image.decode_gif image.decode_image"
    " image.decode_jpeg image.decode_png image.encode_jpeg contrib.slim.tfexample_decoder.Image"
    ": PIL Pillow images",
    "TFRecordReader data.TFRecordDataset python_io.TFRecordWriter python_io.tf_record_iterator"
    " train.summary_iterator python.ops.data_flow_ops.RecordInput"
    ": google_crc32c google-crc32c tfrecord",
    "io.parse_single_sequence_example: google.protobuf protobuf tfrecord",
)
NEEDS: dict[str, list[str]] = {
    name: what.split()
    for names, what in (line.split(":") for line in _NEEDS)
    for name in names.split()
}
"""Names that need an extra when a script calls them: its module, its project, and the extra. What
needs one to be imported is found without this table."""


DATASET = "data.Dataset"
"""The name of the class that every kind of dataset, and its methods, make."""


class Finding(NamedTuple):
    """One finding: a name, as after ``tensorflow.``, what to do about it, and lines of a file."""

    path: str
    name: str
    why: str
    lines: tuple[int, ...]

    def __str__(self) -> str:
        lines = ", ".join(map(str, self.lines))
        return f"{self.path}:{lines}: {self.why}"


class Report(NamedTuple):
    """The findings in a script, and in the files beside it that it imports: those were read.

    Names will raise an error (`absent`) or have no effect (`inert`), or need an extra (`lacking`).
    """

    files: list[str]
    absent: list[Finding]
    inert: list[Finding]
    lacking: list[Finding]

    def __str__(self) -> str:
        parts = {
            "Absent": self.absent,
            "Missing extras": self.lacking,
            "Without effect": self.inert,
        }
        sections = [
            "\n  ".join([f"{title}:", *map(str, part)]) for title, part in parts.items() if part
        ]
        absent, lacking, inert = (len({one.name for one in part}) for part in parts.values())
        counts = [f"{absent} absent"]
        if lacking:
            them = "it needs" if lacking == 1 else "they need"
            counts.append(f"{lacking} without an extra that {them}")
        files = f"{len(self.files)} file{'s' if len(self.files) != 1 else ''}"
        return "\n".join([*sections, f"{', '.join(counts)} and {inert} without effect, in {files}"])


def check(script: str) -> Report:
    first = Path(script)
    root = first.parent
    pending, seen = [first], {first.resolve()}
    report = Report([], [], [], [])
    while pending:
        path = pending.pop(0)
        report.files.append(os.fspath(path))
        try:
            if path.suffix == ".ipynb":  # a notebook is valid Python, too: one large expression
                raise SyntaxError(NOTEBOOK)
            tree = ast.parse(path.read_bytes(), os.fspath(path))
        except (SyntaxError, ValueError) as error:
            reason = getattr(error, "msg", None) or str(error)
            why = reason if reason == NOTEBOOK else PYTHON_2.format(reason)
            line = getattr(error, "lineno", None) or 1
            report.absent.append(Finding(os.fspath(path), os.fspath(path), why, (line,)))
            continue
        names = _Names()
        names.visit(tree)
        lists = (report.absent, report.inert, report.lacking)
        for one, found in zip(lists, _judged(names), strict=True):
            one.extend(_findings(path, found))
        for beside in _local(tree, path, root):
            if beside.resolve() not in seen:
                seen.add(beside.resolve())
                pending.append(beside)
    return report


class _Use(NamedTuple):
    name: str
    line: int
    keywords: tuple[str, ...]  # that the call has
    urls: tuple[str, ...] = ()  # among the call's arguments


class _Names(ast.NodeVisitor):
    """The names that a file takes from TensorFlow, each with its line."""

    def __init__(self) -> None:
        self.uses: list[_Use] = []
        self._bound: dict[str, str] = {}

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            below = _below(alias.name)
            if below is None:
                continue
            self._note_import(below, node.lineno)
            if alias.asname:
                self._bound[alias.asname] = below
            else:
                self._bound[ROOT] = ""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        below = None if node.level else _below(node.module or "")
        if below is None:
            return
        for alias in node.names:
            if alias.name == "*":
                self._note(below, node.lineno)
                self._bind_all(below)
                continue
            full = f"{below}.{alias.name}".lstrip(".")
            self._note_import(full, node.lineno)
            self._bound[alias.asname or alias.name] = full

    def _bind_all(self, below: str) -> None:
        try:
            names = find(below).__all__
        except (AttributeError, ModuleNotFoundError):
            return
        self._bound.update({name: f"{below}.{name}".lstrip(".") for name in names})

    def visit_Assign(self, node: ast.Assign) -> None:
        full = self._full_name(node.value)
        for target in node.targets:
            if isinstance(target, ast.Name):
                if full is not None:
                    self._bound[target.id] = full  # slim = tf.contrib.slim
                else:
                    self._bound.pop(target.id, None)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        """Names that a function binds are its own: ``def train(session)`` hides a module."""
        outside = self._bound
        self._bound = dict(outside)
        every = node.args
        arguments = [*every.posonlyargs, *every.args, *every.kwonlyargs, every.vararg, every.kwarg]
        own = {one.arg for one in arguments if one is not None}
        body = node.body if isinstance(node.body, list) else [node.body]
        for statement in body:
            own |= {
                one.id
                for one in ast.walk(statement)
                if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
            }
        for name in own:
            self._bound.pop(name, None)
        self.generic_visit(node)
        self._bound = outside

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815  # the visitor's names
    visit_Lambda = visit_FunctionDef  # noqa: N815

    def visit_Try(self, node: ast.Try) -> None:
        expected = any(_expects_absence(handler) for handler in node.handlers)
        before = list(self.uses)
        for part in node.body:
            self.visit(part)
        if expected:  # what the body binds counts, but not what it uses
            self.uses = before
        for other in (*node.handlers, *node.orelse, *node.finalbody):
            self.visit(other)

    def visit_Call(self, node: ast.Call) -> None:
        full = self._full_name(node.func)
        if full is None:
            self.generic_visit(node)
            return
        given = (
            one.arg
            for one in node.keywords
            if one.arg and not (isinstance(one.value, ast.Constant) and one.value.value is None)
        )
        self._note(full, node.lineno, tuple(given), tuple(_urls(node)))
        self._visit_base(node.func)
        for part in (*node.args, *node.keywords):
            self.visit(part)

    def visit_Attribute(self, node: ast.Attribute | ast.Subscript) -> None:
        full = self._full_name(node)
        if full is None:
            self.generic_visit(node)
        else:
            self._note(full, node.lineno)
            self._visit_base(node)

    visit_Subscript = visit_Attribute  # noqa: N815

    def _visit_base(self, node: ast.expr) -> None:
        """Note the names in the call that a chain of attributes begins with, if it does."""
        while isinstance(node, ast.Attribute):
            node = node.value
        if isinstance(node, ast.Call):
            self.visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        full = self._full_name(node)
        if full and isinstance(node.ctx, ast.Load):
            self._note(full, node.lineno)

    def _note(
        self, name: str, line: int, keywords: tuple[str, ...] = (), urls: tuple[str, ...] = ()
    ) -> None:
        self.uses.append(_Use(name.removeprefix("compat.v1").lstrip("."), line, keywords, urls))

    def _note_import(self, name: str, line: int) -> None:
        if name not in ABSENT:  # the import works, and only the names are absent
            self._note(name, line)

    def _full_name(self, node: ast.expr) -> str | None:
        """The name of a chain of attributes below ``tensorflow``; None if it is not one."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute | ast.Subscript):
            if isinstance(node, ast.Attribute):
                parts.append(node.attr)
            elif not parts and getattr(node.value, "attr", "") == "__dict__":
                # tf.logging.__dict__["INFO"] is tf.logging.INFO
                if not isinstance(key := getattr(node.slice, "value", None), str):
                    return None
                parts.append(key)
                node = node.value
                assert isinstance(node, ast.Attribute)
            else:
                return None
            node = node.value
        if isinstance(node, ast.Call):
            made = self._full_name(node.func)
            base = DATASET if made is not None and _makes_dataset(made) else None
        else:
            base = self._bound.get(node.id) if isinstance(node, ast.Name) else None
        return None if base is None else ".".join(filter(None, [base, *reversed(parts)]))


def _makes_dataset(name: str) -> bool:
    """Whether a call makes a dataset: by a class, or by a method that returns one."""
    space, _, last = name.removeprefix("compat.v1.").rpartition(".")
    if space == DATASET:
        return not last.startswith(("make_", "options", "reduce"))
    return space in ("data", "contrib.data") and last.endswith("Dataset")


def _below(module: str) -> str | None:
    if module == ROOT:
        return ""
    if module.startswith(f"{ROOT}."):
        return module.removeprefix(f"{ROOT}.")
    if module == PACKAGE or module.startswith(f"{PACKAGE}."):
        return module.removeprefix(PACKAGE).lstrip(".")
    return None


def _expects_absence(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {getattr(kind, "id", "") for kind in kinds}
    return handler.type is None or bool(
        names & {"AttributeError", "ImportError", "ModuleNotFoundError", "Exception"}
    )


Judgements = dict[str, tuple[str, list[int]]]
"""For each name: the reason to report it, and the lines that use it."""


def _judged(names: _Names) -> tuple[Judgements, Judgements, Judgements]:
    """The names that are absent, those accepted without effect, and those that lack an extra."""
    absent: Judgements = {}
    inert: Judgements = {}
    lacking: Judgements = {}
    for use in names.uses:
        why = _inert(use)
        if why is not None:
            _note(inert, use.name, f"tf.{use.name}: {why}", use.line)
        for name, reason in _missing(use):
            _note(absent, name, reason, use.line)
        for name, reason in _lacking(use):
            _note(lacking, name, reason, use.line)
    return absent, inert, lacking


def _note(judgements: Judgements, name: str, why: str, line: int) -> None:
    _, lines = judgements.setdefault(name, (why, []))
    if line not in lines:
        lines.append(line)


def _inert(use: _Use) -> str | None:
    name = use.name
    if name in INERT:
        # A call with the timeout only has all the effect that it asks for.
        has_effect = use.keywords and set(use.keywords) == {TIMEOUTS.get(name)}
        return None if has_effect else INERT[name]
    if not can_write() and name.startswith(SUMMARIES):
        return f"nothing is written; to have event files: {extras.command_for('summaries')}"
    return None


def _missing(use: _Use) -> Iterator[tuple[str, str]]:
    """The names of a use that will fail when the script reaches it, each with the reason."""
    try:
        found = find(use.name)
    except (AbsentNameError, ModuleNotFoundError) as error:
        if not _is_of_an_extra(error):
            yield use.name, str(error)
        return
    except AttributeError:
        why = f": {DATASETS}" if use.name.startswith(DATASET) else ""
        yield use.name, f"tf.{use.name} is not in {PACKAGE}{why}"
        return
    refused = REFUSED.get(use.name, {})
    known = _arguments(found) if use.keywords else None
    for keyword in use.keywords:
        name = f"{use.name}({keyword}=)"
        if keyword in refused:
            yield name, f"tf.{use.name} refuses the argument {keyword}: {refused[keyword]}"
        elif known is not None and keyword not in known:
            there = ", ".join(known)
            yield name, f"tf.{use.name} has no argument {keyword}; it has: {there}"


def _lacking(use: _Use) -> Iterator[tuple[str, str]]:
    """What in a use needs an extra that is not installed, each with the reason."""
    for url in use.urls:
        if not _is_installed("fsspec"):
            yield url, f"{url!r} is a URL, which needs fsspec: {extras.command_for('files')}"
    try:
        found = find(use.name)
    except ModuleNotFoundError as error:
        if _is_of_an_extra(error):
            yield use.name, str(error)
        return
    except AttributeError:
        return
    for name, (module, project, extra) in NEEDS.items():
        # The same function has several names, such as `tf.io.decode_png`.
        if not _is_installed(module) and found is find(name):
            yield use.name, f"tf.{use.name} needs {project}: {extras.command_for(extra)}"


def _is_of_an_extra(error: Exception) -> bool:
    missing = getattr(error, "name", None) or ROOT
    return isinstance(error, ModuleNotFoundError) and not missing.startswith((ROOT, PACKAGE))


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # of a package around it; it was made unavailable
        return False


def _urls(call: ast.Call) -> Iterator[str]:
    for argument in (*call.args, *(one.value for one in call.keywords)):
        for part in argument.elts if isinstance(argument, ast.List | ast.Tuple) else [argument]:
            text = part.value if isinstance(part, ast.Constant) else None
            if isinstance(text, str) and _URL.match(text) and not text.startswith("file://"):
                yield text


_URL = re.compile(r"\w+://")


def _arguments(found: Any) -> Mapping[str, inspect.Parameter] | None:
    """The arguments that a callable takes; None if they are unknown, or if it takes any."""
    if not (inspect.isclass(found) or inspect.isroutine(found)):
        return None
    try:
        parameters = inspect.signature(found).parameters
    except (TypeError, ValueError):
        return None
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    return None if takes_any else parameters


def _findings(path: Path, judgements: Judgements) -> Iterator[Finding]:
    for name, (why, lines) in sorted(judgements.items(), key=lambda item: item[1][1][0]):
        yield Finding(os.fspath(path), name, why, tuple(sorted(lines)))


def _local(tree: ast.AST, path: Path, root: Path) -> Iterator[Path]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(root, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = root
            if node.level:
                base = path.parent
                for _ in range(node.level - 1):
                    base = base.parent
            module = node.module or ""
            yield from _files(base, module)
            for alias in node.names:
                yield from _files(base, f"{module}.{alias.name}".lstrip("."))


def _files(base: Path, module: str) -> Iterator[Path]:
    parts = [part for part in module.split(".") if part and part != "*"]
    for count in range(1, len(parts) + 1):
        place = base.joinpath(*parts[:count])
        for path in (place / "__init__.py", place.with_name(f"{place.name}.py")):
            if path.is_file():
                yield path
