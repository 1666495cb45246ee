"""Functions for worker processes, their stacks and states."""

from __future__ import annotations

import functools
import os
import pickle
import subprocess
import sys
import zipapp
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from aioqueue.processes import stack_dumps
from aioqueue.processes.fork_server.bootstrap import main_module_hint
from aioqueue.processes.function_pickles import dumped
from aioqueue.processes.stack_dumps import state_of
from tests.kit.worlds import PATIENCE

ROOT = Path(__file__).resolve().parents[2]

PROMPT = """
import functools
from aioqueue import InvalidArgumentError, sync
from aioqueue.inputs import numbers

def double(values):
    return [2 * value for value in values]

class Doubling:
    def __call__(self, value):
        return 2 * value

for make in (
    lambda: sync.Batcher(double, where="process"),
    lambda: sync.Batcher(functools.partial(double), where="process"),
    lambda: numbers(3).prepare(double, where="process"),
    lambda: numbers(3).prepare(Doubling(), where="process"),
):
    try:
        make()
    except InvalidArgumentError as error:
        print(error)
"""


@pytest.mark.slow
def test_a_function_of_the_prompt_is_refused_at_once() -> None:
    """Not at the first call, or by the loop over a pipeline of another cell."""
    command = [sys.executable, "-W", "error", "-c", PROMPT]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    reported = ran.stdout.splitlines()
    assert len(reported) == 4
    for name, line in zip(["double"] * 3 + ["Doubling"], reported, strict=True):
        assert "which a new process cannot import" in line
        assert f"'{name}' is defined in a cell of a notebook or at a prompt" in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["-"], "'double' is defined in a program that is no file; write it to a file and import"),
        (["-m", "package"], "'double' is defined in the module 'package.__main__', which only the"),
        (["program.pyz"], "'double' is defined in the module '__main__', which only the program"),
    ],
    ids=["from standard input", "a package", "a zip archive"],
)
def test_a_function_of_a_program_that_no_process_imports_is_refused(
    command: list[str], why: str, tmp_path: Path
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__main__.py").write_text(PROMPT)
    zipapp.create_archive(package, tmp_path / "program.pyz")
    ran = subprocess.run(
        [sys.executable, "-W", "error", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input=PROMPT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    reported = ran.stdout.splitlines()
    assert len(reported) == 4
    assert why in reported[0]


def test_the_error_names_a_main_module_that_only_the_program_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec("package.__main__", None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert "in the module 'package.__main__'" in main_module_hint()
    main.__spec__ = None
    assert "at a prompt" in main_module_hint()


@pytest.mark.skipif(stack_dumps.SIGNAL is None, reason="there is no signal to ask with")
def test_a_process_that_has_ended_has_no_stack() -> None:
    pair = stack_dumps.dump_pair()
    assert pair is not None
    reader, writer = pair
    process = subprocess.Popen(["true"])
    process.wait()
    assert reader.ask(process.pid, PATIENCE) == ()
    reader.close()
    writer.close()
    assert reader.ask(process.pid, PATIENCE) == ()


@pytest.mark.skipif(sys.platform != "linux", reason="the states are those of Linux")
def test_a_process_that_was_waited_for_has_ended() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert state_of(process.pid) == ("ended", "it is gone")
    assert state_of(os.getpid())[0] == "running"


def test_a_function_of_a_module_is_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even without a main module, and with data that look like its name."""
    monkeypatch.setattr("aioqueue.processes.function_pickles.imports_main", lambda: False)
    function = functools.partial(max, "__main__")
    again = pickle.loads(dumped(function, pickle.Pickler))
    assert (again.func, again.args) == (max, ("__main__",))
