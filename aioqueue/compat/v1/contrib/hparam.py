"""`HParams`: named values that a command line can override, as many scripts keep them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

_ASSIGNMENT = re.compile(
    r"""\s*(?P<name>[a-zA-Z][\w.]*)\s*
        (?:\[\s*(?P<index>\d+)\s*\])?\s*=\s*
        (?:\[(?P<list>[^\]]*)\]|(?P<value>[^,\[]*))
        (?:,|$)""",
    re.VERBOSE,
)
_TRUE, _FALSE = ("true", "1"), ("false", "0")


class HParams:
    """Numbers, strings, booleans and lists of them by name; ``hparam_def`` must be None."""

    def __init__(self, hparam_def: Any = None, model_structure: Any = None, **values: Any) -> None:
        if hparam_def is not None:
            raise NotImplementedError("hparam_def: serialized parameters are out of scope")
        self._types: dict[str, tuple[type, bool]] = {}
        for name, value in values.items():
            self.add_hparam(name, value)

    def add_hparam(self, name: str, value: Any) -> None:
        """Add a value."""
        if getattr(self, name, None) is not None:
            raise ValueError(f"Hyperparameter name is reserved: {name}")
        if isinstance(value, list | tuple):
            if not value:
                raise ValueError(f"Multi-valued hyperparameters cannot be empty: {name}")
            self._types[name] = type(value[0]), True
        else:
            self._types[name] = type(value), False
        self.__dict__[name] = value

    def set_hparam(self, name: str, value: Any) -> None:
        """Set a value that is there to one of its type."""
        kind, is_list = self._types[name]
        if isinstance(value, list):
            if not is_list:
                raise ValueError(f"Must not pass a list for single-valued parameter: {name}")
            self.__dict__[name] = [_as(kind, name, one) for one in value]
        else:
            if is_list:
                raise ValueError(f"Must pass a list for multi-valued parameter: {name}.")
            self.__dict__[name] = _as(kind, name, value)

    def parse(self, values: str) -> HParams:
        """Set values from a text such as ``"rate=0.1,layers=[4,2],name=net,layers[1]=3"``."""
        place = 0
        while place < len(values):
            found = _ASSIGNMENT.match(values, place)
            if found is None:
                raise ValueError(f"Malformed hyperparameter value: {values[place:]}")
            place = found.end()
            self._assign(found)
        return self

    def _assign(self, found: re.Match[str]) -> None:
        name, index, text = found["name"], found["index"], found["value"]
        if name not in self._types:
            raise ValueError(f"Unknown hyperparameter type for {name}")
        kind, is_list = self._types[name]
        if found["list"] is not None:
            parts = [one.strip() for one in found["list"].split(",") if one.strip()]
            self.set_hparam(name, [_parsed(kind, name, one) for one in parts])
        elif index is not None:
            if not is_list:
                raise ValueError(f"{name}: got an index; expected none, for it is no list")
            self.__dict__[name][int(index)] = _parsed(kind, name, text.strip())
        elif is_list:
            raise ValueError(f"Must pass a list for multi-valued parameter: {name}.")
        else:
            self.__dict__[name] = _parsed(kind, name, text.strip())

    def override_from_dict(self, values_dict: Mapping[str, Any]) -> HParams:
        """Set values that are there."""
        for name, value in values_dict.items():
            self.set_hparam(name, value)
        return self

    set_from_map = override_from_dict

    def parse_json(self, values_json: str) -> HParams:
        """Set values that are there, from an object of JSON."""
        return self.override_from_dict(json.loads(values_json))

    def to_json(
        self,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """The values as an object of JSON, without functions."""
        plain = {name: value for name, value in self.values().items() if not callable(value)}
        return json.dumps(plain, indent=indent, separators=separators, sort_keys=sort_keys)

    def values(self) -> dict[str, Any]:
        """The values by name."""
        return {name: self.__dict__[name] for name in self._types}

    def get(self, key: str, default: Any = None) -> Any:
        """A value, or `default` if it is not there."""
        return self.__dict__[key] if key in self._types else default

    def __contains__(self, key: object) -> bool:
        return key in self._types

    def __str__(self) -> str:
        return str(sorted(self.values().items()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"


def _as(kind: type, name: str, value: Any) -> Any:
    """A value of the type of the one before it; a whole number may be a float."""
    refusal = ValueError(f"Could not cast hparam '{name}' of type '{kind}' from value {value!r}")
    if kind is type(None) or value is None or not issubclass(kind, bool | int | float | str):
        return value
    if isinstance(value, bool) != issubclass(kind, bool):
        raise refusal
    if isinstance(value, str) != issubclass(kind, str):
        raise refusal
    if issubclass(kind, int) and isinstance(value, float):
        raise refusal
    made: Callable[[Any], Any] = kind
    return made(value)


def _parsed(kind: type, name: str, text: str) -> Any:
    """What a text means, as a value of a type."""
    refusal = ValueError(
        f"Could not parse hparam '{name}' of type '{kind.__name__}' with value: {text!r}"
    )
    if issubclass(kind, bool):
        lowered = text.lower()
        if lowered not in _TRUE + _FALSE:
            raise refusal
        return lowered in _TRUE
    if issubclass(kind, str) or kind is type(None):
        return text
    made: Callable[[Any], Any] = kind
    try:
        return made(text)
    except ValueError:
        raise refusal from None
