"""Preemption: a flag that signals, files and notices set."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from aioqueue import InvalidArgumentError
from aioqueue.inputs import Preemption
from tests.worlds import spin_until

needs_signals = pytest.mark.skipif(
    not hasattr(signal, "SIGUSR1"), reason="this system has no SIGUSR1"
)


@needs_signals
@pytest.mark.parametrize("number", [signal.SIGTERM, getattr(signal, "SIGUSR1", signal.SIGTERM)])
def test_signals_set_it(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Preemption(grace=20) as preempted:
        assert (bool(preempted), preempted.deadline) == (False, None)
        begun = time.monotonic()
        signal.raise_signal(number)
        assert preempted
        assert preempted.reason == number.name
        assert preempted.deadline is not None
        assert preempted.deadline >= begun + 20
    assert preempted
    assert signal.getsignal(number) is before


@needs_signals
def test_earlier_handlers_are_called_too() -> None:
    called: list[Any] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: called.append(number))
    try:
        with Preemption() as outer, Preemption() as inner:
            signal.raise_signal(signal.SIGUSR1)
            assert outer
            assert inner
        assert called == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_in_a_coroutine() -> None:
    async def preempt() -> None:
        async with Preemption() as preempted:
            signal.raise_signal(signal.SIGTERM)
            assert preempted

    anyio.run(preempt)


def test_a_file_sets_it(tmp_path: Path) -> None:
    with Preemption((), file=tmp_path / "stop", every=0.001) as preempted:
        (tmp_path / "stop").touch()
        spin_until(lambda: bool(preempted))
    assert preempted.reason == "file"


def test_a_notice_sets_it_also_after_it_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    answers: Iterator[OSError | bool] = iter([OSError("no network"), False, True])

    def notice() -> bool:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    with Preemption((), notice=notice, every=0.001) as preempted:
        spin_until(lambda: bool(preempted))
    assert preempted.reason == "notice"
    assert "could not be asked for" in caplog.text


def test_it_calls_back_once() -> None:
    called: list[None] = []
    preempted = Preemption((), callback=lambda: called.append(None), grace=None)
    preempted.request("maintenance")
    preempted.request()
    assert (len(called), preempted.reason, preempted.deadline) == (1, "maintenance", None)


def test_the_watcher_ends() -> None:
    with Preemption((), notice=lambda: False, every=60):
        (thread,) = [one for one in threading.enumerate() if "preemption" in one.name]
    thread.join()


def test_only_the_main_thread_handles_signals() -> None:
    raised: list[BaseException] = []

    def enter() -> None:
        try:
            Preemption().__enter__()
        except RuntimeError as error:
            raised.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert "main thread" in str(raised[0])


@pytest.mark.parametrize(
    "options", [{"signals": ["TERM"]}, {"notice": 3}, {"callback": "x"}, {"every": -1}]
)
def test_what_is_refused(options: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(options))):
        Preemption(**options)
