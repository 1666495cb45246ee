"""Pickle functions for worker processes, and refuse those that no process could import."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from multiprocessing import reduction
from types import FunctionType
from typing import Any

from aioqueue.base.arguments import function_name
from aioqueue.errors import InvalidArgumentError, exception_text
from aioqueue.processes.fork_server.bootstrap import imports_main, main_module_hint


def pickled(thing: object, function: Callable[..., Any]) -> bytes:
    """Pickle a function, or an object that calls it, for every process.

    Raises:
        InvalidArgumentError: it cannot be pickled, or no process could import it.
    """
    try:
        return dumped(thing, reduction.ForkingPickler)
    except UnknownToOthersError as error:
        raise not_importable(function, str(error)) from error
    except Exception as error:
        raise InvalidArgumentError(
            f"function: got {function_name(function)!r}, which cannot be pickled and so cannot"
            f" be sent to a process ({exception_text(error)});"
            f" expected a function at the top level of a"
            " module (not a lambda or an inner one), a functools.partial of one, or a picklable"
            " object with __call__; or use where='thread'"
        ) from error


class UnknownToOthersError(Exception):
    """A new process cannot import a function or class; the message says why."""


def dumped(thing: object, pickler: type[pickle.Pickler]) -> bytes:
    """Pickle an object for every process.

    Args:
        thing: the object.
        pickler: the class that pickles it.

    Raises:
        UnknownToOthersError: it refers to a function or class of a main module that other processes
            do not import, such as one from a notebook's cell. Pickle would write only its name.
        Exception: it cannot be pickled.
    """

    class Refusing(pickler):  # type: ignore[misc, valid-type]  # a base that is an argument
        def reducer_override(self, thing: Any) -> Any:
            if isinstance(thing, FunctionType | type) and thing.__module__ == "__main__":
                where = main_module_hint()
                raise UnknownToOthersError(
                    f"{thing.__qualname__!r} is defined {where} and import that, or use"
                    " where='thread'"
                )
            return NotImplemented

    with io.BytesIO() as file:
        (pickler if imports_main() else Refusing)(file, 5).dump(thing)
        return file.getvalue()


def not_importable(function: Callable[..., Any], why: str = "") -> InvalidArgumentError:
    return InvalidArgumentError(
        f"function: got {function_name(function)!r}, which a new process"
        " cannot import; expected a function of a module that can be imported there"
        + (f": {why}" if why else "")
    )
