"""Each kind of source, file format and sink is a class that says what it is, and is listed."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aioqueue import inputs
from aioqueue.inputs import Entry, Sink, Source
from aioqueue.items.declared_kinds import KindRegistry
from aioqueue.pipeline.sink import SINKS
from aioqueue.readers.reader import FORMATS, FileFormat
from aioqueue.sources.kinds.source import SOURCES, BuiltinSource

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["custom"]["extras"]

KINDS = [
    *((kind, kind._functions, kind._extra, kind._page) for kind in SOURCES.kinds()),
    *((kind, [kind.function], kind.extra, kind.page) for kind in FORMATS.kinds()),
    *((kind, [kind._function], kind._extra, kind._page) for kind in SINKS.kinds()),
]


@pytest.mark.parametrize(
    ("functions", "extra", "page"), [kind[1:] for kind in KINDS], ids=lambda value: str(value)
)
def test_what_a_kind_declares_exists(functions: Any, extra: str | None, page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for function in functions:
        found: Any = inputs
        for name in function.split("."):
            found = getattr(found, name)
        assert function.rpartition(".")[2] in text
    assert extra is None or extra in EXTRAS


def test_all_public_readers_and_sinks_are_listed() -> None:
    reading = {name for name in inputs.__all__ if name.startswith("read_")}
    assert {kind.function for kind in FORMATS.kinds()} == reading - {
        "read_journal",
        "read_quarantine",
    }
    writing = {name for name in inputs.__all__ if name.startswith("to_")}
    assert {kind._function for kind in SINKS.kinds()} == writing


def test_the_function_that_reads_what_a_sink_writes_has_a_format() -> None:
    reading = {kind.function for kind in FORMATS.kinds()}
    assert reading >= {kind._read_by for kind in SINKS.kinds()}


def test_listing_imports_what_is_not_yet_imported() -> None:
    code = (
        "from aioqueue.pipeline.sink import SINKS\n"
        "print(sorted(kind._function for kind in SINKS.kinds()))\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "['to_json_lines', 'to_parquet', 'to_tar', 'to_tfrecord']"


@pytest.mark.parametrize("root", [BuiltinSource, FileFormat, Sink])
def test_a_kind_of_the_package_that_lacks_a_declaration_is_refused(root: type) -> None:
    with pytest.raises(
        TypeError, match=r"class New: got no class attributes .*_?extra.*; expected"
    ):
        type("New", (root,), {"__module__": "aioqueue.sources.new"})


def test_a_kind_inherits_what_another_kind_declares() -> None:
    registry = KindRegistry("thing", ["size"], [])
    root = type("Thing", (), {"size": 0})
    parent = type("Parent", (root,), {"__module__": "aioqueue.new", "size": 1})
    child = type("Child", (parent,), {"__module__": "aioqueue.new"})
    registry.add(child, root)
    with pytest.raises(TypeError, match="got no class attributes size"):
        registry.add(type("Other", (root,), {"__module__": "aioqueue.new"}), root)
    assert registry.kinds() == (child,)


def test_a_source_of_the_user_has_safe_defaults_and_is_not_listed() -> None:
    class Letters(Source[str]):
        def entries(self) -> Iterator[Entry[str]]:
            yield Entry("a", 0, 0)

    source = Letters("letters")
    assert list(source) == list(source.epoch(1)) == ["a"]
    assert Letters not in SOURCES.kinds()
    assert len(list(source.shard(0, 2).epochs(1))) == 1
