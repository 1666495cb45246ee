"""How values are shown in messages: short, on one line, whatever their repr does."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import Any

from aioqueue.base.display_text import without_secrets


class _Repr(reprlib.Repr):
    """Hides passwords in URLs, before it shortens them."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 120

    def repr_str(self, x: str, level: int) -> str:
        return super().repr_str(without_secrets(x) if "://" in x else x, level)

    def repr_instance(self, x: Any, level: int) -> str:
        try:
            text = repr(x)
            text = without_secrets(text) if "://" in text else text
        except Exception:
            return super().repr_instance(x, level)  # says that it cannot
        if len(text) <= self.maxother:
            return text
        head = (self.maxother - 3) // 2
        return f"{text[:head]}...{text[head + 3 - self.maxother :]}"


_repr = _Repr()


_MOST_CHARACTERS = 80


def format_value(value: Any) -> str:
    return safe_repr(value, _repr.repr)


def short_value(value: Any) -> str:
    """Return the value of an item in a few words, on one line."""
    text = " ".join(format_value(value).split())
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}..."


def safe_repr(value: Any, describe: Callable[[Any], str] = repr) -> str:
    """Return the `repr` of a value, even if its class raises in it."""
    try:
        return describe(value)
    except Exception as error:
        return f"<{type(value).__name__} whose {describe.__name__} raises {type(error).__name__}>"
