"""What a new process takes over from the program."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from aioqueue.processes.fork_server import bootstrap
from aioqueue.processes.fork_server.bootstrap import Program


@pytest.mark.parametrize(
    ("name", "file", "imported", "reported"),
    [
        (None, None, False, {}),
        ("program", None, True, {"init_main_from_name": "program"}),
        (None, "/a/../program.py", True, {"init_main_from_path": "/program.py"}),
        ("program", "program.py", True, {"init_main_from_name": "program"}),
        ("package.__main__", "/package/__main__.py", False, {}),
        ("__main__", "/program.pyz/__main__.py", False, {}),
        (None, "<stdin>", False, {}),
        (None, "/bin/ipython", False, {}),
    ],
)
def test_which_main_module_is_imported(
    name: str | None,
    file: str | None,
    imported: bool,
    reported: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    main: Any = ModuleType("__main__")
    if name is not None:
        main.__spec__ = SimpleNamespace(name=name)
    if file is not None:
        main.__file__ = file
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert bootstrap.imports_main() == imported
    assert bootstrap.main_module() == reported


def test_a_relative_path_starts_at_the_original_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    main: Any = ModuleType("__main__")
    main.__file__ = "program.py"
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr("multiprocessing.process.ORIGINAL_DIR", str(tmp_path))
    assert bootstrap.main_module() == {"init_main_from_path": str(tmp_path / "program.py")}
    monkeypatch.setattr(sys, "path", ["", "/other", tmp_path])
    assert Program.current().sys_path == [str(tmp_path), "/other"]


def test_the_preparation_of_a_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    now = Program.current(with_main=False)
    data = now.preparation()
    assert data["dir"] == str(tmp_path)
    assert data["sys_argv"] == sys.argv
    assert not any(key.startswith("init_main") for key in data)
    monkeypatch.setattr(sys, "argv", ["another"])
    assert Program.current(with_main=False) != now


def test_a_working_directory_that_was_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    def getcwd() -> str:
        raise FileNotFoundError

    monkeypatch.setattr(os, "getcwd", getcwd)
    assert "dir" not in Program.current(with_main=False).preparation()


def test_source_times(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its own files, and none that are installed. Writing one of them changes the program."""
    file = tmp_path / "mine.py"
    file.write_text("")
    mine: Any = ModuleType("mine")
    mine.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "mine", mine)
    before = bootstrap.source_times()
    assert str(file) in before
    assert os.__file__ not in before
    assert pytest.__file__ not in before
    assert not bootstrap.has_changed(before)
    os.utime(file, ns=(1, 1))
    assert bootstrap.has_changed(before)
    file.unlink()
    assert bootstrap.has_changed(before)


def test_environment_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIOQUEUE_OLD", "1")
    monkeypatch.setenv("AIOQUEUE_GONE", "1")
    before = dict(os.environ)
    assert bootstrap.environment_changes(before) == {}
    monkeypatch.setenv("AIOQUEUE_OLD", "2")
    monkeypatch.setenv("AIOQUEUE_NEW", "")
    monkeypatch.delenv("AIOQUEUE_GONE")
    assert bootstrap.environment_changes(before) == {
        "AIOQUEUE_OLD": "2",
        "AIOQUEUE_NEW": "",
        "AIOQUEUE_GONE": None,
    }
