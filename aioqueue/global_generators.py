"""Finds functions on worker threads that draw from the program's global random generators.

Python's `random`, NumPy and PyTorch each have a generator that all threads of a process share. If
samples draw from it on threads, timing decides which one gets which numbers. So runs with one seed
differ, in the samples and in all else that draws from it, such as the model's dropout. Nothing
fails. So this says so, once.

A warning has to be true, though other threads may draw at the same time. So there are two steps:

1. Now and then, the states of the generators are compared before and after a call. That costs some
   ten microseconds. If none has changed, the function has not drawn.
2. If one has changed, another thread may have done it. So the next calls are watched by a profiler
   of this thread alone, which is told of each function in C that the thread calls. Only what draws
   from a global generator counts: a method of that very generator, or for PyTorch an operator that
   its schema says is random; and only if the state has changed during the call. NumPy's functions
   are no such calls for Python. So for them, lines are watched that name one, and what is named
   must be a method of the global generator.

Where a profiler or a debugger runs already, or the draw is within compiled code, nothing is said.
"""

from __future__ import annotations

import ctypes
import dis
import functools
import inspect
import logging
import os
import pickle
import random
import sys
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from types import CodeType, FrameType, ModuleType
from typing import Any, Final, Protocol

import numpy as np

__all__ = ("DrawsFinder", "FinderInTurn", "WatchedFunction")

_log: Final = logging.getLogger("aioqueue")

_TRIES: Final = 4
"""The number of calls that are watched by a profiler before a suspicion is dropped."""

_LONGEST: Final = 1024
"""The most calls of a thread between two comparisons; at first it is each one that is a power of
two."""

_MEMORY_OF_MT19937: Final = 624 * 4 + 4
"""Bytes: its words, and the place in them."""

_END: Final = object()

_told: Final[set[tuple[str, str]]] = set()
"""The functions of which a warning was given, each with the generator: once in a process."""


def _state_of_python() -> Any:
    return random.getstate()


def _state_of_numpy() -> Any:
    """The memory of the generator: `numpy.random.get_state` takes a hundred times as long."""
    bits = np.random.get_bit_generator()
    if type(bits) is not np.random.MT19937:  # the program has set another one
        return pickle.dumps(bits.state)
    return ctypes.string_at(bits.ctypes.state_address, _MEMORY_OF_MT19937)


def _state_of_torch() -> Any:
    torch = _torch()
    return None if torch is None else torch.get_rng_state().numpy().tobytes()


_STATES: Final[dict[str, Callable[[], Any]]] = {
    "random": _state_of_python,
    "numpy.random": _state_of_numpy,
    "torch": _state_of_torch,
}


def _torch() -> Any:
    """PyTorch, if the program has imported it, all of it."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "default_generator") else None


def _states() -> dict[str, Any]:
    return {name: state() for name, state in _STATES.items()}


class DrawsFinder:
    """Watches the calls of one function on worker threads.

    Any number of threads may call it.

    Args:
        name: what the warning calls the function.
        cure: what to do instead, as a sentence.
    """

    def __init__(self, name: str, cure: str) -> None:
        self._name = name
        self._cure = cure
        self._here = threading.local()

    def __call__(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call a function, which is looked at if that is due in this thread."""
        return self.here().call(function, arguments, named)

    def here(self) -> _Watch:
        """The calls of this thread."""
        watch: _Watch | None = getattr(self._here, "watch", None)
        if watch is None:
            watch = self._here.watch = _Watch(self)
        return watch

    def tell(self, generator: str, draw: str) -> None:
        """Warn, once in a process for this function.

        Args:
            generator: the library whose generator it is.
            draw: what has drawn, and where.
        """
        if (self._name, generator) in _told:
            return
        _told.add((self._name, generator))
        _log.warning(
            "%s draws on threads from the global generator of %s (%s), which all threads of the"
            " program share: runs with one seed differ, in what it makes and in all else that draws"
            " from that generator, such as the dropout of a model. %s",
            self._name,
            generator,
            draw,
            self._cure,
        )

    def is_told(self, generator: str) -> bool:
        """Whether a warning about this generator was given."""
        return (self._name, generator) in _told


class _Watch:
    """The calls in one thread.

    Attributes:
        suspects: the generators that have changed during the last call that was compared.
    """

    __slots__ = ("_finder", "_left", "_stride", "_tries", "suspects")

    def __init__(self, finder: DrawsFinder) -> None:
        self._finder = finder
        self._stride = 1
        self._left = 1
        self._tries = 0
        self.suspects: list[str] = []

    def call(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        """Call a function; look at the call if that is due."""
        self._left -= 1
        if self._left > 0:
            return function(*arguments, **named)
        self._stride = min(_LONGEST, 2 * self._stride)
        self._left = self._stride // 2 or 1
        return self.look(function, arguments, named)

    def look(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        """Call a function, and look for draws meanwhile."""
        if self.suspects and sys.getprofile() is None and sys.gettrace() is None:
            return self._witnessed(function, arguments, named)
        before = _states()
        try:
            return function(*arguments, **named)
        finally:
            self._compared(before)

    def _compared(self, before: dict[str, Any]) -> None:
        is_told = self._finder.is_told
        self.suspects = [
            name
            for name, state in _states().items()
            if state != before[name] and before[name] is not None and not is_told(name)
        ]
        if self.suspects:
            self._left, self._tries = 1, _TRIES

    def _witnessed(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        witness = _Witness(self.suspects)
        witness.begin()
        try:
            return function(*arguments, **named)
        finally:
            witness.end()
            self._judge(witness)

    def _judge(self, witness: _Witness) -> None:
        for generator, draw in witness.found.items():
            self._finder.tell(generator, draw)
        self._tries -= 1
        left = [one for one in self.suspects if one not in witness.found]
        self.suspects = left if self._tries else []
        if self.suspects:
            self._left = 1


class WatchedFunction(Protocol):
    """The owner of a `FinderInTurn`."""

    @property
    def watched(self) -> Callable[..., Any]:
        """What is called."""

    def step_aside(self) -> None:
        """Take the finder away."""


class FinderInTurn:
    """The same for calls that must cost nothing: most are not watched at all.

    It stands before a function for some calls, and then has itself taken away. Its owner puts
    another one there now and then.

    Args:
        finder: for the function.
        owner: has the function, and this object, which does not keep it alive.
    """

    _CALLS: Final = 64

    def __init__(self, finder: DrawsFinder, owner: WatchedFunction) -> None:
        self._finder = finder
        self._owner = weakref.ref(owner)
        self._left = self._CALLS
        self._seen: set[int] = set()

    def __call__(self, value: Any, **named: Any) -> Any:
        owner = self._owner()
        assert owner is not None  # it calls us
        watch, thread = self._finder.here(), threading.get_ident()
        self._left -= 1
        if thread in self._seen and not watch.suspects:
            if self._left <= 0:
                owner.step_aside()
            return owner.watched(value, **named)
        self._seen.add(thread)
        made = watch.look(owner.watched, (value,), named)
        return self._each(made, watch) if inspect.isgenerator(made) else made

    def _each(self, made: Generator[Any, Any, Any], watch: _Watch) -> Generator[Any, None, None]:
        with closing(made):
            while (example := watch.look(next, (made, _END), {})) is not _END:
                yield example
                if not watch.suspects:
                    break
            yield from made


class _Witness:
    """Sees which calls, or lines, of this thread change a global generator.

    Args:
        suspects: the generators to look at.

    Attributes:
        found: the first draw from each, and where that was.
    """

    def __init__(self, suspects: list[str]) -> None:
        self.found: dict[str, str] = {}
        self._suspects = suspects
        self._drawing: tuple[Any, str, Any] | None = None

    def begin(self) -> None:
        """Watch from here on."""
        if "numpy.random" in self._suspects:
            sys.settrace(self._entered)
        sys.setprofile(self._called)

    def end(self) -> None:
        """Watch no more."""
        sys.setprofile(None)
        if "numpy.random" in self._suspects:
            sys.settrace(None)

    def _called(self, frame: FrameType, event: str, function: Any) -> None:
        """The profiler: a function in C is called, or has returned."""
        if event == "c_call":
            generator = _generator_of(function)
            if generator not in self._suspects or generator in self.found:
                return
            if function.__name__ in _SEEDING:  # perhaps with the same seed, in each call
                self.found[generator] = _described(frame, generator, function.__name__)
            else:
                self._drawing = (function, generator, _STATES[generator]())
        elif self._drawing is not None and event in ("c_return", "c_exception"):
            drawing, generator, before = self._drawing
            if function is drawing or function == drawing:
                self._drawing = None
                if _STATES[generator]() != before:
                    self.found[generator] = _described(frame, generator, function.__name__)

    def _entered(self, frame: FrameType, event: str, argument: Any) -> Any:
        """The tracer: a frame is entered. Returns who follows its lines, if that is of use."""
        del event, argument
        code, known = frame.f_code, frame.f_globals
        aliases = frozenset(
            name for name in code.co_names if _is_of_numpys_generator(known.get(name))
        )
        chains = _chains_of(code, aliases)
        return _Lines(self.found, chains).follow if chains else None


class _Lines:
    """The lines of one frame that name a function of NumPy's global generator."""

    def __init__(self, found: dict[str, str], chains: dict[int, list[_Chain]]) -> None:
        self._found = found
        self._chains = chains
        self._before: tuple[int, Any] | None = None

    def follow(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Compare the states before and after each line."""
        del event, argument
        if "numpy.random" in self._found:
            return None
        if self._before is not None:
            line, state = self._before
            self._before = None
            has_changed = _state_of_numpy() != state
            for chain in self._chains[line]:
                may_draw = has_changed or chain[-1] in _SEEDING
                if may_draw and _is_of_numpys_generator(_resolved(chain, frame)):
                    draw = _described(frame, "numpy.random", chain[-1], line)
                    self._found["numpy.random"] = draw
        if frame.f_lineno in self._chains:
            self._before = (frame.f_lineno, _state_of_numpy())
        return self.follow


_SEEDING: Final = ("seed", "manual_seed")
"""Functions that set a generator, which is as bad: the rest of the program then draws the same."""

_Chain = tuple[str, ...]
"""A name, and attributes of it: ``np.random.rand``."""

_NUMPYS_NAMES: Final = frozenset(
    name for name in dir(np.random.RandomState) if not name.startswith("_")
) | {"ranf", "sample"}


@functools.lru_cache(maxsize=64)
def _chains_of(code: CodeType, aliases: frozenset[str]) -> dict[int, list[_Chain]]:
    """Where code names a function that NumPy's global generator has, by line.

    Args:
        code: of a function.
        aliases: names in its module that are such functions.
    """
    names = _NUMPYS_NAMES | aliases
    if not names.intersection(code.co_names + code.co_varnames + code.co_freevars):
        return {}
    found: dict[int, list[_Chain]] = {}
    chain: _Chain = ()
    for one in dis.get_instructions(code):
        name = one.argval[-1] if isinstance(one.argval, tuple) and one.argval else one.argval
        if one.opname in ("LOAD_ATTR", "LOAD_METHOD") and chain:
            chain += (str(name),)
        elif one.opname.startswith(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_DEREF")):
            chain = (str(name),)
        else:
            chain = chain if one.opname in ("CACHE", "PUSH_NULL") else ()
        line = one.positions.lineno if one.positions is not None else None
        if line is not None and chain and chain[-1] in names:
            found.setdefault(line, []).append(chain)
    return found


def _resolved(chain: _Chain, frame: FrameType) -> Any:
    """What a chain of names is, without running code of the user's; None if that is unknown."""
    name, *attributes = chain
    found = frame.f_locals.get(name, frame.f_globals.get(name))
    for one in attributes:
        if isinstance(found, ModuleType) or found is _OF_NUMPY:
            found = getattr(found, one, None)
        else:
            found = getattr(found, "__dict__", {}).get(one)
    return found


def _is_of_numpys_generator(function: Any) -> bool:
    owner = getattr(function, "__self__", None)
    module = getattr(function, "__module__", None)
    return owner is _OF_NUMPY or (owner is None and module == np.random.mtrand.__name__)


def _generator_of(function: Any) -> str | None:
    """The library whose global generator a function in C may draw from."""
    owner = getattr(function, "__self__", None)
    if owner is _OF_PYTHON:
        return "random"
    if owner is not None and owner is _OF_NUMPY:
        return "numpy.random"  # before version 2 of NumPy
    torch = _torch()
    if torch is None:
        return None
    if owner is torch.default_generator:
        return "torch"
    module = str(getattr(function, "__module__", None))
    is_torchs = module.partition(".")[0] == "torch" or isinstance(owner, torch.Tensor)
    return "torch" if is_torchs and _is_random(torch, function.__name__) else None


_OF_PYTHON: Final = random.random.__self__  # type: ignore[attr-defined]
_OF_NUMPY: Final = np.random.mtrand._rand

_random_names: Final[dict[str, bool]] = {}
"""Whether PyTorch's operators are random, by name, of those that were asked for."""


def _is_random(torch: Any, name: str) -> bool:
    known = _random_names.get(name)
    if known is None:
        packet = getattr(torch.ops.aten, name, None)
        tag = torch.Tag.nondeterministic_seeded
        overloads = [] if packet is None else map(packet.__getattr__, packet.overloads())
        known = _random_names[name] = any(tag in one.tags for one in overloads)
    return known


_LIBRARIES: Final = ("random", "numpy", "torch")
"""Packages whose own frames are no place that helps."""


def _described(frame: FrameType, generator: str, name: str, line: int | None = None) -> str:
    """What has drawn, and the line that asked for it.

    Args:
        frame: that called it.
        generator: the library whose generator it is.
        name: of the function.
        line: in that frame; None for the current one.
    """
    asks = frame
    while asks.f_back is not None:
        package = str(asks.f_globals.get("__name__")).partition(".")[0]
        if package not in _LIBRARIES:
            break
        if generator == "random":
            name = asks.f_code.co_name  # `shuffle`, not the `getrandbits` within it
        asks, line = asks.f_back, None
    path = asks.f_code.co_filename
    with suppress(OSError, ValueError):  # the folder is gone; a name that is no path
        path = min(os.path.relpath(path), path, key=len)
    return f"{generator}.{name}, {path}:{asks.f_lineno if line is None else line}"
