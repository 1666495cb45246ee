"""Mixtures: several sources as one, in shares that are given by weights."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import accumulate
from math import inf
from numbers import Real
from typing import Any, Final, Literal, TypeVar

from aioqueue import InvalidArgumentError
from aioqueue.checks import counted
from aioqueue.inputs.sources.base import Entry, Source
from aioqueue.philox import PhiloxWords

__all__ = ("Mixture", "bounds_of", "checked_weights", "mix")

T = TypeVar("T")

_WORDS: Final = 2**32


class Mixture(Source[T]):
    """Several sources as one. See `mix`, which makes it."""

    def __init__(
        self,
        sources: Iterable[Source[T]],
        weights: Iterable[float] | None,
        seed: int | None,
        stop: str,
        name: str,
    ) -> None:
        super().__init__(name, seed)
        self._sources = _checked_sources(sources)
        self._weights = checked_weights(weights, len(self._sources))
        if stop not in ("first", "all"):
            raise InvalidArgumentError(f"stop: got {stop!r}; expected 'first' or 'all'")
        self._stop = stop
        self.blocking = any(source.blocking for source in self._sources)

    def __repr__(self) -> str:
        shares = ", ".join(
            f"{weight / sum(self._weights):.3g} of {source!r}"
            for source, weight in zip(self._sources, self._weights, strict=True)
        )
        return f"<aioqueue.inputs.{self.name}: {shares}; stop={self._stop!r}, seed={self.seed}>"

    def __len__(self) -> int:
        """How many items one run has, where that is known: if it stops after all of them.

        Raises:
            TypeError: it is not known.
        """
        if self._stop == "first":
            raise TypeError(f"the length of {self!r} is not known: it ends with the first source")
        sources: Any = self._sources
        return sum(map(len, sources))

    def entries(self) -> Iterator[Entry[T]]:
        """One run through the mixture.

        The epoch of an item is that of its source, and its index is the one it has there times the
        number of sources, plus the number of its source: no two items share one.
        """
        with ExitStack() as closing:
            runs = [source.entries() for source in self._sources]
            yield from self._mixed(runs, PhiloxWords(self.seed), closing)

    def epoch_entries(self, epoch: int) -> Iterator[Entry[T]]:
        """One epoch of each source, mixed by draws of its own."""
        with ExitStack() as closing:
            runs = [source.epoch_entries(epoch) for source in self._sources]
            # The seed is the key and the epoch the upper half of the counter.
            words = PhiloxWords((self.seed, epoch + 1) if epoch else self.seed)
            for entry in self._mixed(runs, words, closing):
                yield entry._replace(epoch=epoch)

    def _mixed(
        self, runs: list[Iterator[Entry[T]]], words: PhiloxWords, closing: ExitStack
    ) -> Iterator[Entry[T]]:
        for run in runs:
            closing.callback(getattr(run, "close", bool))
        weights = list(self._weights)
        bounds = bounds_of(weights)
        while any(weights):
            chosen = bisect_right(bounds, words.take(1)[0])
            entry = next(runs[chosen], None)
            if entry is not None:
                yield entry._replace(index=entry.index * len(runs) + chosen)
            elif self._stop == "first":
                return
            else:
                weights[chosen] = 0
                bounds = bounds_of(weights)


def mix(
    sources: Iterable[Source[T]],
    weights: Iterable[float] | None = None,
    seed: int | None = None,
    *,
    stop: Literal["first", "all"] = "all",
    name: str = "mix",
) -> Mixture[T]:
    """A weighted mixture of sources: each item is the next one of a source drawn at random.

    Args:
        sources: what to mix; each keeps its own order.
        weights: one for each source, > 0, in any unit; ``None`` for equal ones.
        seed: for the draws, and for the generators of the items; ``None`` takes fresh entropy,
            once. The same seed gives the same mixture, on every platform.
        stop: ``"all"`` goes on with the others when one source has ended, in their shares, so that
            nothing is left out. ``"first"`` ends where an item of a source that has ended would
            be next, so that the shares hold to the end.
        name: what messages and worker names call the mixture.

    Returns:
        A source. If one of its sources reads files, async iteration reads ahead on a thread.

    Raises:
        InvalidArgumentError: an argument is wrong.
    """
    return Mixture(sources, weights, seed, stop, name)


def bounds_of(weights: Sequence[float]) -> list[int]:
    """For each source the smallest 32-bit word that is beyond its share of them."""
    total = sum(weights)
    if not total:
        return []
    bounds = [round(upto / total * _WORDS) for upto in accumulate(weights)]
    last = max(at for at, weight in enumerate(weights) if weight)
    return [*bounds[:last], *[_WORDS] * (len(bounds) - last)]  # whatever rounding has done


def _checked_sources(sources: Any) -> list[Source[Any]]:
    # One source is iterable too, and may well be endless.
    is_several = isinstance(sources, Iterable) and not isinstance(sources, Source)
    found = list(sources) if is_several else []
    for source in found or [sources]:
        if not found or not isinstance(source, Source):
            raise InvalidArgumentError(
                f"sources: got {source!r}; expected several sources, in a list: items(...) makes"
                " one of anything that has len() and [index]"
            )
    return found


def checked_weights(weights: Any, count: int) -> list[float]:
    if weights is None:
        return [1.0] * count
    found: list[Any] = list(weights) if isinstance(weights, Iterable) else []
    numbers = all(isinstance(weight, Real) and 0 < float(weight) < inf for weight in found)
    if len(found) != count or not numbers or not sum(found) < inf:
        raise InvalidArgumentError(
            f"weights: got {weights!r}; expected a number > 0 for each of"
            f" {counted(count, 'source')}, with a finite sum"
        )
    return [float(weight) for weight in found]
