"""``python -m aioqueue inspect``: what a pipeline yields, how fast, and what limits it."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aioqueue.__main__ import main
from tests.kit.children import output_of_module

SCRIPT = """
from collections import namedtuple
from typing import Any

import numpy as np

from aioqueue.inputs import Pipeline, from_iterable, items, numbers

Pair = namedtuple("Pair", ["left", "right"])


def decode(number: int) -> Any:
    return {"x": np.full(3, number, np.float32), "meta": {"id": number, "pair": Pair(1, "a\\nb")}}


def fail(number: int) -> int:
    if number >= 8:
        raise ValueError(f"bad number {number}")
    return number


train = items(range(40)).prepare(decode, workers=2)
batches = numbers(50).prepare(str, workers=2).batch(4, collate=list)
fixed = numbers(50).batch(5, drop_remainder=True)
failing = numbers(50).prepare(fail, workers=1).batch(4)
skipping = numbers(50).prepare(fail, on_error="skip", quarantine="QUARANTINE").batch(4)
empty = items([])
once = from_iterable(iter(range(1000)))
wrong = [1, 2]


class Settings:
    pipeline = train


def make() -> Pipeline[Any]:
    return train


def make_nothing() -> None: ...


def raising() -> None:
    raise KeyError("a setting")
"""

Inspect = Callable[..., tuple[int, str, str]]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "a_training_script.py"
    path.write_text(SCRIPT.replace("QUARANTINE", str(tmp_path / "bad.jsonl")))
    return path


@pytest.fixture
def inspect(script: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Inspect]:
    """Run the command on a name in the script; return the status and what it prints."""
    path, modules = list(sys.path), set(sys.modules)

    def run(target: str, *options: str) -> tuple[int, str, str]:
        status = main(["inspect", target.replace("SCRIPT", str(script)), *options])
        return (status, *capsys.readouterr())

    yield run
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if script.stem in name:
            del sys.modules[name]


class TestReport:
    def test_everything(self, inspect: Inspect) -> None:
        status, shown, errors = inspect("SCRIPT:train", "--seconds", "0.3")
        assert (status, errors) == (0, "")
        parts = [part.split("\n") for part in shown.strip().split("\n\n")]
        assert [part[0].split(" over ")[0] for part in parts] == [
            "Pipeline, 40 per epoch",
            "element spec (elements)",
            "first elements",
            "rates",
            "verdict",
        ]
        assert parts[0][2].split() == ["prepare", "decode", "on", "2", "threads"]
        assert [line.split(maxsplit=1) for line in parts[1][1:]] == [
            ["x", "float32 (3,)"],
            ["meta.id", "int"],
            ["meta.pair.left", "int"],
            ["meta.pair.right", "str"],
        ]
        assert parts[2][1].split(maxsplit=2) == ["0", "x", "[0. 0. 0.]"]
        assert parts[2][4].split(maxsplit=1) == ["meta.pair.right", r"'a\nb'"]
        assert len(parts[2]) == 9
        assert re.match(r"  elements +[\d,.]+ per second$", parts[3][1])
        assert re.match(r"  decode +[\d,.]+ items per second, 2 threads, busy ", parts[3][2])
        assert len(parts[4]) == 2

    def test_batches(self, inspect: Inspect) -> None:
        _, shown, _ = inspect("SCRIPT:batches", "--seconds", "0", "--examples", "1")
        assert shown.endswith(
            "element spec (batches)\n  list of str\n\nfirst batches\n  0  ['0', '1', '2', '3']\n"
        )
        _, shown, _ = inspect("SCRIPT:fixed", "--seconds", "0", "--examples", "0")
        assert shown.endswith("element spec (batches)\n  int64 (5,)\n")

    @pytest.mark.parametrize("name", ["make", "Settings.pipeline"])
    def test_of_a_function_or_an_attribute(self, name: str, inspect: Inspect) -> None:
        status, shown, _ = inspect(f"SCRIPT:{name}", "--seconds", "0")
        assert status == 0
        assert shown.startswith("Pipeline, 40 per epoch\n")

    def test_of_a_source_with_one_iteration(self, inspect: Inspect) -> None:
        status, shown, errors = inspect("SCRIPT:once", "--seconds", "0.2")
        assert (status, errors) == (0, "")
        assert "elements  " in shown

    def test_quarantine_files_stay_as_they_are(self, inspect: Inspect, tmp_path: Path) -> None:
        status, shown, _ = inspect("SCRIPT:skipping", "--seconds", "0.2")
        assert status == 0
        assert re.search(r"\n  skipped +[\d,]+; the first: ValueError: bad number \d+\n", shown)
        assert not (tmp_path / "bad.jsonl").read_text()

    def test_of_a_module(self, inspect: Inspect, script: Path) -> None:
        sys.path.insert(0, str(script.parent))
        status, shown, _ = inspect("a_training_script:train", "--seconds", "0")
        assert status == 0
        assert shown.startswith("Pipeline, 40 per epoch\n")


def test_a_script_without_a_suffix(script: Path, inspect: Inspect) -> None:
    plain = script.with_suffix("")
    plain.write_text(script.read_text())
    status, shown, _ = inspect(f"{plain}:train", "--seconds", "0")
    assert status == 0
    assert shown.startswith("Pipeline, 40 per epoch\n")


class TestRefusals:
    @pytest.mark.parametrize(
        ("target", "message"),
        [
            ("no_such_module_here:train", "there is no module 'no_such_module_here'"),
            ("no/such/file.py:train", "there is no file 'no/such/file.py'"),
            ("SCRIPT", "expected .*:NAME, such as train, batches"),
            ("SCRIPT:no", "has no 'no'; it has train, batches, fixed"),
            ("SCRIPT:train.no", "has no 'train.no'"),
            ("SCRIPT:wrong", "got a list; expected a Pipeline, a source or reader"),
            ("SCRIPT:make_nothing", "got a NoneType; expected a Pipeline"),
            ("SCRIPT:raising", r"raising\(\) of .* failed:\n(.|\n)*KeyError: 'a setting'"),
            ("SCRIPT:empty", "the first epoch is empty"),
            ("os:path", "got a module; expected a Pipeline"),
            ("os", "expected os:NAME$"),
            (".relative:train", "expected its full name"),
        ],
    )
    def test_the_reason_is_printed(self, target: str, message: str, inspect: Inspect) -> None:
        status, _, errors = inspect(target)
        assert status == 1
        assert errors.startswith("python -m aioqueue inspect: ")
        assert re.search(message, errors)

    def test_a_script_that_fails(self, tmp_path: Path, inspect: Inspect) -> None:
        for text, message in (
            ("import no_such_library", "No module named 'no_such_library'"),
            ("raise SystemExit(3)", "SystemExit: 3"),
            ("x =", "SyntaxError"),
        ):
            path = tmp_path / "a_training_script_that_fails.py"
            path.write_text(text)
            status, shown, errors = inspect(f"{path}:train")
            assert (status, shown) == (1, "")
            assert message in errors
            assert "importlib" not in errors

    def test_a_file_that_is_no_python(self, tmp_path: Path, inspect: Inspect) -> None:
        path = tmp_path / "accounts"
        path.write_text("root:x:0:0:root")
        status, _, errors = inspect(f"{path}:train")
        assert status == 1
        assert "SyntaxError" in errors
        assert str(path) in errors

    def test_a_pipeline_that_fails(self, inspect: Inspect) -> None:
        status, shown, errors = inspect("SCRIPT:failing")
        assert status == 1
        assert shown.startswith("Pipeline, 13 per epoch\n")
        assert "the pipeline has failed:\n" in errors
        assert "ValueError: bad number 8\n" in errors
        assert "aioqueue/inputs" not in errors

    @pytest.mark.parametrize(
        "options", [["--seconds", "-1"], ["--seconds", "x"], ["--examples", "-1"], []]
    )
    def test_a_wrong_command_line(
        self, options: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as ended:
            main(["inspect", *(["a:b", *options] if options else [])])
        assert ended.value.code == 2
        assert "usage: " in capsys.readouterr().err


class Output(io.TextIOWrapper):
    """Standard output that takes only so much, in an encoding that lacks most letters."""

    def __init__(self, error: OSError | None = None, lines: int = 0) -> None:
        super().__init__(io.BytesIO(), encoding="ascii", write_through=True)
        self._error, self._lines = error, lines

    def write(self, text: str, /) -> int:
        self._lines -= 1
        if self._error is not None and self._lines < 0:
            raise self._error
        return super().write(text)


class TestStandardOutput:
    """The output fails; the command and the pipeline do not."""

    TARGET = ("SCRIPT:batches", "--seconds", "0")

    @pytest.mark.parametrize("lines", [0, 3])
    def test_a_closed_pipe(
        self, lines: int, inspect: Inspect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "stdout", Output(BrokenPipeError(32, "Broken pipe"), lines))
        status, _, errors = inspect(*self.TARGET)
        assert (status, errors) == (1, "")

    def test_a_full_disk(self, inspect: Inspect, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdout", Output(OSError(28, "No space left on device")))
        status, _, errors = inspect(*self.TARGET)
        assert status == 1
        assert errors == (
            "python -m aioqueue inspect: cannot write: [Errno 28] No space left on device\n"
        )

    def test_no_output_at_all(self, inspect: Inspect, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdout", None)
        assert inspect(*self.TARGET) == (0, "", "")

    def test_an_encoding_that_lacks_characters(
        self, script: Path, inspect: Inspect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        script.write_text(script.read_text() + "\nletters = items(['日本', '\\ud800'])\n")
        output = Output()
        monkeypatch.setattr(sys, "stdout", output)
        status, _, errors = inspect("SCRIPT:letters", "--seconds", "0")
        assert (status, errors) == (0, "")
        shown = output.buffer
        assert isinstance(shown, io.BytesIO)
        assert b"\\u65e5\\u672c" in shown.getvalue()


@pytest.mark.slow
def test_as_a_command(script: Path) -> None:
    printed = output_of_module("aioqueue", "inspect", f"{script}:batches", "--seconds", "0.5")
    assert "\nverdict\n  " in printed
