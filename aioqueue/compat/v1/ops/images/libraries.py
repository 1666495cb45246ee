"""The libraries that read and write pictures; both are extras."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, Final

from aioqueue.base import extras
from aioqueue.compat.v1.ops.building import invalid

__all__ = ("MAX_PIXELS", "check_pixels", "pillow", "simplejpeg", "too_large")

MAX_PIXELS: Final = 2**27
"""The largest picture that is decoded by default: a file of some kilobytes may claim any size."""


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


def too_large() -> type[Exception]:
    """What Pillow raises for pictures above its own limit, ``PIL.Image.MAX_IMAGE_PIXELS``."""
    found: type[Exception] = pillow().DecompressionBombError
    return found


def check_pixels(pixels: int, most: int | None) -> None:
    """Check the size of a picture before its pixels are decoded.

    Args:
        pixels: how many it has, of all its frames.
        most: how many it may have; ``None`` for any number.

    Raises:
        InvalidArgumentError: it has more.
    """
    if most is not None and pixels > most:
        raise invalid(
            f"max_pixels: got a picture of {pixels} pixels; expected at most {most} (pass a larger"
            " max_pixels, or None, if you trust the file)"
        )
