"""The views and exports of a run, as methods of its monitor."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import aioqueue
from aioqueue import InvalidArgumentError
from aioqueue.inputs import numbers
from aioqueue.telemetry.metrics import collector
from tests.telemetry.export.test_tensorboard import Recording
from tests.telemetry.fluid_model import usual


def double(number: int) -> int:
    return 2 * number


class TestSave:
    @pytest.mark.slow
    def test_the_suffix_chooses_the_format(self, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib", reason="needs the extra `pictures`")
        begin = {"html": b"<!DOCTYPE html>", "png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
        for kind, first in begin.items():
            path = tmp_path / f"run.{kind}"
            usual(5).save(path)
            assert path.read_bytes().startswith(first)
        usual(5).save(str(tmp_path / "again.HTML"))
        assert (tmp_path / "again.HTML").exists()

    @pytest.mark.parametrize("name", ["run", "run.txt", "run.json", "html"])
    def test_other_suffixes_are_refused(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(InvalidArgumentError, match=r"^path: got '.*'; expected one that ends"):
            usual(5).save(tmp_path / name)
        assert list(tmp_path.iterdir()) == []

    def test_dark_is_a_flag(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidArgumentError, match=r"^dark: got 1; expected a bool$"):
            usual(5).save(tmp_path / "run.png", dark=1)  # type: ignore[arg-type]

    def test_pages_need_no_package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        usual(5).save(tmp_path / "run.html")
        with pytest.raises(ImportError, match=r"pip install '\.\[pictures\]'.*\.html"):
            usual(5).save(tmp_path / "run.png")
        assert [path.name for path in tmp_path.iterdir()] == ["run.html"]


@pytest.mark.parametrize("seconds", [0, -1, "5", None, float("nan")])
def test_seconds_are_checked(seconds: Any, tmp_path: Path) -> None:
    pytest.importorskip("rich", reason="needs the extra `rich`")
    watching = usual(3)
    for ask in (
        watching.table,
        watching.waits,
        watching.column,
        lambda seconds: watching.live(every=seconds),
        lambda seconds: watching.live(seconds=seconds),
        lambda seconds: watching.trace(tmp_path / "run.json", seconds=seconds),
    ):
        with pytest.raises(InvalidArgumentError, match=r"^(seconds|every): got .*; expected a"):
            ask(seconds)


class TestRealRuns:
    def test_a_new_stage_invalidates_the_cached_snapshot(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(collector, "thread_time", itertools.count().__next__)
        pipeline = numbers(100).prepare(double, workers=2).batch(5)
        with pipeline.monitor() as monitor:
            for _ in range(3):
                assert not monitor.snapshot().stages  # made by the first call, for minutes
            for _ in pipeline:
                assert [stage.name for stage in monitor.snapshot().stages] == ["double"]

    @pytest.mark.slow
    def test_all_views_work_at_any_time(self, tmp_path: Path) -> None:
        """At any time: before the first item, in the middle, at the end, and after it."""
        pytest.importorskip("rich", reason="needs the extra `rich`")
        pytest.importorskip("prometheus_client", reason="needs the extra `prometheus`")
        pipeline = numbers(100).prepare(double, workers=2).batch(5)

        def ask(monitor: aioqueue.Monitor, when: str) -> str:
            monitor.save(tmp_path / f"{when}.html")
            assert re.fullmatch(r"waits .*%", str(monitor.waits()))
            assert list(monitor.prometheus().collect())
            with monitor.live(log_interval=None):
                pass
            from rich.console import Console

            with Console(width=80).capture() as captured, monitor.live(log_interval=None):
                Console(width=80).print(monitor.table())
            assert captured.get() is not None
            return (tmp_path / f"{when}.html").read_text(encoding="utf-8")

        with pipeline.monitor() as monitor:
            ask(monitor, "before")
            for number, _ in enumerate(pipeline):
                if number == 3:
                    ask(monitor, "meanwhile")
            assert "double" in ask(monitor, "at the end")
        assert "double" in ask(monitor, "after")

    def test_scalars_are_written_during_training(self) -> None:
        writer = Recording()
        pipeline = numbers(100).prepare(double, workers=2).batch(5)
        with pipeline.monitor() as monitor:
            monitor.to(writer, every=4)
            for _ in pipeline:
                pass
            tags = set(monitor.scalars())
        assert {step for _, _, step in writer.written} == {3, 7, 11, 15, 19}
        assert {tag for tag, _, _ in writer.written} <= tags
        assert "data/step_wait" in tags

    def test_a_failing_writer_loses_no_batch(self, caplog: pytest.LogCaptureFixture) -> None:
        class Full:
            def add_scalar(self, tag: str, value: float, step: int | None = None) -> None:
                raise OSError("no space left")

        pipeline = numbers(100).prepare(double).batch(5)
        with pipeline.monitor() as monitor:
            monitor.to(Full(), every=10)
            assert sum(map(len, pipeline)) == 100
        assert "no space left" in caplog.text

    def test_of_a_coordinator(self) -> None:
        writer = Recording()
        queue = aioqueue.sync.FIFOQueue(10)
        numbered = iter(range(50))

        def enqueue() -> None:
            try:
                number = next(numbered)
            except StopIteration:
                raise aioqueue.OutOfRangeError from None
            queue.enqueue(number)

        with aioqueue.sync.Coordinator() as coord, coord.monitor() as monitor:
            monitor.to(writer, every=5)
            coord.start(aioqueue.sync.QueueRunner(queue, [enqueue]))
            assert list(monitor.steps(queue)) == list(range(50))
        assert {step for _, _, step in writer.written} == {4, 9, 14, 19, 24, 29, 34, 39, 44, 49}

    def test_names_are_valid_in_mlflow(self) -> None:
        """Which takes letters, digits and ``_-./: ``, and nothing else."""
        pipeline = numbers(20).prepare(lambda number: number + 1).batch(5)
        with pipeline.monitor() as monitor:
            assert sum(map(len, pipeline)) == 20
            names = set(monitor.scalars())
        assert {name for name in names if not re.fullmatch(r"[\w\-./: ]+", name)} == set()
