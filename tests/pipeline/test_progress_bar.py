"""The waits of the training step in progress bars."""

from __future__ import annotations

import io
import sys

import pytest

from aioqueue.telemetry.views.table import Waits, waits_column
from tests.telemetry.fluid_model import Watching, usual


def slow() -> Watching:
    run = usual(60)
    return Watching([*run.history, run.now][:29])


def test_as_postfix_of_tqdm() -> None:
    tqdm = pytest.importorskip("tqdm")
    stream = io.StringIO()
    watching = slow()
    with tqdm.tqdm(range(3), file=stream, postfix=Waits(watching), mininterval=0) as bar:
        first = str(bar)
        watching.now, watching.seen = watching.seen[0], ()
        assert str(bar).endswith(", waits 0 %]"), "it is read whenever it is drawn"
    assert first.endswith("?it/s, waits 55 %]")
    assert "waits 55 %" in stream.getvalue()


def test_as_column_of_rich() -> None:
    pytest.importorskip("rich", reason="needs the extra `rich`")
    from rich.console import Console
    from rich.progress import Progress

    console = Console(file=io.StringIO(), width=100, record=True, force_terminal=True)
    columns = (*Progress.get_default_columns(), waits_column(slow()))
    with Progress(*columns, console=console) as progress:
        progress.advance(progress.add_task("train", total=3))
    assert "waits 55 %" in console.export_text()


def test_without_rich_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(ImportError, match=r"pip install '\.\[rich\]'"):
        waits_column(slow())
