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
import os
import re
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np

Outcome = tuple[Any, ...]
"""Nested tuples of plain values; equal for equal behaviour."""

TOLERANCES = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-11, "complex64": 1e-5}
"""How far numbers may be apart, of one or of the larger of the two, where their last bits depend
on the order in which a library adds, and on whose `exp` it calls."""

# Queues and other resources without a shared name are numbered through the whole process.
PRIVATE_NUMBER = re.compile(r"'_\d+_")

# TensorFlow 2 tells first where a node was made, and that there were others if several failed.
PREAMBLE = re.compile(
    r"\AGraph execution error:\n\n(.*?^Node: '[^\n]*'\n)*", re.DOTALL | re.MULTILINE
)

SEVERAL = re.compile(r"\A\d+ root error\(s\) found\.\n\s*\(0\) \w+: ")

NODE = re.compile(r"\s*\n\s*\[\[.*", re.DOTALL)

# How TensorFlow 2 shows the node that was to be built.
BUILT_NODE = re.compile(r" for '\{\{node .*| for '[^']*' \(op: .*", re.DOTALL)

# What TensorFlow 2 says around the message of TensorFlow 1.
AROUND = re.compile(
    r"\A(component_\d+: "
    r"|Expected \w+ passed to parameter '\w+' of op '\w+', got .* of type '\w+' instead\. Error: "
    r"|Tried to convert '\w+' to a tensor and failed\. Error: )",
    re.DOTALL,
)

# Where a Python function failed, and where a variable was made, which only TensorFlow 2 tells.
TRACEBACK = re.compile(
    r"\n+Traceback \(most recent call last\):\n.*|(?<=Originally defined at:).*", re.DOTALL
)

# What TensorFlow 2 puts before a message as text, which is not to be relied on.
DEBUG = re.compile(r"goo\.gle/debug\w* *")

# Python functions are numbered through the whole process.
FUNCTION_NUMBER = re.compile(r"\bpyfunc_\d+\b")

# The op that parses examples; TensorFlow 2 has a second version of it.
PARSING = re.compile(r"(?<=Example)(_\d+)?/Parse(Single)?(Sequence)?Example\w*(/\w+)?\Z")

# The nodes of an assertion, within what asserts.
ASSERTION = re.compile(r"/Assert(_\d+)?(/Assert)?\Z")

# Two ops that `logical_xor` is made of: TensorFlow runs both at once, and either may fail first.
EITHER = re.compile(r"\bLogical(Or|And)(_\d+)?\Z")

# Shapes that do not fit: TensorFlow exchanges operands where it can, to have constants first.
NO_FIT = re.compile(r"(?<=Incompatible shapes: )(\[[\d,]*\]) vs\. (\[[\d,]*\])")

# Kinds of pictures that TensorFlow 2.21 reads beside those of TensorFlow 1.
NEWER_KINDS = re.compile(r"JPEG XL, |, WebP(?= required)")

# The names of threads, which come out of a set.
STRAGGLERS = re.compile(r"(?<=threads still running: ).*")


def described(value: Any) -> Outcome:
    """A value that a session returned: its type, dtype, shape and contents."""
    if isinstance(value, np.ndarray):
        return ("array", str(value.dtype), value.shape, _listed(value.tolist()))
    if isinstance(value, np.generic):
        return ("scalar", str(value.dtype), repr(value.item()))
    if isinstance(value, Mapping):
        return ("dict", *((str(key), described(item)) for key, item in sorted(value.items())))
    if isinstance(value, (list, tuple)):
        return (_sequence(value), *map(described, value))
    return (type(value).__name__, repr(value))


def made(value: Any) -> Outcome:
    """Something that a line of a program has built: names, dtypes, shapes."""
    if isinstance(value, (list, tuple)):
        return (_sequence(value), *map(made, value))
    if isinstance(value, Mapping):
        return ("dict", *((str(key), made(item)) for key, item in sorted(value.items())))
    if hasattr(value, "enqueue_many"):
        dtypes = tuple(str(getattr(dtype, "name", dtype)) for dtype in value.dtypes)
        shapes = tuple(map(str, value.shapes))
        return ("queue", type(value).__name__, value.name, dtypes, shapes, str(value.names))
    if hasattr(value, "value_index"):
        return ("tensor", value.name, value.dtype.name, str(value.shape))
    if hasattr(value, "outputs") and hasattr(value, "type"):
        return ("operation", value.name, value.type)
    if hasattr(value, "initializer") and hasattr(value, "dtype"):
        return ("variable", value.name, value.dtype.base_dtype.name, str(value.shape))
    if isinstance(value, (bool, int, float, str, bytes, type(None), np.generic, np.ndarray)):
        return described(value)
    return (type(value).__name__,)


def about(outcome: Outcome) -> Outcome:
    """What was seen; the last bits of floats do not count."""
    return ("about", outcome)


def nearly(one: Any, other: Any) -> bool:
    """Whether two outcomes are the same but for the last bits of floats."""
    if not (isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other)):
        return bool(one == other)
    if one and one[0] in ("array", "scalar") and one[:-1] == other[:-1]:
        tolerance = TOLERANCES.get(one[1])
        if tolerance is not None:
            return np.allclose(_numbers(one), _numbers(other), tolerance, tolerance, True)
    return all(map(nearly, one, other))


def _numbers(outcome: Outcome) -> Any:
    """The floats of an array or a scalar that `told` has spelled."""
    return np.vectorize(complex, otypes=[complex])(np.array(outcome[-1]))


def form(tensor: Any) -> Outcome:
    """What is known of a tensor, or of several, before they are computed."""
    if isinstance(tensor, Mapping):
        return ("dict", *((str(key), form(item)) for key, item in sorted(tensor.items())))
    if isinstance(tensor, (list, tuple)):
        return (_sequence(tensor), *map(form, tensor))
    if hasattr(tensor, "dense_shape"):
        return ("sparse tensor", tensor.dtype.name, _static(tensor.get_shape()))
    if not hasattr(tensor, "dtype"):
        return described(tensor)
    return ("tensor", tensor.dtype.base_dtype.name, _static(tensor.shape))


def _static(shape: Any) -> Outcome:
    return ("shape", None if shape.ndims is None else tuple(shape.as_list()))


def is_as_informative(expected: Any, got: Any) -> bool:
    """Whether two forms are the same, but for sizes that are known only in the second."""
    if not (isinstance(expected, tuple) and isinstance(got, tuple)):
        return bool(expected == got)
    if expected[:1] == got[:1] == ("shape",):
        few, many = expected[1], got[1]
        return few is None or (
            many is not None
            and len(few) == len(many)
            and all(one in (None, other) for one, other in zip(few, many, strict=True))
        )
    return len(expected) == len(got) and all(map(is_as_informative, expected, got))


def failed(error: BaseException) -> Outcome:
    """An exception: its class, what it says, and the op that failed."""
    op = getattr(error, "op", None)
    text = text_of(error)
    where = None if op is None else PARSING.sub(r"\1", ASSERTION.sub("", op.name))
    if where is not None and text.startswith("Incompatible shapes"):
        where = EITHER.sub("LogicalOr or LogicalAnd", where)
    return ("raises", type(error).__name__, text, where)


def text_of(error: BaseException) -> str:
    """The message of an exception, without numbers and places that are the library's own."""
    text = str(getattr(error, "message", error))
    text = SEVERAL.sub("", PREAMBLE.sub("", text))
    text = FUNCTION_NUMBER.sub("pyfunc_N", DEBUG.sub("", TRACEBACK.sub("", text)))
    text = BUILT_NODE.sub("", NODE.sub("", text))
    text = STRAGGLERS.sub(lambda found: " ".join(sorted(found[0].split())), text)
    text = NEWER_KINDS.sub("", text)
    text = NO_FIT.sub(lambda found: " vs. ".join(sorted(found.groups())), text)
    return AROUND.sub("", PRIVATE_NUMBER.sub("'_N_", text)).strip()


def _sequence(value: Any) -> str:
    """What kind of sequence it is; of named tuples, whose classes have many names, the fields."""
    return " ".join(getattr(value, "_fields", [type(value).__name__]))


def _listed(values: Any) -> Any:
    """Nested lists as tuples, with numbers spelled so that NaN equals itself."""
    if isinstance(values, list):
        return tuple(map(_listed, values))
    return repr(values)


TASKS = Path("/proc/self/task")

BETWEEN = 0.0003
"""Seconds between two looks: long enough for a thread that waits for the interpreter's lock."""

BLIND_PAUSE = 0.05
"""Seconds that are taken for long enough where the operating system does not tell."""


def settle() -> None:
    """Wait until all other threads of the process sleep, and go on sleeping."""
    if not TASKS.is_dir():
        time.sleep(BLIND_PAUSE)
        return
    before = None
    while (now := _asleep()) is None or now != before:
        before = now
        time.sleep(BETWEEN)


def _asleep() -> dict[str, bytes] | None:
    """For each other thread how long it has run, if all of them sleep; else None."""
    own = str(threading.get_native_id())
    times = {}
    for thread in os.listdir(TASKS):
        if thread == own:
            continue
        try:
            state = _read(f"/proc/self/task/{thread}/stat").rpartition(b") ")[2][:1]
            times[thread] = _read(f"/proc/self/task/{thread}/schedstat")
        except (FileNotFoundError, ProcessLookupError):
            return None  # it has just ended
        if state != b"S":
            return None
    return times


def _read(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 1024)
    finally:
        os.close(file)


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
    """A line of a program, ready to be run."""

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
    """One library with one program on it."""

    def __init__(self, tf: Any, folder: str, guard: int = GUARD) -> None:
        self._tf = tf
        self._guard = guard
        self._line = 0
        self._helpers: list[_Helper] = []
        self._has_threads = False  # of its own, such as a queue runner's
        self._seen: list[list[Sight]] = []
        self._names: dict[str, Any] = {
            "tf": tf, "np": np, "sys": sys, "folder": folder, "session": self._session,
            "here": self._here, "go": self._go, "near": self._near,
            "say": lambda value: self._see(made(value)),
            "form": lambda tensor: self._see(("form", form(tensor))), "settle": self._settle,
            "pause": self._pause,
        }  # fmt: skip

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
    """Play a program on a library."""
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
