"""What importing modules has left behind in a process that a fork of it would share, or copy.

A module that is imported by each process makes its own of everything. Where it is imported once,
and the process forked then, threads are gone and the locks that they held are not; an open file has
one position for all; a generator that was seeded by the system gives everyone the same numbers. So
the fork server looks before it forks: for what of this can be told, and only from outside, since
modules are anybody's.
"""

from __future__ import annotations

import gc
import os
import random
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

__all__ = ("Seeds", "left_behind", "open_files")

_TRIES: Final = 3
"""How often a thread that ends is given another look."""

_SURELY_SEEDED: Final = 2**64
"""Above this it cannot be told who has seeded a generator: the system takes 128 bits, and so may
somebody who has drawn them once."""


def open_files() -> set[int]:
    """The file descriptors of this process."""
    fds = {int(name) for name in os.listdir("/proc/self/fd")}
    return {fd for fd in fds if _is_open(fd)}  # but for the one that has listed them


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def left_behind(files_before: set[int]) -> str:
    """What forks of this process had better not have, in words; empty if there is nothing.

    Args:
        files_before: the descriptors that were open before the imports.
    """
    if len(open_files() - files_before) > 0:
        return "open files"
    if threading.active_count() > 1 or _has_threads():
        return "threads"
    if _has_children():
        return "processes"
    if _has_generators():
        return "generators that were not seeded"
    return ""


def _has_threads() -> bool:
    """Whether there are threads that a fork would lose.

    Libraries which know about forks end theirs before one, as OpenBLAS does. So what counts is who
    is there after a fork.
    """
    for _ in range(_TRIES):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there are threads
            pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        if len(os.listdir("/proc/self/task")) == 1:
            return False
    return True


def _has_children() -> bool:
    """Whether there are processes of ours, whose ends a fork server would be told."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _has_generators() -> bool:
    """Whether there is a generator of NumPy that the system has seeded, but for the global one,
    which each process seeds (`Seeds`)."""
    ours = np.random.mtrand._rand
    kinds = (np.random.Generator, np.random.RandomState)
    return any(
        type(thing) in kinds and thing is not ours and _is_by_system(thing)
        for thing in gc.get_objects()
    )


def _is_by_system(generator: Any) -> bool:
    bits = getattr(generator, "bit_generator", None) or generator._bit_generator
    entropy = getattr(bits.seed_seq, "entropy", 0)
    return not isinstance(entropy, int) or entropy >= _SURELY_SEEDED


class Seeds:
    """Generators that the system has seeded, which each process is to seed again."""

    def __init__(self) -> None:
        self._generators: weakref.WeakSet[random.Random] = weakref.WeakSet()

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note those that are made here."""
        seed = random.Random.seed
        random.Random.seed = self._noting(seed)  # type: ignore[method-assign]
        try:
            yield
        finally:
            random.Random.seed = seed  # type: ignore[method-assign]

    def _noting(self, seed: Callable[..., None]) -> Callable[..., None]:
        def noting(generator: random.Random, a: Any = None, version: int = 2) -> None:
            seed(generator, a, version)
            if a is None:
                self._generators.add(generator)
            else:
                self._generators.discard(generator)

        return noting

    def renew(self) -> None:
        """Seed them again: in a new process. (Python sees to the one of `random` by itself.)"""
        for generator in self._generators:
            generator.seed()
        if np.random.mtrand._rand._bit_generator.seed_seq is not None:  # nobody has seeded it
            np.random.seed()
