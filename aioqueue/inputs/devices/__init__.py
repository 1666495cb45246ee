"""Devices that batches are copied to: of PyTorch and of JAX, which are imported when asked for."""

from __future__ import annotations

import sys
from typing import Any

from aioqueue import InvalidArgumentError
from aioqueue.inputs.devices.jax import JaxTarget
from aioqueue.inputs.devices.target import Target
from aioqueue.inputs.devices.torch import TorchTarget

__all__ = ("target_of",)


def target_of(device: Any) -> Target:
    """Where to copy to, of what a user has said.

    Args:
        device: a string or a ``torch.device``; a device of JAX, or a sharding.

    Raises:
        InvalidArgumentError: it is none of these, or not there.
        ModuleNotFoundError: PyTorch is not installed; the message says what installs it.
    """
    if isinstance(device, str) or _is_instance(device, "torch", "device"):
        return TorchTarget.of(device)
    if _is_instance(device, "jax", "Device") or _is_instance(device, "jax.sharding", "Sharding"):
        return JaxTarget(device)
    raise InvalidArgumentError(
        f"device: got {device!r}; expected a string such as 'cuda', 'cuda:1' or 'cpu', a"
        " torch.device, or a device of JAX such as jax.devices()[0]"
    )


def _is_instance(thing: Any, module: str, kind: str) -> bool:
    """Whether it is of a class of a module; whoever has such a thing has imported that already."""
    found = getattr(sys.modules.get(module), kind, None)
    return isinstance(found, type) and isinstance(thing, found)
