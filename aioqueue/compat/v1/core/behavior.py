"""Switches between TensorFlow's ways of working: there is one here, that of version 1."""

from __future__ import annotations

__all__ = (
    "disable_control_flow_v2",
    "disable_eager_execution",
    "disable_resource_variables",
    "disable_tensor_equality",
    "disable_v2_behavior",
    "disable_v2_tensorshape",
    "enable_resource_variables",
    "executing_eagerly",
)


def executing_eagerly() -> bool:
    """False: operations are deferred until a session runs them."""
    return False


def disable_v2_behavior() -> None:
    """Accepted and without effect: nothing here behaves like version 2."""


def disable_eager_execution() -> None:
    """Accepted and without effect: operations are deferred."""


def disable_resource_variables() -> None:
    """Accepted and without effect: all variables are alike."""


def enable_resource_variables() -> None:
    """Accepted and without effect: all variables are alike."""


def disable_tensor_equality() -> None:
    """Accepted and without effect: tensors are equal if they are the same one."""


def disable_v2_tensorshape() -> None:
    """Accepted and without effect: shapes consist of `Dimension` objects."""


def disable_control_flow_v2() -> None:
    """Accepted and without effect: there is one `cond`."""
