"""Sources of whatever can be iterated: generators, streams of other libraries, async iterables."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, TypeVar, overload

from aioqueue import InvalidArgumentError
from aioqueue.checks import checked_flag
from aioqueue.functions import function_name
from aioqueue.inputs.sources.base import Entry, Source, closing_run

__all__ = ("OfIterable", "from_iterable")

T = TypeVar("T")

Made = Iterable[T] | AsyncIterable[T]


class OfIterable(Source[T]):
    """A source over an iterable. See `from_iterable`, which makes it."""

    def __init__(
        self,
        given: Made[T] | Callable[..., Made[T]],
        name: str,
        *,
        seed: int | None,
        blocking: bool,
    ) -> None:
        super().__init__(name, seed)
        self._given: Any = given
        self._is_function = callable(given) and not _is_iterable(given)
        self._asks_epoch = self._is_function and "epoch" in _parameters(given)
        self._is_used_up = False  # an iterator, which can be gone through once
        is_async = isinstance(given, AsyncIterable) and not isinstance(given, Iterable)
        self.is_async = is_async or inspect.isasyncgenfunction(given)
        self.blocking = self.is_async or blocking
        self.is_once = _is_iterator(given)
        self.is_repeatable = False  # whether it gives the same again, nobody knows

    def __repr__(self) -> str:
        what = function_name(self._given) if self._is_function else type(self._given).__name__
        return f"<aioqueue.inputs.{self.name} of {what}, seed={self.seed}>"

    def entries(self) -> Iterator[Entry[T]]:
        """One run through it: that is one epoch."""
        return self.epoch_entries(0)

    def epoch_entries(self, epoch: int) -> Iterator[Entry[T]]:
        """The items of one epoch.

        Args:
            epoch: which, from 0.

        Raises:
            InvalidArgumentError: it is an iterator, and was gone through before; or it has items
                for ``async for`` only; or the function has made nothing that can be iterated. When
                the first item is asked for.
        """
        if self.is_async:
            raise self._async_only()
        with closing_run(iter(self._made_for(epoch, Iterable))) as run:
            for index, value in enumerate(run):
                yield Entry(value, epoch, index)

    def aentries(self) -> AsyncIterator[Entry[T]]:
        return self.epoch_aentries(0) if self.is_async else super().aentries()

    async def epoch_aentries(self, epoch: int) -> AsyncIterator[Entry[T]]:
        """The items of one epoch, of what is gone through by ``async for``.

        Args:
            epoch: which, from 0.

        Raises:
            InvalidArgumentError: as for `epoch_entries`.

        Cancellation:
            A cancelled step is what that of the iterable is: a generator ends by it.
        """
        run = aiter(self._made_for(epoch, AsyncIterable))
        index = 0
        try:
            async for value in run:
                yield Entry(value, epoch, index)
                index += 1
        finally:
            if inspect.isasyncgen(run):
                await run.aclose()

    def __aiter__(self) -> AsyncIterator[T]:
        return self._values() if self.is_async else super().__aiter__()

    async def _values(self) -> AsyncIterator[T]:
        async with aclosing(self.epoch_aentries(0)) as entries:  # type: ignore[type-var]
            async for entry in entries:
                yield entry.value

    def _made_for(self, epoch: int, kind: type[Any]) -> Any:
        """What has the items of an epoch."""
        made = self._given
        if self._is_function:
            made = made(epoch=epoch) if self._asks_epoch else made()
            if not isinstance(made, kind) or isinstance(made, str | bytes):
                expected = "an iterable" if kind is Iterable else "an async iterable"
                raise InvalidArgumentError(
                    f"iterable: {function_name(self._given)} returned a {type(made).__name__};"
                    f" expected {expected}"
                )
        elif made is (iter(made) if kind is Iterable else aiter(made)):
            self._use_up()
        return made

    def _use_up(self) -> None:
        if self._is_used_up:
            raise self.used_up()
        self._is_used_up = True

    def used_up(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"iterable: got a {type(self._given).__name__}, which can be gone through once, and"
            " was; for another epoch expected a function that makes one:"
            " from_iterable(lambda: ...), or something that begins anew, like a list"
        )

    def _async_only(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"iterable: got {self!r}, whose items come by `async for`; expected an iterable where"
            " `for` goes through the source itself (a pipeline of it can be gone through by both)"
        )


@overload
def from_iterable(
    iterable: AsyncIterable[T] | Callable[..., AsyncIterable[T]],
    *,
    seed: int | None = None,
    blocking: bool = True,
    name: str = "iterable",
) -> OfIterable[T]: ...
@overload
def from_iterable(
    iterable: Iterable[T] | Callable[..., Iterable[T]],
    *,
    seed: int | None = None,
    blocking: bool = True,
    name: str = "iterable",
) -> OfIterable[T]: ...
def from_iterable(
    iterable: Any,
    *,
    seed: int | None = None,
    blocking: bool = True,
    name: str = "iterable",
) -> OfIterable[Any]:
    """The items of anything that can be iterated, from its beginning in every epoch.

    Where the items have numbers, `items` is better: it can shuffle, and knows its length.

    Args:
        iterable: what ``for`` or ``async for`` can go through: a dataset of another library, a
            generator, a queue; or a function that makes such a thing for each epoch, like a
            generator function (of async ones, an async generator function). If the function has
            a parameter ``epoch``, it is given its number.
            What is itself an iterator, as a generator is, can be gone through once: that is one
            epoch, and to ask for another one is an error. An async iterable is gone through by a
            task of the pipeline's own.
        seed: for the generators of the items; ``None`` takes fresh entropy, once.
        blocking: whether one may have to wait for an item: then coroutines read ahead on a thread,
            and the iterable is gone through there.
        name: what messages and worker names call the source.

    Returns:
        A source of one epoch; pipelines of it may have several. Its length is not known.

    Raises:
        InvalidArgumentError: an argument is wrong.
    """
    checked_flag(blocking, "blocking")
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
    return OfIterable(iterable, name, seed=seed, blocking=blocking)


def _is_iterator(given: Any) -> bool:
    """Whether it is its own iterator, so that it can be gone through once."""
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
