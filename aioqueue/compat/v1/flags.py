"""``tf.flags``: the command-line flags of a script, on `argparse`.

Flags are written ``--name=value``, ``--name value`` or with one dash; a boolean flag is also
``--name`` and ``--noname``. They are parsed by ``tf.app.run()``, or when one is first asked for.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol

from aioqueue.compat.v1.absent import names_of

__all__ = (
    "FLAGS", "DEFINE_bool", "DEFINE_boolean", "DEFINE_enum", "DEFINE_float", "DEFINE_integer",
    "DEFINE_list", "DEFINE_multi_enum", "DEFINE_multi_float", "DEFINE_multi_integer",
    "DEFINE_multi_string", "DEFINE_string", "DuplicateFlagError", "Error", "Flag", "FlagValues",
    "UnparsedFlagAccessError", "mark_flag_as_required", "mark_flags_as_required",
)  # fmt: skip


class Error(Exception):
    """Base class of the errors of flags."""


class DuplicateFlagError(Error):
    """A flag is defined twice."""


class UnparsedFlagAccessError(Error):
    """A flag was asked for, and the command line cannot be parsed."""


class _Parser(argparse.ArgumentParser):
    """Reports an error as TensorFlow's flags do: the message alone, without a usage line."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"FATAL Flags parsing error:\n  {message}\nPass --help to see flags.\n")
        sys.exit(1)


class Flag(NamedTuple):
    """A flag with its value at the moment, as ``FLAGS["name"]`` has it."""

    name: str
    default: Any
    help: str
    value: Any


class FlagValues:
    """All flags: call it with a command line to parse it, then ask for flags as attributes."""

    def __init__(self) -> None:
        self._parser = _Parser(allow_abbrev=False, argument_default=argparse.SUPPRESS)
        self._values: dict[str, Any] = {}
        self._defined: dict[str, Flag] = {}
        self._required: set[str] = set()
        self._is_parsed = False

    def __call__(self, argv: Sequence[str], known_only: bool = False) -> list[str]:
        """Parse a command line."""
        self._parser.prog = os.path.basename(argv[0])
        found, rest = self._parser.parse_known_args(list(argv[1:]))
        unknown = [one for one in rest if one.startswith("-") and one != "-"]
        if unknown and not known_only:
            self._parser.error(f"Unknown command line flag '{unknown[0].lstrip('-')}'")
        self._values.update(vars(found))
        self._is_parsed = True
        for name in sorted(self._required):
            if self._values[name] is None:
                self._parser.error(f"Flag --{name} must have a value other than None.")
        return [argv[0], *rest]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if not self._is_parsed:
            self(sys.argv, known_only=True)
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"Unknown command line flag '{name}'") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        elif name in self._values:
            self._values[name] = value
        else:
            raise AttributeError(f"Unknown command line flag '{name}'")

    def __getitem__(self, name: str) -> Flag:
        return self._defined[name]._replace(value=self._values[name])

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Any:
        return iter(sorted(self._values))

    def __dir__(self) -> list[str]:
        return sorted(self._values)

    def flag_values_dict(self) -> dict[str, Any]:
        """All flags with their values."""
        return dict(self._values)

    def _define(self, name: str, default: Any, help: str, **options: Any) -> None:
        if name in self._values:
            raise DuplicateFlagError(f"The flag '{name}' is defined twice.")
        text = f"{help} (default: {default})".replace("%", "%%")
        self._parser.add_argument(f"--{name}", f"-{name}", dest=name, help=text, **options)
        self._values[name] = default
        self._defined[name] = Flag(name, default, help, default)


FLAGS = FlagValues()


class _Definer(Protocol):
    def __call__(self, name: str, default: Any, help: str) -> None: ...


def _definer(
    kind: str, text: str, convert: Callable[[str], Any] | None = None, *, is_multi: bool = False
) -> _Definer:
    """A function that defines flags of a kind; `is_multi`: what was given each time, in a list."""
    options: dict[str, Any] = {"action": "append"} if is_multi else {}
    if convert is not None:
        convert.__name__ = kind.removeprefix("multi_")  # which messages show
        options["type"] = convert

    def define(name: str, default: Any, help: str) -> None:
        FLAGS._define(name, _listed(default) if is_multi else default, help, **options)

    define.__name__ = define.__qualname__ = f"DEFINE_{kind}"
    define.__doc__ = f"Define a flag whose value is {text}."
    return define


def _listed(default: Any) -> list[Any] | None:
    is_one = isinstance(default, str) or not isinstance(default, Sequence | None)
    return [default] if is_one else None if default is None else list(default)


def _integer(text: str) -> int:
    return int(text, 0)


def _float(text: str) -> float:
    return float(text)


def _boolean(text: str) -> bool:
    if text.lower() in ("true", "t", "1"):
        return True
    if text.lower() in ("false", "f", "0"):
        return False
    raise argparse.ArgumentTypeError(f"Non-boolean argument to boolean flag: {text!r}")


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")] if text else []


DEFINE_string = _definer("string", "a string")
DEFINE_integer = _definer("integer", "an int", _integer)
DEFINE_float = _definer("float", "a float", _float)
DEFINE_multi_string = _definer("multi_string", "a list: it may be given again", is_multi=True)
DEFINE_multi_integer = _definer("multi_integer", "a list of ints", _integer, is_multi=True)
DEFINE_multi_float = _definer("multi_float", "a list of floats", _float, is_multi=True)


def DEFINE_boolean(name: str, default: bool | None, help: str) -> None:  # noqa: N802
    """Define a flag that is on or off: ``--name``, ``--noname`` or ``--name=false``."""
    FLAGS._define(name, default, help, nargs="?", const=True, type=_boolean)
    FLAGS._parser.add_argument(
        f"--no{name}", f"-no{name}", dest=name, action="store_false", help=argparse.SUPPRESS
    )


DEFINE_bool = DEFINE_boolean


def DEFINE_list(name: str, default: Sequence[str] | str | None, help: str) -> None:  # noqa: N802
    """Define a flag whose value is a list, with commas."""
    value = _items(default) if isinstance(default, str) else default
    FLAGS._define(name, None if value is None else list(value), help, type=_items)


def DEFINE_enum(  # noqa: N802
    name: str, default: str | None, enum_values: Sequence[str], help: str
) -> None:
    """Define a flag whose value is one of `enum_values`."""
    FLAGS._define(name, default, help, choices=list(enum_values))


def DEFINE_multi_enum(  # noqa: N802
    name: str, default: Sequence[str] | str | None, enum_values: Sequence[str], help: str
) -> None:
    """Define a flag whose value is a list of some of `enum_values`: it may be given again."""
    FLAGS._define(name, _listed(default), help, choices=list(enum_values), action="append")


def mark_flag_as_required(flag_name: str) -> None:
    """Refuse command lines without a flag whose default is None."""
    FLAGS._required.add(flag_name)


def mark_flags_as_required(flag_names: Sequence[str]) -> None:
    """The same for several flags."""
    FLAGS._required.update(flag_names)


__getattr__ = names_of(__name__)
