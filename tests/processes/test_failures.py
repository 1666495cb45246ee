"""Failures arrive from other processes unchanged, whatever arguments their class needs."""

from __future__ import annotations

import multiprocessing
import pickle
from typing import Any

import pytest

from aioqueue import sync
from aioqueue.coordination.classify import failures_behind
from aioqueue.errors import OutOfRangeError, sent_as
from aioqueue.inputs import numbers
from aioqueue.processes.failures import RemoteTraceback, failure_of_message, message_of_failure


class BusyError(Exception):
    """Its class is called with two arguments, and it has one."""

    def __init__(self, host: str, code: int) -> None:
        super().__init__(f"{host}: {code}")
        self.code = code


class SlowError(Exception):
    """A call of its class with its arguments gives another message."""

    def __init__(self, host: str, seconds: int = 3) -> None:
        super().__init__(f"{host} after {seconds} s")


class BrokenError(OSError):
    def __init__(self, path: str, *, errno: int) -> None:
        super().__init__(errno, "broken", path)


class KeyedError(KeyError):
    def __init__(self, *, key: str) -> None:
        super().__init__(key)
        self.key = key


class PickyError(Exception):
    """`__new__` takes other arguments than `args` has."""

    def __new__(cls, *args: Any, secret: int) -> PickyError:
        return super().__new__(cls, *args)

    def __init__(self, *args: Any, secret: int) -> None:
        super().__init__(*args)


class UnsendableError(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.function = lambda: text


def returned(error: Exception) -> Exception:
    """Return what arrives of an exception that was raised."""
    try:
        raise error
    except Exception as raised:
        return failure_of_message(message_of_failure(raised))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("plain"),
        KeyError("key"),
        FileNotFoundError(2, "No such file", "a.txt"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        BusyError("a", 503),
        SlowError("a", 5),
        BrokenError("a.txt", errno=5),
        KeyedError(key="k"),
        PickyError("no", secret=1),
        ExceptionGroup("two", [BusyError("a", 1), ValueError("b")]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_arrives_unchanged(error: Exception) -> None:
    error.add_note("a note")
    found = returned(error)
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert found.__notes__ == ["a note"]
    assert vars(found) == vars(error)
    assert isinstance(found.__cause__, RemoteTraceback)
    assert "in returned" in found.__cause__.text


def test_an_exception_that_cannot_be_pickled_becomes_a_runtime_error() -> None:
    found = returned(UnsendableError("no"))
    assert (type(found), str(found)) == (RuntimeError, "UnsendableError: no")
    assert isinstance(found.__cause__, RemoteTraceback)


def test_a_message_without_an_exception() -> None:
    found = failure_of_message(pickle.dumps((pickle.dumps("text"), "", "name", None)))
    assert "a failure that cannot be unpickled here: 'text' is no exception" in str(found)


def test_the_end_of_a_queue_names_the_failure_behind_it() -> None:
    """However many queues have passed it on, and however many processes."""
    failure = ValueError("the feed is down")
    first, second = OutOfRangeError("first"), OutOfRangeError("second")
    first.__cause__, second.__cause__ = failure, first
    here = failure_of_message(message_of_failure(second))
    third = OutOfRangeError("third")
    third.__cause__ = here
    there = failure_of_message(message_of_failure(third))
    assert sent_as(failure) is not None
    for end in (here, there):
        assert [sent_as(one) for one in failures_behind(end, ())] == [sent_as(failure)]


def test_the_end_of_a_queue_without_a_failure_names_none() -> None:
    first, second = OutOfRangeError("first"), OutOfRangeError("second")
    second.__cause__ = first
    for end in (first, second):
        found = failure_of_message(message_of_failure(end))
        assert [sent_as(one) for one in failures_behind(found, ())] == [None]


class TestChildrenOfWorkers:
    """A function on a process worker that starts processes is refused by name."""

    @pytest.fixture(autouse=True)
    def as_a_worker(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(vars(multiprocessing.current_process())["_config"], "daemon", True)

    def test_by_multiprocessing(self) -> None:
        """Python's error has the text that we look for."""
        with pytest.raises(AssertionError) as caught:
            multiprocessing.Process(target=print).start()
        found = returned(caught.value)
        assert type(found) is RuntimeError
        assert str(found).startswith("multiprocessing cannot start processes in a worker process: ")
        assert "Use where='thread' for the function that starts them" in str(found)

    def test_by_a_batcher_or_a_stage(self) -> None:
        with pytest.raises(RuntimeError, match="cannot start processes in a worker process"):
            sync.Batcher(list, where="process").__enter__()
        with pytest.raises(ExceptionGroup) as caught:
            list(numbers(3).prepare(abs, where="process"))
        assert "cannot start processes in a worker process" in str(caught.value.exceptions[0])

    def test_other_failures_are_unchanged(self) -> None:
        assert str(returned(AssertionError("mine"))) == "mine"
