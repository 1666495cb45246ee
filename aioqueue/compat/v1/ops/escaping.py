"""Bytes as messages show them."""

from __future__ import annotations

from typing import Final

__all__ = ("c_escaped",)

_ESCAPES: Final = {
    ord(one): f"\\{letter}" for one, letter in zip("\n\r\t\"'\\", "nrt\"'\\", strict=True)
}


def c_escaped(text: bytes) -> str:
    """Bytes as C spells them, which is how TensorFlow shows strings: others by octal numbers."""
    return "".join(_ESCAPES.get(one) or _spelled(one) for one in text)


def _spelled(byte: int) -> str:
    return chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}"
