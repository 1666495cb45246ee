"""The states of the random generators of workers, so that a resumed loader goes on drawing.

A worker reports the states behind each batch, if it has drawn at all. The iterator keeps those of
the latest batch that the loop has received from each worker: the batches behind it are made again,
with the same numbers.
"""

from __future__ import annotations

import base64
import binascii
import json
import random
import zlib
from typing import Any, Final

import numpy as np
import torch

from aioqueue import InvalidArgumentError
from aioqueue.torch.worker_info import WorkerGenerators

_ENCODING: Final = "zlib+base64:"
_MOST_BYTES: Final = 2**20
"""The states of one worker take a few ten thousand bytes. A damaged text may stand for more."""

States = dict[str, Any]
"""The states of a worker's generators, by what they belong to: plain types, but for bytes."""


class GeneratorStates:
    """The generators of one worker.

    Args:
        generators: its own ones.
        has_globals: whether the global generators are its own, too: those of a process.
    """

    def __init__(self, generators: WorkerGenerators, *, has_globals: bool) -> None:
        self._generators = generators
        self._has_globals = has_globals
        self._first = self._current()
        self._has_drawn = False

    def changed(self) -> States | None:
        """Return the states; ``None`` as long as nothing was drawn."""
        states = self._current()
        self._has_drawn = self._has_drawn or states != self._first
        return states if self._has_drawn else None

    def restore(self, states: States) -> None:
        """Go on from the states of an earlier worker with the same number.

        Raises:
            InvalidArgumentError: they are no such states.
        """
        own = self._generators
        try:
            own.random_generator.setstate(_random_state(states["random"]))
            own.torch_generator.set_state(_tensor(states["torch"]))
            own.numpy_generator.bit_generator.state = states["numpy"]
            # Of a worker that was a thread, which had no global generators of its own.
            if self._has_globals and "global random" in states:
                random.setstate(_random_state(states["global random"]))
                torch.set_rng_state(_tensor(states["global torch"]))
                np.random.set_state(_numpy_state(states["global numpy"]))
        except (KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
            raise _damaged(states) from error
        self._has_drawn = True

    def _current(self) -> States:
        own = self._generators
        states: States = {
            "random": own.random_generator.getstate(),
            "torch": own.torch_generator.get_state().numpy().tobytes(),
            "numpy": own.numpy_generator.bit_generator.state,
        }
        if self._has_globals:
            kind, keys, *rest = np.random.get_state(legacy=True)
            states["global random"] = random.getstate()
            states["global torch"] = torch.get_rng_state().numpy().tobytes()
            states["global numpy"] = (kind, np.asarray(keys).tolist(), *rest)
        return states


def _random_state(state: Any) -> Any:
    version, words, gauss = state
    return version, tuple(words), gauss


def _numpy_state(state: Any) -> Any:
    kind, keys, *rest = state
    return (kind, np.array(keys, np.uint32), *rest)


def _tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


def states_as_text(states: States) -> str:
    """Return the states of a worker as text: its encoding, then compressed JSON."""
    plain = {
        name: base64.b64encode(one).decode() if isinstance(one, bytes) else one
        for name, one in states.items()
    }
    compressed = zlib.compress(json.dumps(plain).encode(), 6)
    return _ENCODING + base64.b64encode(compressed).decode()


def states_from_text(text: Any) -> States:
    """Return the states of a worker from their text.

    Raises:
        InvalidArgumentError: it is not such a text.
    """
    try:
        if not isinstance(text, str) or not text.startswith(_ENCODING):
            raise ValueError("another encoding")
        compressed = base64.b64decode(text.removeprefix(_ENCODING), validate=True)
        plain = json.loads(zlib.decompressobj().decompress(compressed, _MOST_BYTES))
        return {
            name: base64.b64decode(one, validate=True) if name.endswith("torch") else one
            for name, one in plain.items()
        }
    except (AttributeError, TypeError, ValueError, zlib.error, binascii.Error) as error:
        raise _damaged(text) from error


def _damaged(states: Any) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"state: got {states!r:.60} as the states of a worker's generators; expected those of"
        " state_dict"
    )
