"""Playing a program, a list of lines of Python, on one of the two libraries.

Besides ``tf``, ``np`` and ``sys`` the lines may use:

* ``session(timeout)``: a session of the program's graph, kept as ``sess``. Timeouts are in
  milliseconds;
* ``here(fetch, feed, timeout)``: ``sess.run`` in the thread that plays the program;
* ``go(fetch, feed, timeout)``: the same in a thread of its own, for it may block. The program goes
  on as soon as it has ended or blocks, and so does everything else;
* ``near(fetch, feed)``: like ``here``, but floats need only be the same to their last bits but few;
* ``say(value)``: see a value;
* ``form(tensor)``: see its dtype and static shape, which count more than its name;
* ``settle()``: wait until all threads sleep;
* ``pause()``: wait until the time of runs with a timeout is up, and all threads sleep;
* ``folder``: where the program may keep files.
"""

from __future__ import annotations

import ast
import logging
import sys
import threading
import time
from collections.abc import Sequence
from types import CodeType
from typing import Any

import numpy as np

from proofs.oracle.outcomes import Outcome, about, described, failed, form, made
from proofs.oracle.quiet import settle

__all__ = ("PRELUDE", "Compiled", "Sight", "Stage", "play")

GUARD = 3_000
"""Milliseconds after which a run is cut short, so that a bug cannot block the suite."""

PAUSE = 0.04
"""Seconds in which runs with the timeouts of the programs, of 15 milliseconds, are late."""

PRELUDE = '''\
"""A program on which the two differ: run it as it is, and with the argument "theirs"."""
import sys, tempfile, threading, time
import numpy as np
if "theirs" in sys.argv:
    import tensorflow.compat.v1 as tf
    tf.disable_v2_behavior()
else:
    import aioqueue.compat.v1 as tf
folder = tempfile.mkdtemp()
say = print
settle = pause = lambda: time.sleep(0.2)
form = lambda tensor: print(tensor.dtype, tensor.shape)
def session(timeout=0):
    global sess
    sess = tf.Session(config=tf.ConfigProto(operation_timeout_in_ms=timeout))
def here(fetch, feed=None, timeout=None, label=""):
    options = tf.RunOptions(timeout_in_ms=timeout or 0)
    try:
        print(label, sess.run(fetch, feed, options=options))
    except Exception as error:
        print(label, type(error).__name__, getattr(error, "message", error))
near = here
def go(fetch, feed=None, timeout=None):
    label = f"[{sys._getframe(1).f_lineno}]"
    threading.Thread(target=here, args=(fetch, feed, timeout, label), daemon=True).start()
    settle()
'''


class Compiled:
    """A line of a program, ready to be run.

    Attributes:
        target: the name that it assigns to, if it is one.
    """

    def __init__(self, line: str) -> None:
        statement = ast.parse(line).body[0]
        self.target: str | None = None
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            self.target = statement.targets[0].id
        self.code: CodeType = compile(line, "<program>", "exec")


class _Helper(threading.Thread):
    """One run of a session in a thread of its own."""

    def __init__(self, line: int, call: Any) -> None:
        super().__init__(daemon=True)
        self.line = line
        self.outcome: Outcome | None = None
        self._call = call

    def run(self) -> None:
        self.outcome = _outcome(self._call)


Sight = tuple[int, Outcome]
"""What was seen of a line: when it was played, or later when its run ended."""


class Stage:
    """One library with one program on it.

    Args:
        tf: the library.
        folder: where the program may keep files.
        guard: milliseconds after which a run is cut short.
    """

    def __init__(self, tf: Any, folder: str, guard: int = GUARD) -> None:
        self._tf = tf
        self._guard = guard
        self._line = 0
        self._helpers: list[_Helper] = []
        self._has_threads = False  # of its own, such as a queue runner's
        self._seen: list[list[Sight]] = []
        self._names: dict[str, Any] = {
            "tf": tf,
            "np": np,
            "sys": sys,
            "folder": folder,
            "session": self._session,
            "here": self._here,
            "go": self._go,
            "near": self._near,
            "say": lambda value: self._see(made(value)),
            "form": lambda tensor: self._see(("form", form(tensor))),
            "settle": self._settle,
            "pause": self._pause,
        }

    def play(self, lines: Sequence[Compiled]) -> list[list[Sight]]:
        """What is seen at each line, and, last, when the session is closed."""
        with self._tf.Graph().as_default():
            for number, line in enumerate(lines):
                self._line = number
                self._seen.append([])
                try:
                    exec(line.code, self._names)
                except Exception as error:
                    self._see(failed(error))
                else:
                    if line.target is not None:
                        self._see(made(self._names[line.target]))
                self._collect()
            self._line = len(lines)
            self._seen.append([])
            self._end()
        return self._seen

    def _see(self, outcome: Outcome) -> None:
        self._seen[-1].append((self._line, outcome))

    def _session(self, timeout: int | None = None) -> None:
        config = self._tf.ConfigProto(operation_timeout_in_ms=timeout or self._guard)
        self._names["sess"] = self._tf.Session(config=config)

    def _call(self, fetch: Any, feed: Any, timeout: int | None) -> Any:
        sess = self._names["sess"]
        if timeout is None:
            return lambda: sess.run(fetch, feed)
        options = self._tf.RunOptions(timeout_in_ms=timeout)
        return lambda: sess.run(fetch, feed, options=options)

    def _here(self, fetch: Any, feed: Any = None, timeout: int | None = None) -> None:
        self._see(_outcome(self._call(fetch, feed, timeout)))

    def _near(self, fetch: Any, feed: Any = None) -> None:
        self._see(about(_outcome(self._call(fetch, feed, None))))

    def _go(self, fetch: Any, feed: Any = None, timeout: int | None = None) -> None:
        helper = _Helper(self._line, self._call(fetch, feed, timeout))
        alone = not self._helpers and not self._has_threads
        self._helpers.append(helper)
        helper.start()
        if alone:
            helper.join(0.002)
        if helper.is_alive() or not alone:
            settle()

    def _settle(self) -> None:
        self._has_threads = True
        settle()

    def _pause(self) -> None:
        time.sleep(PAUSE)
        self._settle()

    def _collect(self) -> None:
        """See what has ended since the last time."""
        if not self._helpers:
            return
        if len(self._helpers) > 1 or self._helpers[0].line != self._line:
            settle()
        for helper in self._helpers:
            if helper.outcome is not None:
                self._seen[-1].append((helper.line, helper.outcome))
        self._helpers = [helper for helper in self._helpers if helper.outcome is None]

    def _end(self) -> None:
        """Close the session, which ends every run that still blocks."""
        sess = self._names.get("sess")
        coord = self._names.get("coord")
        if coord is not None:
            coord.request_stop()
        if sess is not None:
            try:
                sess.close()
            except RuntimeError:
                pass  # the program has closed it, and it is one that minds
        for helper in self._helpers:
            helper.join(2 * self._guard / 1000)
        if self._has_threads:
            settle()
        # With several, it is chance which is cancelled first, and lets others go on.
        if len(self._helpers) == 1:
            self._see(self._helpers[0].outcome or ("blocked for ever",))


def play(tf: Any, lines: Sequence[Compiled], folder: str, guard: int = GUARD) -> list[list[Sight]]:
    """Play a program on a library.

    Args:
        tf: the library.
        lines: the program.
        folder: where it may keep files.
        guard: milliseconds after which a run is cut short.

    Returns:
        For each line, and for the end, what was seen.
    """
    # Threads that fail are part of the play.
    hook, threading.excepthook = threading.excepthook, lambda args: None
    logging.disable()
    try:
        return Stage(tf, folder, guard).play(lines)
    finally:
        logging.disable(logging.NOTSET)
        threading.excepthook = hook


def _outcome(call: Any) -> Outcome:
    try:
        return described(call())
    except Exception as error:
        return failed(error)
