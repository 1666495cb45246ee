"""Each kind of source, file format and sink is a class that says what it is, and is listed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from aioqueue.inputs import Entry, Sink, Source
from aioqueue.items.declared_kinds import KindRegistry
from aioqueue.readers.reader import FileFormat
from aioqueue.sources.kinds.source import SOURCES, BuiltinSource


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
