"""The guide's tables of names say what is true of the module."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import aioqueue.compat.v1 as tf
from aioqueue.compat.v1.__main__ import main
from aioqueue.compat.v1.absent import REASONS
from aioqueue.compat.v1.protos import EXAMPLE_MESSAGES
from tests.kit.children import ROOT

GUIDE = ROOT / "docs" / "howto" / "tensorflow1.md"


def public_names(space: ModuleType, path: str = "tf") -> Iterator[str]:
    """Everything public below a namespace, by its full name; namespaces themselves left out."""
    for name in space.__all__:
        found = getattr(space, name)
        if isinstance(found, ModuleType):
            yield from public_names(found, f"{path}.{name}")
        else:
            yield f"{path}.{name}"


def table(heading: str) -> list[tuple[set[str], str]]:
    """The rows of the table below a heading: the names in the first column, and the second."""
    text = GUIDE.read_text(encoding="utf-8").split(f"### {heading}\n")[1].split("\n### ")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    return [(set(re.findall(r"`([^`]+)`", first)), second.strip()) for first, second in rows]


def listed(heading: str) -> list[str]:
    return [name for names, _ in table(heading) for name in names]


def test_every_public_name_is_in_the_tables_once() -> None:
    names = {*public_names(tf), *(f"tf.train.{name}" for name in EXAMPLE_MESSAGES)} - {
        "tf.__version__"
    }
    told = listed("Different") + listed("As in TensorFlow")
    assert sorted(names - set(told)) == [], "not in the guide"
    assert sorted(set(told) - names) == [], "in the guide, and not there"
    assert sorted(told) == sorted(set(told)), "twice in the guide"


def test_a_check_says_what_the_guide_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = re.search(
        r"For the script\n\n```text\n(.*?)```\n\nit prints, where .*?,\n\n```text\n(.*?)```",
        GUIDE.read_text(encoding="utf-8"),
        re.DOTALL,
    )
    assert shown is not None
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    Path("train.py").write_text(shown[1], encoding="utf-8")
    assert main(["--check", "train.py"]) == 1
    assert capsys.readouterr().out.split() == shown[2].split()


def test_what_is_absent_is_told_with_the_reason_that_the_error_gives() -> None:
    told = {(name, reason) for names, reason in table("Absent") for name in names}
    assert told == {(f"tf.{name}", reason) for name, reason in REASONS.items()}


def test_each_difference_is_explained() -> None:
    rows = table("Different")
    assert len(rows) > 10
    assert all(len(how) > 20 for _, how in rows)
