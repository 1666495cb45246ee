"""Programs that are no Python interpreter: frozen ones, and those that embed Python.

multiprocessing starts `sys.executable`, which is the program itself there. Such a program has
workers if it does as multiprocessing asks, and never starts itself without end.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import subprocess
import sys
from multiprocessing import spawn as multiprocessing_spawn
from pathlib import Path

import pytest

import aioqueue
from aioqueue.processes.fork_server import bootstrap, spawn
from aioqueue.processes.fork_server.bootstrap import CannotStartError

ROOT = Path(aioqueue.__file__).parents[1]

PROGRAM = """
import multiprocessing.spawn, os, sys
from aioqueue.inputs import numbers
from frozen_functions import square

if __name__ == "__main__":
    print("main starts", flush=True)
    assert int(os.environ.get("DEPTH", "0")) < 9, "it starts itself without end"
    os.environ["DEPTH"] = str(int(os.environ.get("DEPTH", "0")) + 1)
    if os.environ.get("ASKED") != "no":
        {freeze_support}()
    items = numbers(40).prepare(square, workers=1, where="process").batch(8)
    print("batches", [int(batch.sum()) for batch in items], flush=True)
"""

FUNCTIONS = """
def square(x):
    return x * x
"""

OPTIONAL = re.findall(
    r"\w+",
    """
IPython PIL aiokafka fsspec google hypothesis jax matplotlib mypy opentelemetry pandas
prometheus_client pyarrow pytest ray rich scipy setuptools simplejpeg sklearn starlette tensorboardX
tensorflow tkinter torch tqdm trio uvicorn uvloop
""",
)
"""What the frozen program does not need, and PyInstaller would add where it is installed."""

BATCHES = f"batches {[sum(x * x for x in range(n, n + 8)) for n in range(0, 40, 8)]}"

# It does what PyInstaller's programs do: they run the resource tracker, and else the main module.
EMBEDDING = """#!/bin/sh
for word; do
    case $word in
    *resource_tracker*) exec "{python}" "$@" ;;
    esac
done
exec "{python}" -c "
import runpy, sys
sys.frozen, sys.executable = {frozen}, '$0'
import multiprocessing
multiprocessing.set_executable('$0')
sys.argv[0] = '{program}'
runpy.run_path('{program}', run_name='__main__')
" "$@"
"""


def run(program: list[str], folder: Path, **environment: str) -> tuple[str, str]:
    """What a program writes to its output and to its error output."""
    path = os.pathsep.join([str(folder), str(ROOT)])
    done = subprocess.run(
        program,
        capture_output=True,
        text=True,
        timeout=90,
        env={**os.environ, "PYTHONPATH": path, **environment},
        check=False,
    )
    return done.stdout, done.stderr


def check_that_it_ends(program: list[str], folder: Path) -> None:
    """Check that a program that starts itself in place of a worker says so, and ends."""
    out, err = run(program, folder, ASKED="no")
    assert "has started itself instead of a worker process" in err
    assert "multiprocessing.freeze_support() first" in err
    assert "multiprocessing.set_executable()" in err
    assert out.count("main starts") < 9


def check_that_it_has_workers(program: list[str], folder: Path) -> None:
    """Check that a program has workers."""
    out, err = run(program, folder)
    assert BATCHES in out.splitlines(), err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.joinpath("frozen_functions.py").write_text(FUNCTIONS)
    return tmp_path


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_program_of_pyinstaller(folder: Path) -> None:
    pytest.importorskip("PyInstaller", reason="it freezes programs: pip install '.[frozen]'")
    program = folder / "program.py"
    program.write_text(PROGRAM.format(freeze_support="multiprocessing.freeze_support"))
    builder = [sys.executable, "-m", "PyInstaller", "--log-level=ERROR", "--noconfirm"]
    paths = [f"--paths={folder}", f"--paths={ROOT}"]
    paths += [f"--{kind}={folder / kind}" for kind in ("distpath", "workpath", "specpath")]
    left_out = [f"--exclude-module={name}" for name in OPTIONAL]
    subprocess.run([*builder, *paths, *left_out, str(program)], check=True, timeout=280)
    built = [str(folder / "distpath" / "program" / "program")]
    check_that_it_has_workers(built, Path("/nowhere"))
    check_that_it_ends(built, Path("/nowhere"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the program is a shell script")
@pytest.mark.parametrize("frozen", [True, False])
def test_a_program_that_runs_python_itself(frozen: bool, folder: Path) -> None:
    program = folder / "program.py"
    program.write_text(PROGRAM.format(freeze_support="multiprocessing.spawn.freeze_support"))
    app = folder / "app"
    app.write_text(EMBEDDING.format(python=sys.executable, program=program, frozen=frozen))
    app.chmod(0o755)
    if frozen:
        check_that_it_has_workers([str(app)], folder)
    check_that_it_ends([str(app)], folder)


class TestTheExecutable:
    @pytest.mark.parametrize(
        ("name", "is_python"),
        [
            ("python", True),
            ("python3.14t", True),
            ("pythonw.exe", True),
            ("PyPy3", True),
            ("trainer", False),
            ("uwsgi", False),
            ("my-python", False),
            ("", False),
        ],
    )
    def test_an_interpreter_is_recognised_by_its_name(
        self, name: str, is_python: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = name and f"/opt/tools/{name}"
        monkeypatch.setattr(multiprocessing_spawn, "get_executable", lambda: os.fsencode(path))
        assert bootstrap.is_python() is is_python
        assert spawn.uses_fork_server() is (is_python and sys.platform == "linux")

    def test_a_link_to_an_interpreter_is_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tmp_path.joinpath("python3").touch()
        tmp_path.joinpath("trainer").symlink_to(tmp_path / "python3")
        monkeypatch.setattr(
            multiprocessing_spawn, "get_executable", lambda: str(tmp_path / "trainer")
        )
        assert bootstrap.is_python()

    def test_a_frozen_program_is_no_interpreter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "frozen", True, raising=False)
        assert not spawn.uses_fork_server()

    def test_without_an_interpreter_the_error_names_the_cause(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(multiprocessing_spawn, "get_executable", lambda: None)
        process = spawn.StartedProcess(daemon=True)
        with pytest.raises(CannotStartError, match=r"empty.*multiprocessing\.set_executable\(\)"):
            process.start()
        assert process not in multiprocessing.active_children()
        assert bootstrap.STARTS not in os.environ
