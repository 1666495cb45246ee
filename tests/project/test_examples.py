"""The examples, run as a user runs them: in a process of their own, from the repository's root."""

from __future__ import annotations

import importlib.util
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRAIN = "examples/train_digits.py"
LONG = ["--epochs", "100000"]

needs_training = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("sklearn", "tqdm")),
    reason="the extra `examples` (scikit-learn, tqdm) is not installed",
)


def needs(loop: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(loop) is None
    return pytest.mark.skipif(missing, reason=f"{loop} is not installed")


WAYS = [  # on uvloop once: tasks there run the same lines as on asyncio
    pytest.param(["--face", "sync"], id="sync"),
    pytest.param(["--loop", "asyncio"], id="asyncio"),
    pytest.param(["--loop", "uvloop"], id="uvloop", marks=needs("uvloop")),
    pytest.param(["--loop", "trio"], id="trio", marks=needs("trio")),
]


def run(script: str, *arguments: str, seconds: float = 50) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, script, *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=seconds,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("script", ["examples/hello_async.py", "examples/hello_threads.py"])
def test_hello_squares_every_number_once(script: str) -> None:
    done = run(script)
    assert done.returncode == 0, done.stderr
    pairs = re.findall(r"(\d+): (\d+)", done.stdout.replace("squares:", ""))
    squares = {int(root): int(square) for root, square in pairs}
    assert len(pairs) == 20
    assert squares == {number: number * number for number in range(20)}
    assert done.stderr == ""


@pytest.mark.slow
@needs_training
@pytest.mark.parametrize("face", ["async", "sync"])
def test_training_recognises_digits_that_it_has_not_seen(face: str) -> None:
    done = run(TRAIN, "--face", face, "--epochs", "20")
    assert done.returncode == 0, done.stderr
    accuracy = re.search(r"held-out accuracy +([0-9.]+)", done.stdout)
    assert accuracy is not None, done.stdout
    assert float(accuracy[1]) >= 0.95
    assert re.search(r"throughput +[0-9,]+ examples/s", done.stdout)
    assert re.search(r"waited for data +[0-9.]+% of the time", done.stdout)
    verdicts = "limits|saturated|judged|measured|bottleneck"  # any: machines differ
    assert re.search(rf"^verdict +\w.*({verdicts})", done.stdout, re.MULTILINE)


@pytest.mark.slow
@needs_training
@pytest.mark.parametrize("way", WAYS)
def test_training_runs_every_way_and_writes_plain_lines_to_a_pipe(way: list[str]) -> None:
    done = run(TRAIN, *way, "--steps", "20")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^1,280/1,280 examples, .*, queue \d+/1024$", done.stdout, re.MULTILINE)
    assert "\r" not in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


@pytest.mark.slow
@needs_training
@pytest.mark.parametrize("way", [WAYS[0], WAYS[3]])
def test_a_failing_worker_stops_the_training_and_is_named(way: list[str]) -> None:
    done = run(TRAIN, *way, *LONG, "--fail-at", "2000")
    assert done.returncode == 1
    title = r"ExceptionGroup: aioqueue-prepare_digit-\d failed: ValueError: example 2000 cannot be"
    assert re.search(title, done.stderr)
    assert "ValueError: example 2000 cannot be prepared" in done.stderr
    assert "in worker aioqueue-prepare_digit-0" in done.stderr
    assert re.search(r"^stopped by a failure after \d+ of ", done.stdout, re.MULTILINE)
    assert "held-out accuracy" in done.stdout


@pytest.mark.slow
@needs_training
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
@pytest.mark.parametrize("way", [WAYS[0], WAYS[1], WAYS[3]])
def test_ctrl_c_ends_the_training_with_a_summary(way: list[str]) -> None:
    command = [sys.executable, TRAIN, *way, *LONG]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()  # it has begun to train
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=20)
    assert "examples/s" in first
    assert process.returncode == 130
    assert re.search(r"^interrupted after \d[\d,]* of ", rest, re.MULTILINE)
    assert "held-out accuracy" in rest
    assert errors == ""


@pytest.mark.slow
@needs_training
@pytest.mark.parametrize("loop", ["uvloop", "trio"])
def test_a_missing_loop_is_explained_by_the_command_that_installs_it(loop: str) -> None:
    program = (
        f"import runpy, sys; sys.modules[{loop!r}] = None; sys.argv[1:] = ['--loop', {loop!r}];"
        f" runpy.run_path({TRAIN!r}, run_name='__main__')"
    )
    done = run("-c", program)
    assert done.returncode == 2
    assert f"pip install {loop}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_policy_is_learned_although_an_actor_crashes() -> None:
    done = run("examples/actor_learner.py", "--steps", "80")
    assert done.returncode == 0, done.stderr
    caught = re.findall(r"^step +\d+: caught +(\d+)%", done.stdout, re.MULTILINE)
    shares = [int(share) for share in caught]
    assert len(shares) == 4
    assert shares[0] < 60
    assert shares[-1] >= 75
    assert done.stdout.endswith("restarts of actors: 1\n")
    assert "worker aioqueue-actor-0 failed, and is started again in 0.1" in done.stderr
    assert "RuntimeError: the game has crashed" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="sharing is tested on Linux")
def test_the_same_with_actors_in_processes() -> None:
    done = run("examples/actor_learner.py", "--processes", "--steps", "80")
    assert done.returncode == 0, done.stderr
    caught = re.findall(r"^step +\d+: caught +(\d+)%", done.stdout, re.MULTILINE)
    assert len(caught) == 4
    assert int(caught[-1]) >= 75
    assert done.stdout.endswith("exit codes of actors: [0, 0, 0]\n")
    assert "RuntimeError: the game has crashed" in done.stderr


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("ray", "PIL")),
    reason="the extra `ray`, or Pillow, is not installed",
)
def test_a_node_is_lost_and_nothing_else() -> None:
    done = run("examples/cluster.py", "--count", "400", seconds=280)
    assert done.returncode == 0, done.stderr
    assert "a node is killed, another joins" in done.stdout
    assert "13 batches, the same as those of threads" in done.stdout
    # Whatever Ray says that they died of: there is nothing else that was killed.
    assert re.search(r"; [1-9]\d* items? will be prepared again", done.stderr)
