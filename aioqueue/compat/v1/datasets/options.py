"""What scripts ask for of how a dataset is gone through; nothing heeds it."""

from __future__ import annotations

from typing import Any, Final

__all__ = ("AUTOTUNE", "OptimizationOptions", "Options", "ThreadingOptions")

AUTOTUNE: Final = -1
"""A number of parallel calls, or of elements to make ahead, that is to be found out."""


class _Settings:
    """Attributes of any name, accepted and without effect; those that were not set are None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return None


class OptimizationOptions(_Settings):
    """Which optimisations are wanted; without effect."""


class ThreadingOptions(_Settings):
    """How many threads are wanted; without effect."""


class Options(_Settings):
    """How elements are to be made; without effect: they are, one after another, when asked for.

    Attributes:
        experimental_optimization: an `OptimizationOptions`.
        experimental_threading: a `ThreadingOptions`.
        threading: the same, under its later name.
    """

    def __init__(self) -> None:
        self.experimental_optimization = OptimizationOptions()
        self.experimental_threading = self.threading = ThreadingOptions()

    def merge(self, options: Options) -> Options:
        """These options, with those of others that were set."""
        merged = Options()
        merged.__dict__.update({**self.__dict__, **options.__dict__})
        return merged
