"""The compiled core: it is built on request, says so, and shows its source."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import linecache
import os
import pickle
import subprocess
import sys
import sysconfig
import tomllib
import traceback
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import aioqueue
from aioqueue.core.attempts import QueueState, Statistics
from tests.kit.worlds import core_of

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WHEEL = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
NAMES: list[str] = WHEEL["hooks"]["custom"]["modules"]


@pytest.mark.parametrize("name", NAMES)
def test_all_of_it_is_compiled_or_nothing(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__file__ is not None
    assert module.__file__.endswith(tuple(EXTENSION_SUFFIXES)) is aioqueue.__compiled__


def test_what_is_declared_in_c_is_compiled() -> None:
    package = Path(aioqueue.__file__).parent
    beside = {
        ".".join(("aioqueue", *path.relative_to(package).with_suffix("").parts))
        for path in package.rglob("*.pxd")
    }
    assert beside <= set(NAMES)


def test_a_traceback_shows_the_lines_of_the_source() -> None:
    linecache.clearcache()
    queue = aioqueue.FIFOQueue(1)
    try:
        core_of(queue).machine.begin("no attempt", None)
    except (AttributeError, TypeError) as error:  # what is compiled checks the type
        frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1]
    assert last.name.rpartition(".")[2] == "begin"
    assert Path(last.filename).name == "machine.py"
    assert last.line
    source = (Path(aioqueue.__file__).parent / "core/machine.py").read_text("utf-8").splitlines()
    assert last.line == source[(last.lineno or 0) - 1].strip()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_what_can_be_pickled(protocol: int) -> None:
    statistics = aioqueue.FIFOQueue(3).statistics()
    again = pickle.loads(pickle.dumps((QueueState.OPEN, statistics), protocol))
    assert again == (QueueState.OPEN, statistics)
    assert isinstance(again[1], Statistics)


# How it is built.


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`hatch_build`, with as much of hatchling as it needs."""

    class Interface:
        __class_getitem__ = classmethod(lambda cls, _: cls)

    interface: Any = ModuleType("interface")
    interface.BuildHookInterface = Interface
    for name in ("", ".builders", ".builders.hooks", ".builders.hooks.plugin"):
        monkeypatch.setitem(sys.modules, f"hatchling{name}", ModuleType(name))
    monkeypatch.setitem(sys.modules, "hatchling.builders.hooks.plugin.interface", interface)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


needs_hook = pytest.mark.skipif(
    not (ROOT / "hatch_build.py").is_file(), reason="these tests lie beside no sources"
)


@needs_hook
class TestHook:
    @pytest.mark.parametrize("asked", [None, "", "0"])
    def test_nothing_is_compiled_by_default(
        self, hook: Any, monkeypatch: pytest.MonkeyPatch, asked: str | None
    ) -> None:
        monkeypatch.delenv(hook.VARIABLE, raising=False)
        if asked is not None:
            monkeypatch.setenv(hook.VARIABLE, asked)
        build: dict[str, Any] = {}
        one = hook.CompilingHook()
        assert one.dependencies() == []
        one.initialize("standard", build)
        one.finalize("standard", build, "")
        assert build == {}

    def test_what_is_neither_is_refused(self, hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(hook.VARIABLE, "yes")
        with pytest.raises(SystemExit, match="AIOQUEUE_COMPILE: got 'yes'; expected 0 or 1"):
            hook.is_asked_for()

    def test_it_asks_for_a_compiler(self, hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(hook.VARIABLE, "1")
        assert [need.partition(">")[0] for need in hook.CompilingHook().dependencies()] == [
            "cython",
            "setuptools",
        ]

    def test_an_editable_install_is_refused(
        self, hook: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(hook.VARIABLE, "1")
        with pytest.raises(SystemExit, match="got an editable install"):
            hook.CompilingHook().initialize("editable", {})

    def test_where_it_cannot_be(self, hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(hook.VARIABLE, "1")
        pypy = SimpleNamespace(implementation=SimpleNamespace(name="pypy"))
        monkeypatch.setattr(hook, "sys", pypy)
        with pytest.raises(SystemExit, match="this is pypy"):
            hook.CompilingHook().initialize("standard", {})

    @pytest.mark.skipif(sys.platform == "win32", reason="setuptools looks for the compiler there")
    def test_what_is_missing_is_named(
        self, hook: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        compiler, header = tmp_path / "my-cc", tmp_path / "Python.h"
        monkeypatch.setenv("CC", f"{compiler} -pthread")
        monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
        missing = f"there is no C compiler '{compiler}': install one, such as the package gcc"
        assert hook.obstacle() == missing
        monkeypatch.setenv(hook.VARIABLE, "1")
        with pytest.raises(SystemExit) as caught:
            hook.CompilingHook().initialize("standard", {})
        assert str(caught.value) == (
            f"AIOQUEUE_COMPILE=1: {missing}; without it, the pure package is installed"
        )
        compiler.touch(0o755)
        assert hook.obstacle() == (
            f"there are no headers of Python ({header}): install them, as the package python3-dev"
        )
        header.touch()
        assert hook.obstacle() is None

    @pytest.mark.parametrize("failure", ["CompileError", "LinkError", "PlatformError"])
    def test_a_failure_is_one_sentence_and_leaves_no_folder(
        self, failure: str, hook: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        errors = pytest.importorskip("setuptools.errors", reason="setuptools is not installed")

        def fail(root: Path, modules: list[str], place: str) -> None:
            assert list(tmp_path.iterdir()) == [Path(place)]
            raise getattr(errors, failure)("command 'gcc' failed with exit code 1")

        one = hook.CompilingHook()
        one.root, one.config = str(ROOT), {"modules": []}
        monkeypatch.setenv(hook.VARIABLE, "1")
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        monkeypatch.setattr(hook, "obstacle", lambda: None)
        monkeypatch.setattr(hook, "compiled", fail)
        message = "the C compiler has failed: command 'gcc' failed with exit code 1$"
        with pytest.raises(SystemExit, match=message):
            one.initialize("standard", {})
        assert not list(tmp_path.iterdir())

    def test_a_build_leaves_no_folder(
        self, hook: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv(hook.VARIABLE, "1")
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        monkeypatch.setattr(hook, "obstacle", lambda: None)
        monkeypatch.setattr(hook, "compiled", lambda root, modules, place: [Path(place, "a.so")])
        for ends_well in (True, False):
            one = hook.CompilingHook()
            one.root, one.config = str(ROOT), {"modules": []}
            build: dict[str, Any] = {"force_include": {}}
            one.initialize("standard", build)
            assert (len(list(tmp_path.iterdir())), *build["force_include"].values()) == (1, "a.so")
            if ends_well:
                one.finalize("standard", build, "")
            del one
            gc.collect()
            assert not list(tmp_path.iterdir())


@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python always has a global lock"
)
def test_the_global_lock_stays_off() -> None:
    """An extension module that did not say it can do without would turn it on."""
    asked = "import sys, aioqueue.inputs; print(aioqueue.__compiled__, sys._is_gil_enabled())"
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", asked],
        env={name: value for name, value in os.environ.items() if name != "PYTHON_GIL"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == [str(aioqueue.__compiled__), "False"]


@pytest.mark.slow
def test_a_program_can_ask() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", "import aioqueue; print(aioqueue.__compiled__)"],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
        cwd=ROOT,
    )
    assert ran.stdout.strip() == str(aioqueue.__compiled__), ran.stderr
