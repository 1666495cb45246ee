"""The frameworks that batches are made for, by one interface, for tests that both have to pass."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import pytest

__all__ = ("FRAMEWORKS", "Framework", "host")


class Framework(ABC):
    """A framework on the CPU."""

    name: str

    def __init__(self) -> None:
        reason = f"{self.name} is not installed (pip install '.[{self.name}]')"
        pytest.importorskip(self.name, reason=reason)
        self.module: Any = importlib.import_module(self.name)

    @property
    @abstractmethod
    def device(self) -> Any:
        """The CPU."""

    @property
    @abstractmethod
    def kind(self) -> type:
        """What its arrays are."""

    def narrowed(self, array: Any) -> Any:
        """An array of NumPy with the dtype that it has there."""
        return array


class Torch(Framework):
    name = "torch"

    @property
    def device(self) -> Any:
        return "cpu"

    @property
    def kind(self) -> type:
        return self.module.Tensor  # type: ignore[no-any-return]


class Jax(Framework):
    name = "jax"

    @property
    def device(self) -> Any:
        return self.module.devices("cpu")[0]

    @property
    def kind(self) -> type:
        return self.module.Array  # type: ignore[no-any-return]

    def narrowed(self, array: Any) -> Any:
        narrow = {"int64": "i4", "uint64": "u4", "float64": "f4", "complex128": "c8"}
        return array.astype(narrow.get(array.dtype.name, array.dtype))


FRAMEWORKS: tuple[type[Framework], ...] = (Torch, Jax)


def host(value: Any) -> np.ndarray[Any, Any]:
    """A tensor, or an array of JAX, as one of NumPy."""
    return np.asarray(value)
