"""The guide shows what `--check` prints, and the reference has the tables of names."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from aioqueue.compat.v1.__main__ import main
from tests.compat.record_names import PAGE, page, public_names, rows
from tests.kit.children import ROOT

GUIDE = ROOT / "docs" / "howto" / "tensorflow1.md"


def test_the_tables_have_every_name_once() -> None:
    text = PAGE.read_text("utf-8")
    assert page(text) == text, "run: python -m tests.compat.record_names"
    different = [name for names, _ in rows(text, "Different") for name in names]
    assert sorted(different) == sorted({*different} & {*public_names()}), "twice, or not there"


def test_each_difference_is_explained() -> None:
    listed = rows(PAGE.read_text("utf-8"), "Different")
    assert len(listed) > 10
    assert all(len(how) > 20 for _, how in listed)


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
