"""The fork server imports what processes need, once for all of them.

And they find everything as if each had imported it by itself.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import aioqueue
from aioqueue.processes import stack_dumps
from aioqueue.processes.fork_server import server
from aioqueue.processes.fork_server.client import ForkServer
from tests.kit.processing import is_running, open_files
from tests.kit.worlds import PATIENCE, spin_until
from tests.workers.test_processes_life import program, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no fork server")

MAIN = """
import os, sys

LOG = sys.argv[1]
file = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(file, f"{__name__} {os.getpid()}\\n".encode())
os.close(file)

import multiprocessing, random, subprocess, threading, time
import numpy as np
from aioqueue import sync
from aioqueue.workers.runner import prepare

def start_a_process():
    nothing = subprocess.DEVNULL
    started = subprocess.Popen(["sleep", "600"], stdout=nothing, stderr=nothing)
    started.returncode = 0  # nobody waits for it

def family(number):
    return os.getpid(), os.getppid()

def imports():
    with open(LOG) as log:
        return log.read().count("__mp_main__")

def prepared(function, source=(0,)):
    queue = sync.FIFOQueue(4)
    with sync.Coordinator() as coord:
        coord.start(prepare(source, function, into=queue, where="process", workers=1))
        return list(queue)
"""

TWICE = """
if __name__ == "__main__":
    for _ in range(2):
        print(*prepared(family)[0])
"""


def imported(log: Path) -> list[tuple[str, int]]:
    """The names under which the main module was imported, and the processes."""
    if not log.exists():
        return []
    lines = [line.split() for line in log.read_text().splitlines()]
    return [(name, int(pid)) for name, pid in lines]


def families(text: str, path: Path) -> tuple[list[tuple[int, int]], list[tuple[str, int]]]:
    """The worker of each run and its fork server; and what `imported` tells, after the program."""
    log = path / "log"
    output, errors, code = run(text, log, path=path)
    assert (errors, code) == ("", 0)
    pairs = [tuple(map(int, line.split())) for line in output.splitlines()]
    (main, _), *rest = imported(log)
    assert main == "__main__"
    return [(worker, server) for worker, server in pairs], rest


WARM = {
    "": "nothing special",
    "GENERATOR = np.random.default_rng(7)": "a generator that was seeded",
    "np.ones((500, 500)) @ np.ones((500, 500))": "threads that end before a fork",
    "os.environ['AIOQUEUE_TEST'] = '1'": "a variable",
    "RUNNER = prepare([0], family, into=sync.FIFOQueue(1), where='process')": "a prepare",
}
COLD = {
    "threading.Thread(target=threading.Event().wait, daemon=True).start()": "a thread",
    "FILE = os.open(LOG, os.O_RDONLY)": "an open file",
    "start_a_process()": "a process",
    "GENERATOR = np.random.default_rng()": "a generator that was not seeded",
    "if multiprocessing.current_process().name.endswith('server'): raise SystemExit(3)": "an exit",
    "if multiprocessing.current_process().name.endswith('server'): 1 / 0": "a failure",
}


class TestTheMainModule:
    @pytest.mark.slow
    @pytest.mark.parametrize("line", WARM, ids=WARM.get)
    def test_is_imported_once(self, line: str, tmp_path: Path) -> None:
        """Over several runs of `prepare`, and in none of the processes."""
        pairs, rest = families(MAIN + line + TWICE, tmp_path)
        ((first, server), (second, same)) = pairs
        assert server == same
        assert first != second
        assert rest == [("__mp_main__", server)]

    @pytest.mark.slow
    @pytest.mark.parametrize("line", COLD, ids=COLD.get)
    def test_with_a_fork_hazard_is_imported_by_each_process(
        self, line: str, tmp_path: Path
    ) -> None:
        """The server then has nothing of it when it forks."""
        pairs, rest = families(MAIN + line + TWICE, tmp_path)
        ((first, server), (second, same)) = pairs
        assert server == same
        assert rest == [("__mp_main__", pid) for pid in (server, first, second)]

    @pytest.mark.slow
    def test_that_kills_the_server(self, tmp_path: Path) -> None:
        line = "if multiprocessing.current_process().name.endswith('server'): os._exit(3)"
        pairs, rest = families(MAIN + line + TWICE, tmp_path)
        ((first, server), (second, same)) = pairs
        assert server == same
        (_, killed), *rest = rest
        assert killed != server
        assert rest == [("__mp_main__", first), ("__mp_main__", second)]

    @pytest.mark.slow
    def test_is_imported_by_each_process_on_request(self, tmp_path: Path) -> None:
        text = TWICE.replace("    for", "    multiprocessing.set_forkserver_preload([])\n    for")
        ((first, _), (second, _)), rest = families(MAIN + text, tmp_path)
        assert rest == [("__mp_main__", first), ("__mp_main__", second)]

    @pytest.mark.slow
    def test_is_imported_once_there_is_a_prepare(self, tmp_path: Path) -> None:
        """No process has been started yet."""
        text = """
if __name__ == "__main__":
    prepare([0], family, into=sync.FIFOQueue(1), where="process")
    while not imports():
        pass
"""
        assert families(MAIN + text, tmp_path)[0] == []


@pytest.mark.slow
def test_the_program_ends_while_the_server_imports(tmp_path: Path) -> None:
    """The server ends, although it does not read the pipe meanwhile."""
    log = tmp_path / "log"
    text = """
if __name__ == "__main__":
    prepare([0], family, into=sync.FIFOQueue(1), where="process")
    print("ready", flush=True)
time.sleep(600)
"""
    with program(MAIN + text, log, path=tmp_path) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        spin_until(lambda: len(imported(log)) == 2)
        server = imported(log)[1][1]
        assert is_running(server)
        running.kill()
        running.wait(PATIENCE)
        spin_until(lambda: not is_running(server))


class TestWhatAProcessFinds:
    @pytest.mark.slow
    def test_random_numbers_of_its_own(self, tmp_path: Path) -> None:
        """Generators that nobody has seeded differ; those that the module seeds are equal."""
        text = """
OURS, SEEDED = random.Random(), random.Random(5)

def numbers(number):
    drawn = [random.random(), OURS.random(), np.random.random(), SEEDED.random()]
    return os.getpid(), os.getppid(), *drawn

if __name__ == "__main__":
    for _ in range(2):
        print(*prepared(numbers)[0])
"""
        output, errors, code = run(MAIN + text, tmp_path / "log", path=tmp_path)
        assert (errors, code) == ("", 0)
        first, second = (line.split() for line in output.splitlines())
        assert first[1] == second[1]
        assert all(a != b for a, b in zip(first[2:5], second[2:5], strict=True))
        assert first[5] == second[5]
        assert len(imported(tmp_path / "log")) == 2  # it was warm

    @pytest.mark.slow
    def test_the_same_numbers_if_the_module_has_seeded_them(self, tmp_path: Path) -> None:
        text = """
np.random.seed(3)

def numbers(number):
    return np.random.random()

if __name__ == "__main__":
    print(prepared(numbers) == prepared(numbers), file=sys.stderr)
"""
        output, errors, code = run(MAIN + text, tmp_path / "log", path=tmp_path)
        assert (output, errors, code) == ("", "True\n", 0)
        assert len(imported(tmp_path / "log")) == 2

    @pytest.mark.slow
    def test_the_current_environment_and_paths(self, tmp_path: Path) -> None:
        text = """
def surroundings(number):
    variables = os.environ.get("AIOQUEUE_TEST"), os.environ.get("AIOQUEUE_OLD")
    return *variables, os.getcwd(), sys.path[-1]

if __name__ == "__main__":
    os.environ["AIOQUEUE_OLD"] = "1"
    prepared(surroundings)
    os.environ["AIOQUEUE_TEST"] = "now"
    del os.environ["AIOQUEUE_OLD"]
    os.chdir(os.path.dirname(LOG))
    sys.path.append(LOG)
    print(prepared(surroundings) == [("now", None, os.getcwd(), LOG)])
"""
        assert run(MAIN + text, tmp_path / "log", path=tmp_path) == ("True\n", "", 0)

    @pytest.mark.slow
    def test_a_module_that_was_edited(self, tmp_path: Path) -> None:
        """Processes with the old version continue, and their server ends with them."""
        (tmp_path / "edited.py").write_text("VALUE = 'old'")
        text = """
import edited

def value(number):
    return edited.VALUE, os.getppid()

if __name__ == "__main__":
    go_on = threading.Event()

    def source():
        yield 0
        go_on.wait()
        yield 1

    queue = sync.FIFOQueue(4)
    with sync.Coordinator() as coord:
        coord.start(prepare(source(), value, into=queue, where="process", workers=1))
        before, server = queue.dequeue()
        with open(edited.__file__, "w") as file:
            file.write("VALUE = 'new value'")
        ((now, another),) = prepared(value)
        go_on.set()
        print(before, now, queue.dequeue() == (before, server), server != another)
    print(os.waitid(os.P_PID, server, os.WEXITED).si_status)
"""
        output, errors, code = run(MAIN + text, tmp_path / "log", path=tmp_path)
        assert (output, errors, code) == ("old new value True True\n0\n", "", 0)


def address_of(server: ForkServer) -> str:
    """The address of its socket."""
    address: str = server._forkserver_address  # type: ignore[attr-defined]
    return address


class TestOneServer:
    @pytest.mark.slow
    def test_its_exit_code_is_read_once(self) -> None:
        before = open_files()
        server = ForkServer(())
        assert not server.has_ended()
        os.kill(server.pid, signal.SIGKILL)
        spin_until(server.has_ended)
        assert os.path.lexists(address_of(server))
        assert server.reap() == -signal.SIGKILL
        assert server.has_ended()
        assert not os.path.lexists(address_of(server))
        assert open_files() == before

    def test_other_code_may_have_read_its_exit_code(self) -> None:
        server = ForkServer(())
        os.kill(server.pid, signal.SIGKILL)
        os.waitpid(server.pid, 0)
        assert server.has_ended()
        assert server.reap() is None

    @pytest.mark.slow
    def test_it_is_dropped(self) -> None:
        """Then it ends by itself, and its exit status is read."""
        before = open_files()
        server = ForkServer(())
        pid = server.pid
        del server
        assert open_files() == before
        spin_until(lambda: not is_running(pid))

        def is_forgotten() -> bool:
            ForkServer(()).reap()  # a new server collects the ended ones first
            return not Path(f"/proc/{pid}").exists()

        spin_until(is_forgotten)

    @pytest.mark.slow
    def test_a_fork_of_the_program_closes_what_keeps_it_alive(self) -> None:
        server = ForkServer(())
        server.close_keepalive()
        spin_until(server.has_ended)
        assert server.reap() is not None
        server.close_keepalive()  # nothing more

    @pytest.mark.slow
    def test_it_is_current_until_the_program_changes(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        server = ForkServer(())
        try:
            assert server.is_current()
            monkeypatch.setenv("AIOQUEUE_TEST", "1")
            assert server.is_current()  # processes are told
            assert server.environment() == {"AIOQUEUE_TEST": "1"}
            with monkeypatch.context() as patched:
                patched.chdir(tmp_path)
                assert not server.is_current()
            with monkeypatch.context() as patched:
                patched.setattr(sys, "argv", ["another"])
                assert not server.is_current()
            with monkeypatch.context() as patched:
                patched.setattr("multiprocessing.forkserver._forkserver._preload_modules", ["json"])
                assert not server.is_current()
            assert server.is_current()
        finally:
            server.reap()


FORKS = """
if __name__ == "__main__":
    print(*prepared(family)[0])
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    print(*prepared(family)[0])
"""


@pytest.mark.slow
def test_a_fork_of_the_program_does_not_end_the_server(tmp_path: Path) -> None:
    ((_, server), (_, same)), _ = families(MAIN + FORKS, tmp_path)
    assert server == same


ROOT = Path(aioqueue.__file__).parents[1]
WITHOUT_PROC = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]


@pytest.mark.slow
def test_without_proc_processes_work_and_nothing_is_logged(tmp_path: Path) -> None:
    can = shutil.which("unshare") and not subprocess.run([*WITHOUT_PROC, "true"]).returncode
    if not can:
        pytest.skip("this user cannot hide /proc")
    script = tmp_path / "program.py"
    script.write_text(MAIN + TWICE)
    done = subprocess.run(
        [*WITHOUT_PROC, sys.executable, "-W", "error", str(script), str(tmp_path / "log")],
        capture_output=True, text=True, timeout=90, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (done.stderr, done.returncode) == ("", 0)
    assert len(done.stdout.split()) == 4
    by = [name for name, _ in imported(tmp_path / "log")]
    assert by == ["__main__", "__mp_main__", "__mp_main__", "__mp_main__"]  # the server has tried


def test_without_proc_files_are_found_and_threads_are_assumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(path: str) -> list[str]:
        raise FileNotFoundError(path)

    expected = {fd for fd in server.open_files() if fd < 4096}
    exists = os.path.exists
    monkeypatch.setattr(os, "listdir", refuse)
    monkeypatch.setattr(os.path, "exists", lambda path: "/proc" not in path and exists(path))
    assert server.open_files() == expected
    assert server.fork_hazard(expected) == "threads"
    assert stack_dumps.state_of(os.getpid()) == ("running", "")


@pytest.mark.slow
def test_too_long_a_folder_for_temporary_files_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    _, errors, code = run(MAIN + TWICE, tmp_path / "log", path=tmp_path)
    assert code == 1
    assert "TMPDIR: the folder for temporary files" in errors
    assert "Set TMPDIR to a folder with a shorter name" in errors
