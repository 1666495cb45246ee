"""Finds functions on worker threads that draw from the program's global random generators.

Python's `random`, NumPy and PyTorch each have a generator that all threads of a process share. If
samples draw from it on threads, timing decides which one gets which numbers. So runs with one seed
differ, in the samples and in all else that draws from it, such as the model's dropout. Nothing
fails. So this says so, once.

A warning has to be true, though other threads may draw at the same time. So there are two steps:

1. Now and then, the states of the generators are compared before and after a call. That costs some
   ten microseconds. If none has changed, the function has not drawn.
2. If one has changed, another thread may have done it. So the next calls are watched by a profiler
   of this thread alone, which Python notifies of each function in C that the thread calls. Only
   what draws from a global generator counts: a method of that very generator, or for PyTorch an
   operator that its schema says is random; and only if the state has changed during the call.
   NumPy's functions are no such calls for Python. So for them, lines are watched that name one, and
   what is named must be a method of the global generator.

   PyTorch gives way to other threads during a call. So one change proves nothing for an operator
   that may have a generator of its own: there, each of several calls must have changed the state.

The first call of each thread is watched in that way at once. That also finds a function which sets
a generator to the same seed in each call, and so leaves it as it was.

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

_log: Final = logging.getLogger("aioqueue")

_MIN_DRAWS: Final = {"random": 1, "numpy.random": 3, "torch": 8}
"""How often one place in the code must have drawn."""

_MIN_SHARE: Final = {"random": 0.0, "numpy.random": 0.4, "torch": 1.0}
"""In which part of the times that it might have. A line is also passed where a loop ends."""

_MAX_WATCHED: Final = 24
"""The number of calls that are watched by a profiler before a suspicion is dropped."""

_MAX_STRIDE: Final = 1024
"""The most calls of a thread between two comparisons; at first, each is compared."""

_MEMORY_OF_MT19937: Final = 624 * 4 + 4
"""Bytes: its words, and the place in them."""

_EXHAUSTED: Final = object()

_warned: Final[set[tuple[str, str]]] = set()
"""The functions that were reported, each with the generator: once in a process."""


def _state_of_python() -> Any:
    return random.getstate()


def _state_of_numpy() -> Any:
    """Return the generator's memory; `numpy.random.get_state` takes a hundred times as long."""
    bits: Any = np.random.get_bit_generator()  # type: ignore[attr-defined]
    if type(bits) is not np.random.MT19937:  # the program has set another one
        return pickle.dumps(bits.state)
    return ctypes.string_at(bits.ctypes.state_address, _MEMORY_OF_MT19937)


def _state_of_torch() -> Any:
    torch = _imported_torch()
    return None if torch is None else torch.get_rng_state().numpy().tobytes()


_STATES: Final[dict[str, Callable[[], Any]]] = {
    "random": _state_of_python,
    "numpy.random": _state_of_numpy,
    "torch": _state_of_torch,
}


def _whole_state_of_numpy() -> Any:
    """Return that memory, and what `numpy.random.normal` keeps for its next call."""
    return pickle.dumps(np.random.get_state(legacy=False))


def _imported_torch() -> Any:
    """Return PyTorch if the program has imported it completely; otherwise ``None``."""
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
        self._local = threading.local()

    def __call__(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call a function, and check the call if that is due in this thread."""
        return self.of_this_thread().call(function, arguments, named)

    def of_this_thread(self) -> _Watch:
        watch: _Watch | None = getattr(self._local, "watch", None)
        if watch is None:
            watch = self._local.watch = _Watch(self)
        return watch

    def warn(self, generator: str, draw: str) -> None:
        """Warn, once in a process for this function.

        Args:
            generator: the library whose generator it is.
            draw: what has drawn, and where.
        """
        if (self._name, generator) in _warned:
            return
        _warned.add((self._name, generator))
        _log.warning(
            "%s draws on threads from the global generator of %s (%s), which all threads of the"
            " program share: runs with one seed differ, in what it makes and in all else that draws"
            " from that generator, such as the dropout of a model. %s",
            self._name,
            generator,
            draw,
            self._cure,
        )

    def has_warned(self, generator: str) -> bool:
        return (self._name, generator) in _warned


class _Watch:
    """The calls in one thread.

    Attributes:
        suspects: the generators that have changed during the last call that was compared.
    """

    __slots__ = ("_calls_left", "_finder", "_is_first", "_places", "_stride", "_tries", "suspects")

    def __init__(self, finder: DrawsFinder) -> None:
        self._finder = finder
        self._is_first = True
        self._stride = 1
        self._calls_left = 1
        self._tries = _MAX_WATCHED
        self._places: Places = {}
        self.suspects: list[str] = []

    def call(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        """Call a function; check the call if that is due."""
        self._calls_left -= 1
        if self._calls_left > 0:
            return function(*arguments, **named)
        self._calls_left = self._stride
        self._stride = min(_MAX_STRIDE, self._stride + 1 + self._stride // 2)
        return self.call_checked(function, arguments, named)

    def call_checked(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        """Call a function, and check whether it draws."""
        is_wanted, self._is_first = self._is_first or bool(self.suspects), False
        if is_wanted and sys.getprofile() is None and sys.gettrace() is None:
            return self._call_with_witness(function, arguments, named)
        before = _states()
        try:
            return function(*arguments, **named)
        finally:
            self._compare_states(before)

    def _compare_states(self, before: dict[str, Any]) -> None:
        has_warned = self._finder.has_warned
        self.suspects = [
            name
            for name, state in _states().items()
            if state != before[name] and before[name] is not None and not has_warned(name)
        ]
        if self.suspects:
            self._calls_left, self._tries, self._places = 1, _MAX_WATCHED, {}

    def _call_with_witness(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        suspects = self.suspects or [one for one in _STATES if not self._finder.has_warned(one)]
        witness = _Witness(suspects, self._places)
        witness.start()
        try:
            return function(*arguments, **named)
        finally:
            witness.stop()
            self._judge(suspects)

    def _judge(self, suspects: list[str]) -> None:
        undecided = set[str]()
        for (generator, draw), (draws, checks) in self._places.items():
            if draws < checks * _MIN_SHARE[generator]:
                continue
            if draws >= _MIN_DRAWS[generator]:
                self._finder.warn(generator, draw)
            else:
                undecided.add(generator)
        self._tries -= 1
        if self.suspects:  # they may draw rarely
            undecided.update(suspects)
        warned = self._finder.has_warned
        self.suspects = [one for one in suspects if one in undecided and not warned(one)]
        if self._tries <= 0:
            self.suspects = []
        if self.suspects:
            self._calls_left = 1
        else:
            self._places, self._tries = {}, _MAX_WATCHED


class WatchedFunction(Protocol):
    """The owner of a `SamplingFinder`."""

    @property
    def function(self) -> Callable[..., Any]: ...

    def remove_finder(self) -> None: ...


class SamplingFinder:
    """The same for calls that must cost nothing: most are not watched at all.

    It wraps a function for some calls, and then asks its owner to remove it. The owner wraps the
    function again now and then.

    Args:
        finder: for the function.
        owner: has the function, and this object, which does not keep it alive.
    """

    _CALLS: Final = 12
    _EXAMPLES: Final = 64

    def __init__(self, finder: DrawsFinder, owner: WatchedFunction) -> None:
        self._finder = finder
        self._owner = weakref.ref(owner)
        self._calls_left = self._CALLS
        self._seen: dict[int, _Watch] = {}

    def __call__(self, value: Any, **named: Any) -> Any:
        owner = self._owner()
        assert owner is not None  # it calls us
        watch = self._seen.get(threading.get_ident())
        if watch is not None and not watch.suspects:
            self._calls_left -= 1
            if self._calls_left <= 0:
                owner.remove_finder()
            return owner.function(value, **named)
        watch = self._seen[threading.get_ident()] = self._finder.of_this_thread()
        made = watch.call_checked(owner.function, (value,), named)
        return self._check_examples(made, watch) if inspect.isgenerator(made) else made

    def _check_examples(
        self, made: Generator[Any, Any, Any], watch: _Watch
    ) -> Generator[Any, None, None]:
        with closing(made):
            for _ in range(self._EXAMPLES):
                example = watch.call_checked(next, (made, _EXHAUSTED), {})
                if example is _EXHAUSTED:
                    return
                yield example
            yield from made


Places = dict[tuple[str, str], tuple[int, int]]
"""For a generator and a place in the code, how often that has drawn, and how often it might."""


def _count_draws(places: Places, place: tuple[str, str], has_drawn: bool, count: int = 1) -> None:
    draws, checks = places.get(place, (0, 0))
    places[place] = (draws + count * has_drawn, checks + count)


class _Witness:
    """Sees which calls, or lines, of this thread change a global generator.

    Args:
        suspects: the generators to look at.
        places: what is seen is added to it.
    """

    def __init__(self, suspects: list[str], places: Places) -> None:
        self._places = places
        self._suspects = suspects
        self._drawing: tuple[Any, str, Any] | None = None

    def start(self) -> None:
        if "numpy.random" in self._suspects:
            sys.settrace(self._trace_call)
        sys.setprofile(self._profile)

    def stop(self) -> None:
        sys.setprofile(None)
        if "numpy.random" in self._suspects:
            sys.settrace(None)

    def _profile(self, frame: FrameType, event: str, function: Any) -> None:
        """Note each call of a C function and its return; `sys.setprofile` calls this."""
        if event == "c_call":
            generator = _generator_of(function)
            if generator not in self._suspects or function.__name__ in _READING:
                return
            if function.__name__ in _SEEDING:  # perhaps with the same seed, in each call
                place = (generator, _describe(frame, generator, function.__name__))
                _count_draws(self._places, place, True, _MIN_DRAWS[generator])
            else:
                self._drawing = (function, generator, _STATES[generator]())
        elif self._drawing is not None and event in ("c_return", "c_exception"):
            drawing, generator, before = self._drawing
            if function is drawing or function == drawing:
                self._drawing = None
                has_changed = _STATES[generator]() != before
                place = (generator, _describe(frame, generator, function.__name__))
                _count_draws(self._places, place, has_changed)

    def _trace_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Return the tracer for the lines of a frame that may draw; `sys.settrace` calls this."""
        del event, argument
        code, known = frame.f_code, frame.f_globals
        aliases = frozenset(
            name for name in code.co_names if _is_of_numpys_generator(known.get(name))
        )
        chains = _chains_of(code, aliases)
        if not chains:
            return None
        lines = _DrawingLines(self._places, chains)
        if any(chain[-1] in _SEEDING for named in chains.values() for _, chain in named):
            lines.watch_seeds(frame)
        return lines.follow


class _DrawingLines:
    """The lines of one frame that name a function of NumPy's global generator."""

    def __init__(self, places: Places, chains: _Chains) -> None:
        self._places = places
        self._chains = chains
        self._before: tuple[int, Any] | None = None
        self._passed: set[int] = set()  # instructions since then
        self._seeds: _SeedCalls | None = None
        self._seen: dict[str, bool] = {}  # a statement may have several lines

    def watch_seeds(self, frame: FrameType) -> None:
        """Note which of the frame's seeds are run, for a seed may leave the state as it was."""
        if sys.version_info >= (3, 12):
            # Instructions are not traced there while calls are profiled.
            self._seeds = _SeedCalls(frame.f_code)
        else:
            frame.f_trace_opcodes = True

    def follow(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Compare the states before and after each line."""
        del argument
        if event == "opcode":
            self._passed.add(frame.f_lasti)
            return self.follow
        if self._before is not None:
            line, state = self._before
            self._before = None
            has_changed = _whole_state_of_numpy() != state
            for offset, chain in self._chains[line]:
                if _is_of_numpys_generator(_resolve(chain, frame)):
                    draw = _describe(frame, "numpy.random", chain[-1], line)
                    # It may be in a part of its line that is not run:
                    # `if seed is not None: np.random.seed(seed)`.
                    has_drawn = has_changed or (chain[-1] in _SEEDING and self._was_run(offset))
                    self._seen[draw] = self._seen.get(draw, False) or has_drawn
        self._passed.clear()
        if self._seeds is not None:
            self._seeds.calls = 0
            if event == "return":
                self._seeds.stop()
        if event == "return":
            for draw, has_drawn in self._seen.items():
                _count_draws(self._places, ("numpy.random", draw), has_drawn)
        elif frame.f_lineno in self._chains:
            self._before = (frame.f_lineno, _whole_state_of_numpy())
        return self.follow

    def _was_run(self, offset: int) -> bool:
        return offset in self._passed if self._seeds is None else self._seeds.calls > 0


class _SeedCalls:
    """Counts the calls by which code sets NumPy's global generator, in the thread that makes this.

    Args:
        code: of a function that is about to run.

    Attributes:
        calls: how many there were.
    """

    def __init__(self, code: CodeType) -> None:
        self.calls: int = 0
        self._code = code
        self._thread = threading.get_ident()
        with _lock_of_seeds:
            _seed_calls.append(self)
            _monitor_seeds(code)

    def stop(self) -> None:
        with _lock_of_seeds:
            _seed_calls.remove(self)
            _monitor_seeds(self._code)

    def note(self, code: CodeType) -> None:
        if code is self._code and threading.get_ident() == self._thread:
            self.calls += 1


_seed_calls: Final[list[_SeedCalls]] = []
_lock_of_seeds: Final = threading.Lock()
_tools: Final[list[int]] = []  # our number among the tools that monitor the program


def _monitor_seeds(code: CodeType) -> None:
    """Begin or end to be called for each call that code makes, as `_seed_calls` asks for it."""
    if sys.version_info >= (3, 12):
        monitoring = sys.monitoring
        if not _tools:
            # Those without a name among the tools. If none is free, seeds are not found.
            for number in (3, 4):
                if monitoring.get_tool(number) is None:
                    monitoring.use_tool_id(number, "aioqueue")
                    monitoring.register_callback(number, monitoring.events.CALL, _note_call)
                    _tools.append(number)
                    break
        for number in _tools:
            is_wanted = any(one._code is code for one in _seed_calls)
            monitoring.set_local_events(number, code, monitoring.events.CALL * is_wanted)
            if not _seed_calls:
                monitoring.register_callback(number, monitoring.events.CALL, None)
                monitoring.free_tool_id(number)
        if not _seed_calls:
            _tools.clear()


def _note_call(code: CodeType, offset: int, function: Any, argument: Any) -> None:
    del offset, argument
    if getattr(function, "__name__", None) in _SEEDING and _is_of_numpys_generator(function):
        for one in _seed_calls.copy():  # others begin and stop
            one.note(code)


_SEEDING: Final = ("seed", "manual_seed")
"""Functions that set a generator, which is as bad: the rest of the program then draws the same."""

_READING: Final = frozenset(
    {"getstate", "get_state", "clone_state", "graphsafe_get_state", "initial_seed"}
)
"""Functions of a generator that never change it: if it has changed meanwhile, others have drawn."""

_Chain = tuple[str, ...]
"""A name, and attributes of it: ``np.random.rand``."""

_Chains = dict[int, list[tuple[int, _Chain]]]
"""For a line, each chain with the place of the instruction that loads its last attribute."""

_NUMPYS_NAMES: Final = frozenset(
    name
    for name in (*dir(np.random.RandomState), "ranf", "sample")
    if not (name.startswith("_") or name in _READING)
)


@functools.lru_cache(maxsize=64)
def _chains_of(code: CodeType, aliases: frozenset[str]) -> _Chains:
    """Where code names a function that NumPy's global generator has, by line.

    Args:
        code: of a function.
        aliases: names in its module that are such functions.
    """
    names = _NUMPYS_NAMES | aliases
    if not names.intersection(code.co_names + code.co_varnames + code.co_freevars):
        return {}
    found: _Chains = {}
    chain: _Chain = ()
    begins: int | None = None
    for one in dis.get_instructions(code):
        begins = one.offset if begins is None else begins
        if one.opname == "EXTENDED_ARG":  # a part of the next instruction
            continue
        name = one.argval[-1] if isinstance(one.argval, tuple) and one.argval else one.argval
        if one.opname in ("LOAD_ATTR", "LOAD_METHOD") and chain:
            chain += (str(name),)
        elif one.opname.startswith(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_DEREF")):
            chain = (str(name),)
        else:
            chain = chain if one.opname in ("CACHE", "PUSH_NULL") else ()
        line = one.positions.lineno if one.positions is not None else None
        if line is not None and chain and chain[-1] in names:
            found.setdefault(line, []).append((begins, chain))
        begins = None
    return found


def _resolve(chain: _Chain, frame: FrameType) -> Any:
    """Return what a chain of names refers to, without running user code; ``None`` if unknown."""
    name, *attributes = chain
    found = frame.f_locals.get(name, frame.f_globals.get(name))
    for one in attributes:
        if isinstance(found, ModuleType) or found is _OF_NUMPY:
            found = getattr(found, one, None)
        else:
            found = getattr(found, "__dict__", {}).get(one)
    return found


def _is_of_numpys_generator(function: Any) -> bool:
    if getattr(function, "__self__", None) is _OF_NUMPY:
        return True
    return any(function is one for one in (np.random.seed, np.random.sample, np.random.ranf))


def _generator_of(function: Any) -> str | None:
    """Return the library from whose global generator a C function may draw."""
    owner = getattr(function, "__self__", None)
    if owner is _OF_PYTHON:
        return "random"
    if owner is not None and owner is _OF_NUMPY:
        return "numpy.random"  # before version 2 of NumPy
    torch = _imported_torch()
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
"""Whether PyTorch's operators are random, by name; a cache."""


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


def _describe(frame: FrameType, generator: str, name: str, line: int | None = None) -> str:
    """Describe a draw: the function, and the line that called it.

    Args:
        frame: that called it.
        generator: the library whose generator it is.
        name: of the function.
        line: in that frame; None for the current one.
    """
    caller = frame
    while caller.f_back is not None:
        package = str(caller.f_globals.get("__name__")).partition(".")[0]
        if package not in _LIBRARIES:
            break
        if generator == "random":
            name = caller.f_code.co_name  # `shuffle`, not the `getrandbits` within it
        caller, line = caller.f_back, None
    path = caller.f_code.co_filename
    with suppress(OSError, ValueError):  # the folder was deleted; a name that is no path
        path = min(os.path.relpath(path), path, key=len)
    return f"{generator}.{name}, {path}:{caller.f_lineno if line is None else line}"
