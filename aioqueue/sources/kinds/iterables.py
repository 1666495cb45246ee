"""Sources over iterables: generators, streams of other libraries, async iterables.

Some iterables have a state of their own: `Stateful`, as PyTorch calls it. A library may put
anything into such a state. Here it is converted to plain JSON types, so that a position can contain
it. Nothing is pickled, so loading a position runs no code.
"""

from __future__ import annotations

import inspect
import logging
import math
import time
from base64 import b85decode, b85encode
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias, TypeGuard, TypeVar, overload

import numpy as np

from aioqueue import AsyncQueue, InvalidArgumentError, sync
from aioqueue.base.arguments import checked_flag, function_name
from aioqueue.core.elements.ownership import copy_if_shared
from aioqueue.core.elements.values import is_table
from aioqueue.errors import with_article
from aioqueue.fingerprints.contents import digest_of_items
from aioqueue.items.item import Entry, PlacedEntry, closing_run
from aioqueue.items.positions import Place, checked_numbers, misplaced, refusing_wrong_values
from aioqueue.sources.base import Determined, Scan
from aioqueue.sources.kinds.sequences import rows_of_table
from aioqueue.sources.kinds.source import BuiltinSource, Source
from aioqueue.system.forks import PROCESS, inherited_error

_log: Final = logging.getLogger("aioqueue")

_EVERY: Final = 64
"""Items from one state to the next, at least."""

_SHARE: Final = 50
"""How much longer reading items lasts than saving the state between them, at least."""

_KIND: Final = "!"
"""The key that marks the JSON object of a value that JSON cannot represent."""


class Stateful(Protocol):
    """What can say where it is, and go there."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any, /) -> Any: ...


def is_stateful(thing: object) -> TypeGuard[Stateful]:
    """Return whether an object can report its position and resume from one."""
    names = ("state_dict", "load_state_dict")
    return all(callable(getattr(thing, name, None)) for name in names)


Replay: TypeAlias = bool | Callable[[int, int], object]
"""Whether an iterable may be read again from its beginning, or a callback for the progress."""


class Placing:
    """Where a run through an iterable is.

    Args:
        made: the iterable.
        after: a place in it; ``None`` for its beginning.
        name: what the log calls it.
        replay: whether it may be read again from its beginning.
        refuse: called if there are no places, perhaps with the reason.

    Attributes:
        taken: how many items there were at its latest state.
        is_behind: whether the item that was taken last comes before the place.
    """

    def __init__(
        self,
        made: object,
        after: Place,
        name: str,
        replay: Replay,
        refuse: Callable[..., object],
    ) -> None:
        self.taken: int
        self.taken, self._state, self._to_replay = _checked(after)
        self.is_behind: bool = False
        self._since = 0  # items since the state; `_to_replay` of them are repeated
        self._name = name
        self._replay = replay
        self._refuse = refuse
        self._stateful = made if is_stateful(made) else None
        self._is_placed = True
        self._saved_at = time.perf_counter()
        self._cost = 0.0
        if self._stateful is not None:
            self._load(self._stateful)

    def begin(self, run: object) -> None:
        """Items come from this iterator, which may have the state that the iterable has not.

        Raises:
            InvalidArgumentError: the place is one of something else.
        """
        # A data loader, say, has no state itself: each of its iterators has one.
        if self._stateful is None and is_stateful(run):
            self._stateful = run
            self._load(run)
        if self._stateful is None:
            if self._state is not None:
                raise misplaced("a state of an iterable", f"{self._name} to have state_dict()")
            if not self._replay:
                self._refuse()
                self._is_placed = False
        if self._to_replay:
            self._log_replay()

    def next(self) -> Place:
        """Note that an item was taken; return the place behind it, or ``None``."""
        self._since += 1
        self.is_behind = self._since <= self._to_replay
        if self.is_behind:
            # No state is saved meanwhile: it would be before the place, and forget how many items
            # are still to be left out.
            self._report_replay()
        elif self._stateful is not None and self._is_due():
            self._save_state(self._stateful)
        return (self.taken, self._state, self._since) if self._is_placed else None

    def end(self) -> None:
        """There are no more items.

        Raises:
            InvalidArgumentError: there were fewer than before.
        """
        if self._since < self._to_replay:
            raise misplaced(
                f"a place behind {self.taken + self._to_replay} items",
                f"{self.taken + self._since} at most, as many as {self._name} has now",
            )

    def _load(self, stateful: Stateful) -> None:
        if self._state is not None:
            with refusing_wrong_values():
                state = decoded(self._state)
            stateful.load_state_dict(state)

    def _is_due(self) -> bool:
        if self._since < _EVERY:
            return False
        # Some states are large, such as that of a shuffle buffer. The slower they are to save, the
        # more items lie between them.
        return time.perf_counter() - self._saved_at >= _SHARE * self._cost

    def _save_state(self, stateful: Stateful) -> None:
        started = time.perf_counter()
        try:
            self._state = encoded(stateful.state_dict())
        except Exception as error:  # raised only if the user asks for a position
            self._stateful = None
            if not self._replay:
                self._refuse(error)
                self._is_placed = False
            return
        self.taken, self._since, self._to_replay = self.taken + self._since, 0, 0
        self._saved_at = time.perf_counter()
        self._cost = self._saved_at - started

    def _log_replay(self) -> None:
        if self._stateful is None:
            is_shown = callable(self._replay)
            _log.log(
                logging.INFO if is_shown else logging.WARNING,
                "%s has no state: it is read again from its beginning, %d items",
                self._name,
                self._to_replay,
            )
        else:
            _log.info("%s reads %d items again since its last state", self._name, self._to_replay)

    def _report_replay(self) -> None:
        done, count = self._since, self._to_replay
        if callable(self._replay) and done * 100 // count > (done - 1) * 100 // count:
            self._replay(done, count)
        if self._stateful is None and done * 10 // count > (done - 1) * 10 // count:
            _log.info("%s: %d of %d items read again", self._name, done, count)


def _checked(place: Place) -> tuple[int, Any, int]:
    """What a place consists of: the items at its state, the state, and the items since.

    Raises:
        InvalidArgumentError: it is a place of something else.
    """
    if place is None:
        return 0, None, 0
    with refusing_wrong_values():
        taken, state, since = place
        checked_numbers(taken, since)
        return taken, state, since


def encoded(state: Any, where: str = "state_dict()") -> Any:
    """A state in plain JSON types; nothing of it is shared with the original.

    Args:
        state: ``None``, bools, numbers, strings, bytes, arrays and scalars of NumPy, tensors of
            PyTorch; and lists, tuples and mappings of them.
        where: what messages call it.

    Raises:
        InvalidArgumentError: there is something else in it.
    """
    if isinstance(state, np.ndarray | np.generic) and not state.dtype.hasobject:
        if state.dtype.kind == "V":  # of fields, or of another library: its name says too little
            raise InvalidArgumentError(
                f"{where}: got an array of dtype {state.dtype}; expected one of numbers, bools,"
                " strings or times"
            )
        return _encoded_array(np.asarray(state), "array" if state.ndim else "scalar")
    if state is None or isinstance(state, bool | str):
        return state
    if isinstance(state, int):
        return int(state)
    if isinstance(state, float):
        return float(state) if math.isfinite(state) else {_KIND: "float", "of": repr(float(state))}
    if isinstance(state, bytes):
        return {_KIND: "bytes", "of": b85encode(state).decode("ascii")}
    if isinstance(state, list):
        return [encoded(one, f"{where}[{place}]") for place, one in enumerate(state)]
    if isinstance(state, tuple):
        return {_KIND: "tuple", "of": encoded(list(state), where)}
    if isinstance(state, Mapping):
        return _encoded_mapping(state, where)
    if type(state).__module__ == "torch" and type(state).__name__ == "Tensor":
        return _encoded_array(state.detach().cpu().numpy(), "tensor")
    raise InvalidArgumentError(
        f"{where}: got {with_article(type(state).__name__)}; expected plain types, arrays or"
        " tensors, which a position can hold"
    )


def decoded(plain: Any) -> Any:
    """Return what `encoded` was given, except that mappings become dicts, and tuples plain ones."""
    if isinstance(plain, list):
        return [decoded(one) for one in plain]
    if not isinstance(plain, Mapping):
        return plain
    kind = plain.get(_KIND)
    if kind is None:
        return {key: decoded(one) for key, one in plain.items()}
    content = plain["of"]
    if kind == "float":
        return float(content)
    if kind == "bytes":
        return b85decode(content)
    if kind == "tuple":
        return tuple(decoded(content))
    if kind == "dict":
        return {decoded(key): decoded(one) for key, one in content}
    array = np.frombuffer(b85decode(content), plain["dtype"]).reshape(plain["shape"]).copy()
    if kind == "scalar":
        return array[()]
    if kind == "tensor":
        import torch

        return torch.from_numpy(array)
    return array


def _encoded_array(array: Any, kind: str) -> dict[str, Any]:
    content = b85encode(array.tobytes()).decode("ascii")
    return {_KIND: kind, "dtype": array.dtype.str, "shape": list(array.shape), "of": content}


def _encoded_mapping(state: Mapping[Any, Any], where: str) -> dict[str, Any]:
    if all(type(key) is str for key in state) and _KIND not in state:
        return {key: encoded(one, f"{where}[{key!r}]") for key, one in state.items()}
    pairs = [[encoded(key, where), encoded(one, f"{where}[{key!r}]")] for key, one in state.items()]
    return {_KIND: "dict", "of": pairs}


T = TypeVar("T")

Made = Iterable[T] | AsyncIterable[T]

_PLAIN: Final = (list, tuple, set, frozenset, dict, range, Iterator, AsyncIterator)
"""What has no state that its iterators could have."""


class OfIterable(BuiltinSource[T]):
    """A source over an iterable. See `from_iterable`, which makes it."""

    _functions: ClassVar[Sequence[str]] = ("from_iterable",)
    _extra: ClassVar[str | None] = None
    _page = "howto/sources.md"
    _resumes: ClassVar[Literal["if stateful", "never"]] = "if stateful"
    _no_ranks = None

    def __init__(
        self,
        given: Made[T] | Callable[..., Made[T]],
        name: str,
        *,
        seed: int | None,
        blocking: bool,
        replay: Replay = False,
    ) -> None:
        super().__init__(name, seed)
        self._given: Any = given
        self._is_function = callable(given) and not _is_iterable(given)
        self._asks_epoch = self._is_function and "epoch" in _parameters(given)
        self._is_used_up = False  # an iterator has one iteration
        self._queue_faces = _queue_faces_of(given)
        self._reads_queue = self._queue_faces is not None
        is_async = isinstance(given, AsyncIterable) and not isinstance(given, Iterable)
        is_async = is_async or inspect.isasyncgenfunction(given)
        self._is_async = is_async and not self._reads_queue
        self.blocking: bool = bool(self._is_async) or blocking or self._reads_queue
        self._is_once = _is_iterator(given)
        self._replay = replay
        self._refusal: InvalidArgumentError | None = None  # why there are no positions
        if not self._has_positions(given) and isinstance(given, _PLAIN):
            self._refuse()

    def _details(self) -> str:
        what = function_name(self._given) if self._is_function else type(self._given).__name__
        return f" of {what}, seed={self.seed}"

    @property
    def _fed_by(self) -> AsyncQueue | sync.BlockingQueue | None:
        given = self._given
        return given if isinstance(given, AsyncQueue | sync.BlockingQueue) else None

    @property
    def _never_waits(self) -> bool:
        return False  # nobody knows how long the code of an iterable takes

    def _scan(self, epoch: int | None, after: Place) -> Scan[T]:
        return _IterableScan(self, epoch or 0, after)

    async def _ascan(self, epoch: int | None, after: Place) -> AsyncIterator[PlacedEntry[T]]:
        """The items of one epoch of an async iterable, behind a place.

        Cancellation:
            A cancelled step is what that of the iterable is: a generator ends by it.
        """
        epoch = epoch or 0
        made = self._made_for(epoch, AsyncIterable)
        placing = self._placing(made, after)
        run = aiter(made)
        try:
            placing.begin(run)
            index = placing.taken
            async for value in run:
                place = placing.next()
                if not placing.is_behind:
                    yield PlacedEntry(Entry(copy_if_shared(value), epoch, index), place)
                index += 1
        finally:
            # Another iterator may belong to its owner, who continues with it. A generator would
            # otherwise end whenever the event loop collects it, with its files open until then.
            if inspect.isasyncgen(run):
                await run.aclose()
        placing.end()

    def fingerprint(self) -> dict[str, Any]:
        """What a position must have in common with it.

        Raises:
            InvalidArgumentError: it has no positions: the message says what to do.
        """
        if self._refusal is not None:
            raise InvalidArgumentError(*self._refusal.args)
        found = digest_of_items(self._given)
        items = {} if found is None else {"items": found}
        return {"kind": "iterable", "name": self.name, "seed": self.seed, **items}

    def _determined(self) -> Determined:
        return Determined(values={"iterable": self._given})

    def _check_place(self, place: Place) -> None:
        _checked(place)

    def _taken_at(self, place: Place) -> int:
        taken, _, since = _checked(place)
        return taken + since

    def _leases(self) -> Any:
        return self._given._leases() if self._reads_queue else None

    def _placing_in(self, place: Place) -> Placing | None:
        self._use_up()
        if not self._is_repeatable and place is None:
            return None
        placing = self._placing(self._given, place)
        placing.begin(self._given)
        return placing

    def _has_positions(self, made: Any) -> bool:
        return bool(self._replay) or is_stateful(made)

    def _refuse(self, error: Exception | None = None) -> None:
        what = f"source: got {self!r}, which has no position"
        if error is not None:
            what = f"{what} ({type(error).__name__}: {error})"
        self._is_repeatable = False
        self._refusal = InvalidArgumentError(
            f"{what}; expected one that is Stateful, with state_dict() and load_state_dict(), of"
            " plain types, arrays and tensors; or items(...), or a reader of files; or"
            " from_iterable(..., replay=True), which reads it again from its beginning"
        )

    def _placing(self, made: Any, after: Place) -> Placing:
        return Placing(made, after, self.name, self._replay, self._refuse)

    def _made_for(self, epoch: int, kind: type[Any]) -> Any:
        """Return the iterable of an epoch's items."""
        made = self._given
        if self._queue_faces is not None:
            self._use_up()
            return self._queue_faces[kind is not Iterable]
        if self._is_function:
            made = made(epoch=epoch) if self._asks_epoch else made()
            if not isinstance(made, kind) or isinstance(made, str | bytes):
                expected = "an iterable" if kind is Iterable else "an async iterable"
                if isinstance(made, AsyncIterable):
                    expected += " (of functions that make async ones, async generator functions)"
                raise InvalidArgumentError(
                    f"iterable: {function_name(self._given)} returned a {type(made).__name__};"
                    f" expected {expected}"
                )
        elif made is (iter(made) if kind is Iterable else aiter(made)):
            self._use_up()  # it is its own iterator: a second run would continue the first
        return made

    def _run_through(self, made: Iterable[T]) -> AbstractContextManager[Iterator[T]]:
        """A run through what has the items, which is closed behind its loop if it is ours alone.

        A queue is never closed by who reads it: its producers would fail. An iterator that was
        given, such as an open file, belongs to its owner. A generator is closed, because it would
        keep the files open that it has not read to the end.
        """
        run = iter(made)
        is_owners = run is self._given and not inspect.isgenerator(run)
        if is_owners or _queue_faces_of(made) is not None:
            return nullcontext(run)
        return closing_run(run)

    def _use_up(self) -> None:
        if self._is_used_up:
            raise self._used_up()
        self._is_used_up = True

    def _used_up(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"iterable: got a {type(self._given).__name__}, which can be iterated over only"
            " once, and was; for another epoch expected a function that makes a new one, as"
            " from_iterable(lambda: ...), or an iterable that starts again, such as a list"
        )

    def _async_only(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"iterable: got {self!r}, which only `async for` can read; expected an iterable for"
            " a plain `for` over the source itself (a pipeline over it supports both)"
        )


class _IterableScan(Scan[T]):
    """A scan of one epoch of an iterable.

    A place has the number of items before a state of the iterable, that state, and the number of
    items since. An iterable that cannot resume has no places.
    """

    __slots__ = ("_after", "_epoch", "_source")

    def __init__(self, source: OfIterable[T], epoch: int, after: Place) -> None:
        self._source = source
        self._epoch = epoch
        self._after = after

    def entries(self) -> Iterator[Entry[T]]:
        if self._after is not None:
            return (placed.entry for placed in self.placed())
        return self._all_entries()

    def _all_entries(self) -> Iterator[Entry[T]]:
        source, epoch = self._source, self._epoch
        process = PROCESS.number
        with source._run_through(self._made()) as run:
            index = 0
            for value in run:
                yield Entry(copy_if_shared(value), epoch, index)
                index += 1  # noqa: SIM113  # `enumerate` keeps what it has given
                if PROCESS.number != process:  # it may be a file, whose offset is the parent's too
                    raise inherited_error(source)

    def placed(self) -> Iterator[PlacedEntry[T]]:
        source, epoch = self._source, self._epoch
        made = self._made()
        placing = source._placing(made, self._after)
        with source._run_through(made) as run:
            placing.begin(run)
            index = placing.taken
            for value in run:
                place = placing.next()
                if not placing.is_behind:
                    yield PlacedEntry(Entry(copy_if_shared(value), epoch, index), place)
                index += 1
        placing.end()

    def _made(self) -> Any:
        """What has the items.

        Raises:
            InvalidArgumentError: it is an iterator that has been iterated over; or it has items
                for ``async for`` only; or the function has made nothing that can be iterated.
        """
        if self._source._is_async:
            raise self._source._async_only()
        return self._source._made_for(self._epoch, Iterable)


@overload
def from_iterable(
    iterable: AsyncIterable[T] | Callable[..., AsyncIterable[T]],
    *,
    seed: int | None = None,
    blocking: bool = True,
    name: str = "iterable",
    replay: Replay = False,
) -> OfIterable[T]: ...
@overload
def from_iterable(
    iterable: Iterable[T] | Callable[..., Iterable[T]],
    *,
    seed: int | None = None,
    blocking: bool = True,
    name: str = "iterable",
    replay: Replay = False,
) -> OfIterable[T]: ...
def from_iterable(
    iterable: Any,
    *,
    seed: int | None = None,
    blocking: bool = True,
    name: str = "iterable",
    replay: Replay = False,
) -> OfIterable[Any]:
    """The items of anything that can be iterated, from its beginning in every epoch.

    Where the items have numbers, `items` is better: it can shuffle, and knows its length.

    Args:
        iterable: any iterable or async iterable: a dataset of another library, a generator, a
            queue. Or a function that makes one for each epoch, such as a generator function or an
            async generator function. If the function has a parameter ``epoch``, it receives the
            epoch's number.
            You can iterate over an iterator, such as a generator, only once: it has one epoch, and
            asking for another one is an error. A task of the pipeline reads an async iterable.
            A queue of either face, or ``queue.batches(n)``, gets back what a pipeline has taken and
            you have not received: to its front, in order, however the loop is left, and whether or
            not a function was called with it. Meanwhile, other consumers of a closed queue wait. An
            element has been received with the first example that was made of it; one that was
            skipped, or left out, does not go back.
        seed: for the generators of the items; ``None`` takes fresh entropy, once.
        blocking: whether reading an item may block. If so, a thread reads the iterable ahead for
            coroutines.
        name: the source's name in messages and in names of workers.
        replay: for an iterable without a state of its own: whether a resumed run may read the
            epoch again from its beginning and drop the items before the position. The iterable has
            to give the same items in the same order. The log reports a replay. A function receives
            the number of items read again and their total, at most a hundred times, for a progress
            bar.
            A `Stateful` iterable, as PyTorch calls it, needs no replay: the iterable or its
            iterator has ``state_dict()`` and ``load_state_dict(state)``. The source asks for the
            state every 64 items, or less often if that would take more than a fiftieth of the
            time. A resumed run loads the last state before it asks for the first item. It then
            reads the items since that state again, without preparing them.

    Returns:
        A source of one epoch; pipelines of it may have several. Its length is not known.

    Raises:
        InvalidArgumentError: an argument is wrong.
    """
    checked_flag(blocking, "blocking")
    _check_numbered(iterable)
    wrong = isinstance(iterable, str | bytes | Mapping | Source)
    if wrong or not (_is_iterable(iterable) or callable(iterable)):
        raise InvalidArgumentError(
            f"iterable: got {iterable!r}; expected an iterable, an async iterable, or a function"
            " that makes one for each epoch"
        )
    if inspect.iscoroutinefunction(iterable):
        raise InvalidArgumentError(
            f"iterable: got the coroutine function {function_name(iterable)}; expected an async"
            " generator function, or a plain function"
        )
    if not isinstance(replay, bool) and not callable(replay):
        raise InvalidArgumentError(f"replay: got {replay!r}; expected a bool or a function")
    return OfIterable(iterable, name, seed=seed, blocking=blocking, replay=replay)


def _check_numbered(given: Any) -> None:
    """Refuse a sequence or a table: `items` and `arrays` read them by index."""
    if is_table(given):
        raise InvalidArgumentError(
            f"iterable: got a {type(given).__name__}, whose iteration gives columns or their"
            f" names; expected its rows: {rows_of_table(given)}"
        )
    has_numbers = hasattr(given, "__getitem__") and hasattr(given, "__len__")
    if has_numbers and not isinstance(given, type | str | bytes) and not _is_iterable(given):
        raise InvalidArgumentError(
            f"iterable: got a {type(given).__name__}, which has len() and [index]; expected"
            " items(dataset) for what has its items by number: it can shuffle them, too"
        )


def _queue_faces_of(given: Any) -> tuple[Iterable[Any], AsyncIterable[Any]] | None:
    """Return a queue, or its batches, for threads and for tasks; ``None`` for anything else."""
    if isinstance(given, AsyncQueue | sync.BlockingQueue):
        return given.sync, given.aio
    make = getattr(given, "_on_both_faces", None)
    return None if make is None else make()


def _is_iterator(given: Any) -> bool:
    """Return whether an object is its own iterator, which allows a single iteration."""
    if isinstance(given, Iterator):
        return iter(given) is given
    return isinstance(given, AsyncIterator) and aiter(given) is given


def _is_iterable(given: Any) -> bool:
    return isinstance(given, Iterable | AsyncIterable) and not isinstance(given, type)


def _parameters(function: Any) -> Mapping[str, Any]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # of some that are written in C
        return {}
