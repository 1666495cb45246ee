"""What a device is to those who copy to it, and what is copied: arrays of numbers in batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from aioqueue import InvalidArgumentError
from aioqueue.inputs.devices.ring import HostMemory, Slot, is_of_numbers

__all__ = ("Copied", "Copier", "Target", "mapped", "numbers_of", "refused")


class Copied:
    """A batch that is on its device, or on the way there.

    Args:
        value: the batch, with arrays of the device.
        wait: waits until what it was copied from may be written again; it may not refer to the
            batch, which would live on for as long as nobody waits.
    """

    def __init__(self, value: Any, wait: Callable[[], None] | None = None) -> None:
        self._value = value
        self.wait = wait

    def arrived(self) -> Any:
        """The batch for whoever computes with it, which is the calling thread."""
        return self._value


class Copier(ABC):
    """Copies batches to a device, one after another, in one run of a pipeline."""

    slots: ClassVar[int] = 1
    """How many batches the host holds: more than one, if copying goes on while one is made."""

    def memory(self, nbytes: int) -> HostMemory:
        """Memory of the host that this device likes to be copied from."""
        return HostMemory(np.empty(nbytes, np.uint8))

    @abstractmethod
    def copied(self, batch: Any, slot: Slot) -> Copied:
        """Copy the arrays of a batch, or begin to.

        Args:
            batch: arrays, in tuples, mappings and lists.
            slot: what those of them lie in that were made for this; and room for the others.

        Raises:
            InvalidArgumentError: the framework has no such dtype.
        """


class Target(Protocol):
    """A device, as it was asked for."""

    @property
    def name(self) -> str:
        """What it is called."""

    def open(self) -> Copier:
        """Begin to copy to it: to be called by the thread whose device counts, if there are
        several.
        """


def mapped(function: Callable[[Any], Any], batch: Any) -> Any:
    """A batch with what a function makes of each of its leaves."""
    if isinstance(batch, tuple):
        leaves = [mapped(function, one) for one in batch]
        return getattr(type(batch), "_make", tuple)(leaves)  # a named tuple stays one
    if isinstance(batch, Mapping):
        return {key: mapped(function, one) for key, one in batch.items()}
    if isinstance(batch, list):
        return [mapped(function, one) for one in batch]
    return function(batch)


def numbers_of(leaf: Any) -> NDArray[Any] | None:
    """A leaf as an array of numbers, in the byte order of this machine; ``None`` if it is none."""
    if not isinstance(leaf, np.ndarray | np.generic) or not is_of_numbers(leaf.dtype):
        return None
    if type(leaf) is np.ndarray and leaf.dtype.isnative:
        return leaf  # and no view of it: a ring knows its arrays
    return np.asarray(leaf, leaf.dtype.newbyteorder("="))


def refused(dtype: np.dtype[Any], framework: str) -> InvalidArgumentError:
    """What to raise for numbers of which a framework knows nothing."""
    return InvalidArgumentError(
        f"batch: got an array of {dtype}, a dtype that {framework} does not have; expected another,"
        " such as what .astype('float32') makes of it"
    )
