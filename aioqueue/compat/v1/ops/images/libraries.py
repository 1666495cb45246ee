"""The libraries that read and write pictures; both are extras."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from aioqueue import extras

__all__ = ("pillow", "simplejpeg")


def pillow() -> Any:
    """Pillow's module ``Image``.

    Raises:
        ModuleNotFoundError: it is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module("PIL.Image")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"decoding pictures needs Pillow: {extras.command_for('images')}", name="PIL"
        ) from error


@cache
def simplejpeg() -> Any:
    """The module ``simplejpeg``; None where it is not installed."""
    try:
        return importlib.import_module("simplejpeg")
    except ModuleNotFoundError:
        return None
