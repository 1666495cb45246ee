"""The devices that batches can be copied to. PyTorch and JAX are imported on first use."""

from __future__ import annotations

import sys
from typing import Any

from aioqueue import InvalidArgumentError
from aioqueue.inputs.devices.jax import JaxTarget
from aioqueue.inputs.devices.target import Target
from aioqueue.inputs.devices.torch import TorchTarget

__all__ = ("target_of",)


def target_of(device: Any) -> Target:
    """Return the target for a device that the user names.

    Args:
        device: a string or a ``torch.device``; a device of JAX, or a sharding.

    Raises:
        InvalidArgumentError: it is none of these, or the machine does not have it.
        ModuleNotFoundError: PyTorch is not installed; the message says how to install it.
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
    """Return whether a thing is of a module's class, without importing that module.

    If the module is not imported, the thing cannot be of its class.
    """
    found = getattr(sys.modules.get(module), kind, None)
    return isinstance(found, type) and isinstance(thing, found)
