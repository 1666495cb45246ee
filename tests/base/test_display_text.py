"""Text of others where we show it: no passwords of URLs, one line, no character that does harm.

The outlets are tried with hostile names and URLs: reprs, drawings, pages, tables, lines, notes,
messages, logs, states.
"""

from __future__ import annotations

import copy
import io
import json
import logging
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import aioqueue
from aioqueue import DataLossError, InvalidArgumentError, sync
from aioqueue.base.display_text import LogLines, on_one_line, without_secrets
from aioqueue.inputs import files, items, mix, read_lines, read_whole_files
from aioqueue.items.value_text import format_value
from aioqueue.telemetry.export.prometheus import RunCollector
from aioqueue.telemetry.metrics.intervals import recorded
from aioqueue.telemetry.verdict.bottleneck import verdict_of
from aioqueue.telemetry.views.html_page import page
from aioqueue.telemetry.views.table import status_line
from tests.telemetry.fluid_model import Stage, Watching, history

SECRET = "hunter2"
URLS = [
    f"ftp://user:{SECRET}@127.0.0.1:9/x.csv",
    f"s3://KEY:{SECRET}@bucket/a",
    f"simplecache::ftp://user:{SECRET}@host/x",
    f"https://user:a@{SECRET}@host/x",
    f"https://user:{SECRET}/x@host/x",
    f"https://:{SECRET}@host:80/x?y=1",
    f"https://{SECRET}@host/x",
    f"https://host/x?X-Amz-Credential={SECRET}&X-Amz-Date=1&X-Amz-Signature={SECRET}",
    f"https://host/x?sv=1&sig={SECRET}",
    f"https://host/x?access_token={SECRET}#end",
    f"https://host/x?api_key={SECRET}",
    f"https://host/x?a=1&access_key={SECRET}",
    f"https://host/x#id_token={SECRET}",
    f"https://host/x?jwt={SECRET}",
    f"https://host/x?sessionid={SECRET};x=1",
    f"https://proxy/?url=https%3A%2F%2Fhost%2Fx%3Fa%3D1%26token%3D{SECRET}&page=2",
    f"ftp://user:isn't{SECRET}@host/x",
    f"az://c@account/{'x' * 200}?sig={SECRET}",
]
PLAIN = [
    "https://host:8080/@user/x",
    "https://host:80/a@b/c",
    "https://user@host/x".replace("https", "ftp"),
    "s3://bucket/key=1/year=2",
    "https://host/x?page=2&keys=3",
    "user:word@host",
    "memory://a.txt",
]
HOSTILE = [
    "two\nlines",
    "return\rme",
    "\x1b[31mred\x1b]0;title\x07",
    "nul\0",
    "c1\x9b31m",
    "right\u202eleft",
    "line\u2028end",
    "lone\ud800",
    "no\uffffcharacter",
    "<script>alert('&')</script>",
    "]]>",
    "[red]markup[/nothing]",
    "$math_{$",
]


def test_secrets_are_hidden_and_nothing_else() -> None:
    for url in URLS:
        for text in (url, repr(url), f"while reading {url}, at 3", f"({url})"):
            assert SECRET not in without_secrets(text), text
            assert "***" in without_secrets(text)
            assert without_secrets(without_secrets(text)) == without_secrets(text)
    for url in PLAIN:
        assert without_secrets(f"got {url!r}; expected another") == f"got {url!r}; expected another"


@pytest.mark.parametrize(
    "part",
    ["a", "://a", "://a:", ":", "@", "?token", "?token=", "&a=", "%3f", "://@:=", "%3ftoken"],
)
def test_long_text_takes_time_in_proportion(part: str) -> None:
    """A message of an exception may hold a megabyte. Backtracking would take minutes here."""
    for end in ("", "@="):
        assert "://u:***@h" in without_secrets(f"{part * (100_000 // len(part))}{end} s://u:p@h ?=")


@pytest.mark.parametrize("url", URLS)
def test_no_outlet_reveals_a_secret(url: str) -> None:
    pytest.importorskip("fsspec")
    reader = read_lines([url])
    listed = items([url, url], epochs=1)
    pipeline = reader.prepare(len).batch(2)
    several = read_whole_files(items([url], epochs=1))
    messages = [repr(one) for one in (reader, listed, pipeline, several)]
    messages += [format_value([url, (url,)])]
    messages += [format_value(url.encode()), format_value(f"{'x' * 40} {url}")]
    messages += [format_value({url: url})]
    messages += [str(pipeline), pipeline._repr_svg_()]
    messages += [repr(DataLossError(path=url, fault="damage"))]
    messages += [str(InvalidArgumentError(f"paths: got {url!r}"))]
    lost = DataLossError(path=url, offset=3, fault="damage")
    assert lost.path == url
    messages += [str(lost), str(copy.copy(lost)), str(pickle.loads(pickle.dumps(lost)))]
    for error in (OSError("no"), ValueError("no")):
        aioqueue.errors.add_note(error, f"while reading {url}")
        messages += traceback.format_exception(error)
    for text in messages:
        assert SECRET not in text, text


@pytest.mark.parametrize("how", ["missing", "its cause", "wrapped"])
def test_a_missing_file_does_not_reveal_it(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """fsspec says which URL it is, whatever signs it."""
    fsspec = pytest.importorskip("fsspec")
    url = f"memory://host/missing.txt?access_key={SECRET}"

    def fail(*_: Any, **__: Any) -> Any:
        if how == "missing":
            raise FileNotFoundError(url)
        try:
            raise ValueError(f"404 at {url}", 404)
        except ValueError as error:
            if how == "its cause":
                raise FileNotFoundError("no such file") from error
            raise OSError(22, f"{url} is missing") from None

    monkeypatch.setattr(fsspec, "open", fail)
    with pytest.raises(OSError, match=r"missing|no such file") as caught:
        list(read_lines(url))
    shown = "".join(traceback.format_exception(caught.value))
    assert SECRET not in shown, shown
    assert "access_key=***" in shown


@pytest.mark.parametrize("name", [*HOSTILE, *URLS])
def test_names_do_no_harm_in_reprs_messages_and_explanations(name: str) -> None:
    def function(item: Any) -> Any:
        raise ValueError(name)

    function.__name__ = function.__qualname__ = name
    queue = sync.FIFOQueue(1, name=name)
    runner = sync.QueueRunner(queue, [lambda: function(1)])
    source = items([1, 2], name=name)
    pipeline = source.prepare(function).batch(1)
    answering: sync.Batcher[int, int] = sync.Batcher(list, name=name)
    with answering as batcher:
        messages = [repr(one) for one in (queue, queue.aio, runner, source, pipeline, batcher)]
    messages += [repr(mix([source, source], seed=1)), repr(aioqueue.Latest(name=name))]
    with pytest.raises(aioqueue.QueueEmpty) as empty:
        queue.dequeue_nowait()
    messages.append(str(empty.value))
    with pytest.raises(ExceptionGroup) as item:
        list(pipeline)
    with pytest.raises(ExceptionGroup) as worker, sync.Coordinator() as coord:
        coord.start(runner)
        coord.wait_for_stop()
    for group in (item.value, worker.value):
        messages += [str(group), *(note for one in group.exceptions for note in one.__notes__)]
    messages += str(aioqueue.explain()).split("\n")
    for text in messages:
        assert text.isprintable(), text
        assert SECRET not in text


def test_a_failed_read_and_a_failed_item_do_not_reveal_it() -> None:
    pytest.importorskip("fsspec")
    url = f"memory://user:{SECRET}@host/missing.txt"

    def fetch(path: str) -> bytes:
        raise OSError("unreachable")

    failures: list[Callable[[], Any]] = [
        lambda: list(items([url], epochs=1).prepare(fetch).batch(1)),
        lambda: files(f"memory://user:{SECRET}@host/*.none"),
    ]
    for fail in failures:
        with pytest.raises((ExceptionGroup, OSError)) as caught:
            fail()
        shown = "".join(traceback.format_exception(caught.value, limit=0))
        assert SECRET not in shown, shown


@pytest.mark.parametrize("url", URLS)
def test_a_quarantine_does_not_reveal_it(url: str, tmp_path: Path) -> None:
    def fetch(path: str) -> bytes:
        raise OSError(f"no answer from {path}")

    pipeline = items([url]).prepare(fetch, on_error="skip").batch(1)
    with pipeline.epochs(1) as epochs:
        assert list(next(epochs)) == []
        (kept,) = epochs.quarantine
    for text in (kept.error, kept.traceback, repr(kept)):
        assert SECRET not in text
        assert "***" in text
    assert kept.item == url


def test_a_state_neither_reveals_a_password_nor_depends_on_it() -> None:
    def state(password: str) -> dict[str, Any]:
        source = items([f"ftp://u:{password}@host/{n}" for n in range(3)], shuffle=True, seed=1)
        with source.batch(1).epochs(1) as epochs:
            next(iter(next(epochs)))
            return epochs.state_dict()

    assert SECRET not in json.dumps(state(SECRET))
    assert state(SECRET) == state("another")


def test_what_is_shown_is_on_one_line() -> None:
    for text in HOSTILE:
        shown = on_one_line(text)
        assert shown.isprintable(), text
        shown.encode()
    assert on_one_line("ä 猫 é\u0301 🐈") == "ä 猫 é\u0301 🐈"


@pytest.mark.parametrize("name", HOSTILE)
def test_names_do_no_harm_in_drawings_pages_and_tables(name: str) -> None:
    def function(item: int) -> int:
        return item

    function.__name__ = function.__qualname__ = name
    pipeline = items([1, 2], name=name).prepare(function).batch(2)
    drawn = pipeline._repr_svg_()
    ElementTree.fromstring(drawn.encode())
    assert all(line.isprintable() for line in [*drawn.split("\n"), *str(pipeline).split("\n")])
    stages = (Stage(name, workers=2, service=0.004, capacity=4),)
    watching = Watching(history(stages, seconds=5, step=0.001))
    html = page(recorded(watching.history, watching.now), watching.verdict(None), verdict_of)
    html.encode()
    assert "<script" not in html
    assert all(line.isprintable() for line in html.split("\n"))
    assert status_line(watching, 5.0).isprintable()


@pytest.mark.parametrize("name", HOSTILE)
def test_names_do_no_harm_in_a_table(name: str) -> None:
    console = pytest.importorskip("rich.console", reason="pip install '.[rich]'")
    from aioqueue.telemetry.views.table import RunTable

    watching = Watching(history((Stage(name, workers=2, service=0.004, capacity=4),), seconds=5))
    shown = console.Console(width=120, color_system=None, record=True, file=io.StringIO())
    shown.print(RunTable(watching))
    text = shown.export_text()
    assert all(line.isprintable() for line in text.split("\n"))
    if name.startswith("["):
        assert "[red]" in text


@pytest.mark.parametrize("name", [*HOSTILE, *URLS])
def test_names_do_no_harm_in_what_is_exported(name: str, tmp_path: Path) -> None:
    """Prometheus could not even encode some of them, and so lost all numbers."""
    pytest.importorskip("prometheus_client", reason="pip install '.[prometheus]'")
    stages = (Stage(name, workers=2, service=0.004, capacity=4),)
    watching = Watching(history(stages, seconds=5, step=0.001))
    collected = [sample for one in RunCollector(watching).collect() for sample in one.samples]
    messages = [text for sample in collected for text in sample.labels.values()]
    assert len(messages) > 20
    messages += watching.scalars()

    def function(item: int) -> int:
        return item

    function.__name__ = function.__qualname__ = name
    pipeline = items(range(8), name=name).prepare(function).batch(2)
    with pipeline.monitor() as monitor, monitor.trace(tmp_path / "trace.json"):
        list(pipeline)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    messages += [event["name"] for event in events]
    messages += [event["args"]["name"] for event in events if "name" in event["args"]]
    for text in messages:
        assert text.isprintable(), text
        assert SECRET not in text


@pytest.mark.slow(but="math")
@pytest.mark.parametrize("name", HOSTILE)
def test_names_do_no_harm_in_a_picture(name: str) -> None:
    pytest.importorskip("matplotlib", reason="pip install '.[pictures]'")
    from aioqueue.telemetry.views.matplotlib_picture import picture

    watching = Watching(history((Stage(name, workers=2, service=0.004, capacity=4),), seconds=5))
    snapshots = recorded(watching.history, watching.now)
    drawn = picture(snapshots, watching.verdict(None), verdict_of, kind="svg", dark=False)
    ElementTree.fromstring(drawn)


class TestLogs:
    def test_a_message_is_one_line(self, caplog: pytest.LogCaptureFixture) -> None:
        def fail(item: int) -> int:
            raise ValueError(f"bad\nWARNING:root:forged \x1b[2J ftp://u:{SECRET}@host/")

        pipeline = items([1, 2], name="a\nb").prepare(fail, on_error="skip").batch(1)
        with caplog.at_level(logging.DEBUG, "aioqueue"), pipeline.epochs(1) as epochs:
            assert list(next(epochs)) == []
        messages = [record.getMessage() for record in caplog.records]
        assert any(r"bad\nWARNING:root:forged \x1b[2J" in message for message in messages)
        assert all(message.isprintable() and SECRET not in message for message in messages)

    def test_only_lines_of_ours_stay(self, caplog: pytest.LogCaptureFixture) -> None:
        log = logging.getLogger("aioqueue")
        log.warning("%s waits:%s", "a\nb", LogLines("\n  first\n  second\x1b[2J"))
        log.warning("%s waits", LogLines("a\nb"))
        log.warning("%s waits:%s", LogLines("\n"), "a\nb")
        assert caplog.messages == [
            "a\\nb waits:\n  first\n  second\\x1b[2J",
            r"a\nb waits",
            r"\n waits:a\nb",
        ]

    @pytest.mark.parametrize("name", ["aioqueue", "aioqueue.compat"])
    def test_templates_stay_where_nothing_is_wrong(
        self, name: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        log = logging.getLogger(name)
        log.warning("%s failed: %s", "f", ValueError("100 %"))
        log.warning("%s failed: %s", "f", ValueError("100 %s\n"))
        first, second = caplog.records
        assert (first.msg, len(first.args or ())) == ("%s failed: %s", 2)
        assert second.getMessage() == r"f failed: 100 %s\n"


def test_values_that_you_pass_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a\nb.txt"
    path.write_text("x\n")
    assert list(read_lines(path).with_keys()) == [(f"{path}:1", "x")]
    assert items([1], name="a\nb").name == "a\nb"
