"""Failures come home from other processes as what they were, whatever their class asks for."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from aioqueue.processes.remote_failures import (
    RemoteTraceback,
    failure_of_message,
    message_of_failure,
)


class BusyError(Exception):
    """Its class is called with two arguments, and it has one."""

    def __init__(self, host: str, code: int) -> None:
        super().__init__(f"{host}: {code}")
        self.code = code


class SlowError(Exception):
    """Unpickled by a call, it would say something else."""

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
    """Even `__new__` takes other arguments than it keeps."""

    def __new__(cls, *args: Any, secret: int) -> PickyError:
        return super().__new__(cls, *args)

    def __init__(self, *args: Any, secret: int) -> None:
        super().__init__(*args)


class UnsendableError(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.function = lambda: text


def returned(error: Exception) -> Exception:
    """What arrives of one that was raised."""
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
def test_an_exception_is_what_it_was(error: Exception) -> None:
    error.add_note("a note")
    found = returned(error)
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert found.__notes__ == ["a note"]
    assert vars(found) == vars(error)
    assert isinstance(found.__cause__, RemoteTraceback)
    assert "in returned" in found.__cause__.text


def test_what_cannot_be_sent_is_told_in_words() -> None:
    found = returned(UnsendableError("no"))
    assert (type(found), str(found)) == (RuntimeError, "UnsendableError: no")
    assert isinstance(found.__cause__, RemoteTraceback)


def test_what_is_no_message_of_an_exception() -> None:
    found = failure_of_message(pickle.dumps((pickle.dumps("text"), "")))
    assert "a failure that cannot be unpickled here: 'text' is no exception" in str(found)
