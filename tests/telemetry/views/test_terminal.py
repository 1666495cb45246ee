"""The live table, and other output to the same terminal."""

from __future__ import annotations

import io
import logging
import sys
import threading
from typing import Any

import pytest

from aioqueue.telemetry.verdict.bottleneck import Verdict
from aioqueue.telemetry.views.redirected_stream import RedirectedStream
from aioqueue.telemetry.views.terminal import Live
from tests.telemetry.fluid_model import Watching, usual


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def closed(stream: io.StringIO) -> io.StringIO:
    stream.close()
    return stream


class TestRedirectedStream:
    """Output that is written while the table is shown."""

    def written(self) -> tuple[RedirectedStream, list[str]]:
        lines: list[str] = []
        return RedirectedStream(Terminal(), lines.append), lines

    def test_whole_lines_are_emitted(self) -> None:
        written, lines = self.written()
        print("one", file=written)
        written.write("two ")
        assert lines == ["one"]
        assert written.bars() == ["two "]
        written.write("parts\nthree\n\n")
        assert lines == ["one", "two parts", "three", ""]
        assert written.bars() == []

    def test_a_bar_is_kept_and_replaced(self) -> None:
        written, lines = self.written()
        for number in range(3):
            written.write(f"\r{number}/3")
        assert (written.bars(), lines) == (["2/3"], [])
        print("a message", file=written)
        assert (written.bars(), lines) == (["2/3"], ["a message"])
        written.write("\r3/3")
        written.write("\n")
        assert written.bars() == ["3/3"]
        print("another", file=written)
        assert lines == ["a message", "another"]
        written.end()
        assert lines == ["a message", "another", "3/3"]
        assert written.bars() == []

    def test_nested_bars_of_tqdm(self) -> None:
        tqdm = pytest.importorskip("tqdm")
        written, lines = self.written()
        options = {"file": written, "mininterval": 0, "ncols": 60}
        for _ in tqdm.tqdm(range(2), desc="outer", **options):
            for number in tqdm.tqdm(range(3), desc="inner", leave=False, **options):
                if number == 1:
                    print("said", file=written)
                    assert [bar.split(":")[0] for bar in written.bars()] == ["outer", "inner"]
        assert lines == ["said", "said"]
        assert [bar.split(":")[0] for bar in written.bars()] == ["outer"]

    def test_bars_of_rich(self) -> None:
        pytest.importorskip("rich", reason="needs the extra `rich`")
        from rich.console import Console
        from rich.progress import Progress

        written, lines = self.written()
        options: Any = {"file": written, "force_terminal": True, "legacy_windows": False}
        console = Console(width=60, **options)
        with Progress(console=console, auto_refresh=False) as progress:
            task = progress.add_task("train", total=3)
            for _ in range(3):
                progress.advance(task)
                progress.refresh()
                console.print("said")
                assert sum("train" in bar for bar in written.bars()) == 1
        written.end()
        shown = [line.strip() for line in lines]
        assert [line for line in shown if "train" not in line] == ["said"] * 3
        assert sum("train" in line for line in shown) == 1
        assert "100%" in shown[-1]

    def test_reentrant_writes_do_not_hang(self) -> None:
        """As a bar does that is collected meanwhile, or a handler of a signal that prints."""
        lines: list[str] = []
        written = RedirectedStream(Terminal(), lambda line: lines.append(line))

        class Text(str):
            def startswith(self, *args: object) -> bool:
                print("in between", file=written)
                return False

        written.write(Text("one\n"))
        assert sorted(lines) == ["in between", "one"]

    def test_the_number_of_bars_is_limited(self) -> None:
        tqdm = pytest.importorskip("tqdm")
        written, lines = self.written()
        for number in range(9):
            for _ in tqdm.tqdm(range(2), desc=f"epoch {number}", file=written, ncols=60):
                pass
        kept = [bar.split(":")[0] for bar in written.bars()]
        assert kept == ["epoch 5", "epoch 6", "epoch 7", "epoch 8"]
        assert [line.split(":")[0] for line in lines] == [f"epoch {n}" for n in range(5)]

    def test_lines_of_several_threads_are_not_mixed(self) -> None:
        written, lines = self.written()

        def write(name: str) -> None:
            for number in range(200):
                written.write(f"{name} {number}\n")

        threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(lines) == sorted(f"{name} {n}" for name in "abc" for n in range(200))

    def test_it_replaces_the_stream(self) -> None:
        written, _ = self.written()
        assert written.isatty()
        assert written.writable()
        with pytest.raises(io.UnsupportedOperation):
            written.fileno()


def with_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Have the streams of the program be a terminal of 80 columns, until the test ends."""
    pytest.importorskip("rich", reason="needs the extra `rich`")
    for name, value in (("COLUMNS", "80"), ("LINES", "40"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdout", terminal)
    return terminal


class TestInATerminal:
    def test_the_table_is_shown_and_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        terminal = with_terminal(monkeypatch)
        with Live(usual(60), every=60):
            assert "batches/s" in terminal.getvalue()
        assert "decode-queue" in terminal.getvalue()
        assert sys.stderr is terminal

    def test_prints_and_log_messages_appear_above_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        terminal = with_terminal(monkeypatch)
        handler = logging.StreamHandler()  # holds on to the terminal, as they do
        logger = logging.getLogger("of-a-test")
        logger.addHandler(handler)
        try:
            with Live(usual(60), every=60):
                assert handler.stream is sys.stderr is sys.stdout is not terminal
                logger.warning("a message")
                print("a print")
            assert handler.stream is sys.stderr is terminal
        finally:
            logger.removeHandler(handler)
        shown = terminal.getvalue()
        last_table = shown.rindex("batches/s")
        assert shown.index("a message") < shown.index("a print") < last_table

    def test_replaced_streams_are_not_restored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with_terminal(monkeypatch)
        other = io.StringIO()
        with Live(usual(5), every=60):
            monkeypatch.setattr(sys, "stdout", other)
        assert sys.stdout is other

    def test_a_failure_in_the_block_is_raised(self, monkeypatch: pytest.MonkeyPatch) -> None:
        terminal = with_terminal(monkeypatch)
        with pytest.raises(KeyError, match="mine"), Live(usual(5)):
            raise KeyError("mine")
        assert sys.stderr is terminal

    def test_without_rich_the_error_names_the_command(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        terminal = with_terminal(monkeypatch)
        monkeypatch.setitem(sys.modules, "rich", None)
        with pytest.raises(ImportError, match=r"pip install '\.\[rich\]'"):
            Live(usual(5)).__enter__()
        assert sys.stderr is terminal

    def test_the_table_is_updated_while_bars_are_drawn(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with_terminal(monkeypatch)
        asked = threading.Semaphore(0)

        class Counting(Watching):
            def verdict(self, seconds: float | None = 10.0) -> Verdict:
                asked.release()
                return super().verdict(seconds)

        run = usual(5)
        with Live(Counting([*run.history, run.now]), every=0.01):
            for _ in range(3):
                assert asked.acquire(timeout=20)


class TestWithoutATerminal:
    def test_lines_are_written(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "rich", None)  # which is not needed for that
        written = threading.Semaphore(0)

        class Stream(io.StringIO):
            def flush(self) -> None:
                written.release()

        stream = Stream()
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
        with Live(usual(60), log_interval=0.01):
            assert written.acquire(timeout=20)
        lines = stream.getvalue().splitlines()
        assert lines
        assert all(line.startswith("aioqueue: 1:00 ") for line in lines)
        assert "aioqueue-live" not in {thread.name for thread in threading.enumerate()}

    def test_or_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stream = io.StringIO()
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
        with Live(usual(60), log_interval=None):
            pass
        assert stream.getvalue() == ""

    @pytest.mark.parametrize("stream", [None, closed(io.StringIO()), closed(Terminal())])
    def test_without_a_stream_nothing_is_shown(
        self, stream: io.StringIO | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "stderr", stream)
        with Live(usual(5), log_interval=0.001):
            pass

    @pytest.mark.parametrize("is_terminal", [False, True])
    @pytest.mark.parametrize("is_closed", [False, True])
    def test_a_stream_that_breaks_does_not_break_the_run(
        self, is_terminal: bool, is_closed: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A closed terminal, or a full disk."""
        if is_terminal:
            pytest.importorskip("rich", reason="needs the extra `rich`")

        class Breaking(io.StringIO):
            is_broken = False

            def isatty(self) -> bool:
                return is_terminal

            def write(self, text: str, /) -> int:
                if self.is_broken:
                    raise OSError(28, "No space left on device")
                return super().write(text)

        stream = Breaking()
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(threading, "excepthook", lambda _: None)  # of rich's own thread
        with Live(usual(5), log_interval=0.001, every=60.0):
            if is_closed:
                stream.close()
            stream.is_broken = True
