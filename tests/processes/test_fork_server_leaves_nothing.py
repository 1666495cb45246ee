"""Whatever ends a program with worker processes: no file and no folder stays."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aioqueue.system import posix
from tests.kit.worlds import PATIENCE, spin_until
from tests.processes.test_fork_server import WITHOUT_PROC

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no fork server")

ROOT = Path(__file__).parents[2]

PROGRAM = """\
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
from aioqueue.inputs import numbers

if __name__ == "__main__":
    with numbers(10**9).prepare(abs, workers=1, where="process").epochs(1) as epochs:
        epoch = next(epochs)
        next(epoch)
        print(len(os.listdir(os.environ["TMPDIR"])), flush=True)
        for _ in epoch:
            pass
"""


def left_by(folder: Path, signals: signal.Signals, before: list[str] | None = None) -> int:
    """End a program by a signal, and return how many files it had while it ran.

    When this returns, all files are gone.
    """
    temporary = folder / "t"
    temporary.mkdir()
    script = folder / "program.py"
    script.write_text(PROGRAM)
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
    command = [*(before or []), sys.executable, str(script)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        count = int(process.stdout.readline())
        process.send_signal(signals)
        process.wait(PATIENCE)
    spin_until(lambda: not list(temporary.iterdir()))
    return count


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL],
    ids=lambda one: one.name,
)
def test_a_signal_leaves_none(number: signal.Signals, tmp_path: Path) -> None:
    assert left_by(tmp_path, number) == 0


@pytest.mark.slow
def test_without_proc_the_server_removes_them(tmp_path: Path) -> None:
    can = shutil.which("unshare") and not subprocess.run([*WITHOUT_PROC, "true"]).returncode
    if not can:
        pytest.skip("this user cannot hide /proc")
    assert left_by(tmp_path, signal.SIGKILL, WITHOUT_PROC) == 1


def test_a_listener_is_in_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    listener, address, folder, fd = posix.private_listener()
    assert fd is not None
    with listener:
        assert (list(tmp_path.iterdir()), folder) == ([], None)
        with posix.connected_socket(Path(address), PATIENCE) as client:
            accepted = listener.accept()[0]
            client.sendall(b"x")
            assert accepted.recv(9) == b"x"
            accepted.close()
    os.close(fd)


def test_a_listener_has_a_folder_where_descriptors_have_no_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected = posix.connected_socket

    def refuse(path: Path, seconds: float) -> object:
        if path.is_relative_to("/proc"):
            raise FileNotFoundError(path)
        return connected(path, seconds)

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(posix, "connected_socket", refuse)
    listener, address, folder, fd = posix.private_listener()
    with listener, connected(Path(address), PATIENCE):
        assert (fd, Path(address).parent) == (None, Path(str(folder)))
    posix.remove_listener(folder)
    assert not list(tmp_path.iterdir())


def test_a_listener_that_cannot_be_made_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("long" * 30)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with pytest.raises(OSError, match="Set TMPDIR to a folder with a shorter name"):
        posix.private_listener()
    assert not list(long.iterdir())
