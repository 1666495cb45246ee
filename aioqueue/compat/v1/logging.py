"""``tf.logging``: the logger ``tensorflow``; without a handler, lines go to stderr."""

from __future__ import annotations

import logging as _logging
import sys
import threading
from collections import Counter
from collections.abc import Callable
from logging import DEBUG, ERROR, FATAL, INFO, WARN
from typing import Any

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.core.graph import named

__all__ = (
    "DEBUG", "ERROR", "FATAL", "INFO", "WARN", "debug", "error", "fatal", "get_verbosity", "info",
    "log", "log_every_n", "log_first_n", "log_if", "set_verbosity", "vlog", "warn", "warning",
)  # fmt: skip


class _StandardError(_logging.StreamHandler[Any]):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(_logging.Formatter(_logging.BASIC_FORMAT))

    @property
    def stream(self) -> Any:
        return sys.stderr

    @stream.setter
    def stream(self, value: Any) -> None:
        """There is nothing to keep."""


_lock = threading.Lock()
_counts: Counter[str] = Counter()


def _logger() -> _logging.Logger:
    logger = _logging.getLogger("tensorflow")
    with _lock:
        if not logger.hasHandlers():
            logger.addHandler(_StandardError())
        if logger.level == _logging.NOTSET:
            logger.setLevel(WARN)
    return logger


def log(level: int, msg: Any, *args: Any, **kwargs: Any) -> None:
    """Log a message at a level."""
    _logger().log(level, msg, *args, **kwargs)


def _at(name: str, level: int, doc: str) -> Callable[..., None]:
    def logged(msg: Any, *args: Any, **kwargs: Any) -> None:
        log(level, msg, *args, **kwargs)

    return named(logged, name, doc)


debug: Callable[..., None] = _at("debug", DEBUG, "Log a message at level `DEBUG`.")
info: Callable[..., None] = _at(
    "info", INFO, "Log a message at level `INFO`, which `set_verbosity` has shown."
)
warning = warn = _at("warning", WARN, "Log a message at level `WARN`.")
error: Callable[..., None] = _at("error", ERROR, "Log a message at level `ERROR`.")
fatal: Callable[..., None] = _at("fatal", FATAL, "Log a message at level `FATAL`.")
vlog = log


def log_if(level: int, msg: Any, condition: object, *args: Any) -> None:
    """Log a message, if a condition is true."""
    if condition:
        log(level, msg, *args)


def log_every_n(level: int, msg: Any, n: int, *args: Any) -> None:
    """Log a message the first time, and then each ``n``-th time."""
    log_if(level, msg, _count(msg) % n == 0, *args)


def log_first_n(level: int, msg: Any, n: int, *args: Any) -> None:
    """Log a message the first ``n`` times."""
    log_if(level, msg, _count(msg) < n, *args)


def get_verbosity() -> int:
    """The lowest level that is shown."""
    return _logger().getEffectiveLevel()


def set_verbosity(v: int) -> None:
    """Show messages from a level on."""
    _logger().setLevel(v)


def _count(message: Any) -> int:
    with _lock:
        _counts[str(message)] += 1
        return _counts[str(message)] - 1


__getattr__ = names_of(__name__)
