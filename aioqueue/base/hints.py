"""Hints for names from other libraries.

Unknown attributes, unknown names of our packages and unknown keyword arguments are answered from
the tables of `aioqueue.base.hint_tables`, which know the names of other libraries.

Two more kinds of misuse are refused here: ``in`` on streams, where a search would use up what it
looks at; and overrides of methods that the other face of a queue would bypass.
"""

from __future__ import annotations

import inspect
import opcode
import sys
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from aioqueue.base.arguments import with_known_keywords
from aioqueue.base.hint_tables import ATTRIBUTES, KEYWORDS, NAMES

ClassT = TypeVar("ClassT", bound=type)

_PROTOCOLS: Final = frozenset(
    (
        "__aiter__",
        "__anext__",
        "__bool__",
        "__call__",
        "__contains__",
        "__iter__",
        "__len__",
        "__next__",
    )
)
"""Methods by which Python itself calls a queue, or another object with two faces."""


class _ForeignName:
    """An attribute of other libraries. Reading it raises, with what is written here instead.

    In a class with a ``__getattr__``, CPython would look up every attribute in the slow way.
    """

    def __init__(self, kind: str, name: str) -> None:
        self._kind, self._name = kind, name
        self._home: type = object

    def __get__(self, thing: Any, owner: type) -> Any:
        kind, name = self._kind, self._name
        whose = owner if thing is None else thing
        inherited = super(self._home, whose)  # a user's mix-in may define the name
        if hasattr(inherited, name):
            return getattr(inherited, name)
        advice = ATTRIBUTES[kind][name]
        if not advice.startswith("aioqueue."):
            advice = f".{advice}"
        raise AttributeError(
            f"{kind} has no {name!r}{_advice_suffix(advice)}", name=name, obj=whose
        )


class _HidingNames(type):
    """The class of classes whose names are found by attribute access, and in no other way.

    `isinstance` with a protocol that is `typing.runtime_checkable`, `inspect.getattr_static` and
    `dir` look into the ``__dict__`` of each class. What only raises must not be there.
    """

    if not TYPE_CHECKING:

        @property
        def __dict__(cls) -> Mapping[str, Any]:
            return MappingProxyType({})


class Hinted:
    """The base of a class with hints that has no other base: Python adds no base to `object`."""

    __slots__ = ()


def hide_names(cls: type, names: Mapping[str, Any]) -> type:
    """Give a class attributes that only raise, so that they look absent; return where they are.

    The class gets one more base, the last one, which has them. Its own class (its metaclass) stays
    as it is, so that users can combine it with any other.
    """
    home = _HidingNames("HiddenNames", (), {"__slots__": (), "__module__": __name__, **names})
    cls.__bases__ = (*cls.__bases__, home)
    return home


def hint_attributes(kind: str) -> Callable[[ClassT], ClassT]:
    """Decorate a class, of a kind in `ATTRIBUTES`: those names raise when they are read."""

    def hint(cls: ClassT) -> ClassT:
        names = {name: _ForeignName(kind, name) for name in ATTRIBUTES[kind]}
        home = hide_names(cls, names)
        for one in names.values():
            one._home = home
        return cls

    return hint


def refuse_block(statement: str, message: str) -> Callable[[ClassT], ClassT]:
    """Decorate a class whose objects cannot be used in one kind of ``with``.

    Type checkers report that by themselves.

    Args:
        statement: ``"with"`` or ``"async with"``.
        message: of the `TypeError`: what to write instead.
    """

    def refuse(self: object, *arguments: object) -> NoReturn:
        raise TypeError(message)

    def refused(cls: ClassT) -> ClassT:
        a = "a" if statement == "async with" else ""
        hide_names(cls, {f"__{a}enter__": refuse, f"__{a}exit__": refuse})
        return cls

    return refused


def raise_unknown_name(package: str, name: str) -> NoReturn:
    """Raise the error of a package's ``__getattr__``, which must call this directly.

    Args:
        package: its name.
        name: the missing name.

    Raises:
        AttributeError: always; but
        ImportError: from a statement ``from package import name``, which would replace an
            `AttributeError` by an error of its own, and so lose the advice.
    """
    advice = NAMES.get(package, {}).get(name, "")
    if advice:
        code = sys._getframe(2)
        if code.f_code.co_code[code.f_lasti] == opcode.opmap["IMPORT_FROM"]:
            raise ImportError(
                f"cannot import name {name!r} from {package!r}{_advice_suffix(advice)}",
                name=package,
            )
    message = f"module {package!r} has no attribute {name!r}{_advice_suffix(advice)}"
    raise AttributeError(message, name=name, obj=sys.modules[package])


def unexpected_keyword(
    function: str, keyword: str, parameters: Iterable[str], topic: str
) -> TypeError:
    """Make the error for an unknown keyword argument, with advice.

    Args:
        function: its name.
        keyword: the name of the argument.
        parameters: the names that it takes.
        topic: what it is about, as a key of `KEYWORDS`.
    """
    names = list(parameters)
    advice = ""
    for one in KEYWORDS[topic].get(keyword, ()):
        parameter = one.split("=")[0]
        if not parameter.isidentifier():
            advice = one
            break
        if parameter in names:
            advice = one if "=" in one else f"{one}="
            break
    import difflib

    if advice:
        end = _advice_suffix(advice)
    elif similar := difflib.get_close_matches(keyword, names, 1):
        end = f"; did you mean {similar[0]}="
    elif names:
        end = f"; expected some of {', '.join(sorted(names))}"
    else:
        end = "; its arguments have no names"
    return TypeError(f"{function}() got an unexpected keyword argument {keyword!r}{end}")


def hint_keywords(
    things: Iterable[Any], topic: str, options: Mapping[str, Iterable[str]] | None = None
) -> dict[str, Any]:
    """Let functions and constructors say what to write instead of an argument they do not take.

    A class is changed in place. A function is called through another one that looks at the names
    of its arguments first. So it is not for what is called once for each element: there Python's
    own error has to do.

    Args:
        things: functions and classes of ours.
        topic: what they are about, as a key of `KEYWORDS`.
        options: what ``**options`` stands for, by the names of functions. One that is not here and
            has such arguments is left as it is.

    Returns:
        The new functions, by name.
    """
    made = {}
    for thing in things:
        if isinstance(thing, type):
            owner = next((base for base in thing.__mro__ if "__init__" in vars(base)), object)
            if isinstance(vars(owner)["__init__"], FunctionType):
                checked = _checked(vars(owner)["__init__"], topic, options or {})
                type.__setattr__(owner, "__init__", checked)
        else:
            made[thing.__name__] = _checked(thing, topic, options or {})
    return made


def hint_methods(
    cls: type, topic: str, names: Iterable[str], options: Mapping[str, Iterable[str]] | None = None
) -> None:
    """The same for methods of a class, which are replaced.

    Args:
        cls: has them, itself or by a base.
        topic: what they are about, as a key of `KEYWORDS`.
        names: of the methods.
        options: as of `hint_keywords`.
    """
    for name in names:
        owner = next(base for base in cls.__mro__ if name in vars(base))
        setattr(owner, name, _checked(vars(owner)[name], topic, options or {}))


def _checked(
    function: Callable[..., Any], topic: str, options: Mapping[str, Iterable[str]]
) -> Callable[..., Any]:
    """Return a function that checks the names of its arguments, and then calls the given one."""
    displayed = function.__name__
    parameters = inspect.signature(function).parameters.values()
    has_options = any(one.kind is one.VAR_KEYWORD for one in parameters)
    if hasattr(function, "__wrapped__") or (has_options and displayed not in options):
        return function
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = {one.name: None for one in parameters if one.kind in by_name}
    known.pop("self", None)
    known |= dict.fromkeys(options.get(displayed, ()))

    def refuse(args: tuple[Any, ...], keyword: str) -> TypeError:
        name = type(args[0]).__name__ if displayed == "__init__" else displayed
        return unexpected_keyword(name, keyword, known, topic)

    return with_known_keywords(function, frozenset(known), refuse)


def _advice_suffix(advice: str) -> str:
    return f"; here that is {advice}" if advice else ""


def refuse_search(thing: object, why: str = "the search would use up what it looks at") -> NoReturn:
    """Raise the error of ``in``, for ``__contains__``. Python would iterate over the object.

    Args:
        thing: the object.
        why: what the search would do.

    Raises:
        TypeError: always.
    """
    raise TypeError(f"{thing!r} cannot be searched by `in`: {why}")


def refuse_overrides(cls: type, kind: str, bypassed_by: str = "the other face") -> None:
    """Refuse a user's subclass that overrides a method of a class with two faces.

    Both faces, and our own code, call what is behind them. They would bypass the override.

    Args:
        cls: the subclass. Internal subclasses are exempt.
        kind: what it is a subclass of.
        bypassed_by: who would bypass the override.

    Raises:
        TypeError: the subclass overrides a method.
    """
    if _is_ours(cls):
        return
    names = {name for base in cls.__mro__ if _is_ours(base) for name in vars(base)}
    overridden = sorted(
        name
        for name in names
        if (name in _PROTOCOLS or not name.startswith("__"))
        and not _is_ours(next(base for base in cls.__mro__ if name in vars(base)))
    )
    if overridden:
        raise TypeError(
            f"{cls.__name__} overrides {', '.join(overridden)}: {bypassed_by} would bypass the"
            f" override. Write a class that has {kind} as an attribute, and calls it"
        )


def _is_ours(cls: type) -> bool:
    return cls.__module__.split(".")[0] == "aioqueue"
