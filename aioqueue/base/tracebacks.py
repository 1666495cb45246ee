"""Shortens tracebacks to the user's frames, and titles groups of failures.

A traceback that reaches a user's code is shortened: the calls of aioqueue's own code are taken out
of it, and so are the calls of libraries between them. What is left are the lines of the program
that asked, and those of the function that failed. `full_tracebacks` shows all of it.

Python adds a frame to a traceback whenever an exception leaves it; but a frame that catches an
exception and ends with a bare ``raise`` adds none a second time. So every public call that may
re-raise a failure of user code ends with::

    except BaseException as error:
        shorten(error)
        raise

or, where a microsecond does not matter, is made ``with SHORTENED:``.

An exception may be known to several threads. So nothing of a traceback is changed; an exception is
given another one, made of the parts that stay.

The tracebacks of compiled modules show their source, too. A compiled module is installed next to
the file that it was made from. Python asks the module's loader for the source, and the loader of
extension modules has none.
"""

from __future__ import annotations

import dis
import inspect
import os
import site
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from importlib.machinery import ExtensionFileLoader
from types import FrameType, TracebackType
from typing import Final, NoReturn

from aioqueue.base.display_text import on_one_line
from aioqueue.errors import copy_exception, counted, describe_exception

PACKAGE_FOLDER: Final = os.path.dirname(os.path.dirname(__file__))
"""The folder of the package, whose frames are left out."""

_OURS: Final = PACKAGE_FOLDER + os.sep

# Python's own modules, what is installed, and ours. `sysconfig` reads a large file to know this.
_LIBRARIES: Final = tuple(
    f"{os.path.normcase(folder)}{os.sep}"
    for folder in dict.fromkeys(
        (os.path.dirname(os.__file__), *site.getsitepackages(), PACKAGE_FOLDER)
    )
)

_is_full = os.environ.get("AIOQUEUE_FULL_TRACEBACKS", "") not in ("", "0")

_RAISE: Final = dis.opmap["RAISE_VARARGS"]

_RESUMABLE: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR

_LONGEST: Final = 200
"""Characters of a message that a title has."""


def full_tracebacks(show: bool = True) -> None:
    """Show the calls of aioqueue's own code in tracebacks, or leave them out again.

    By default they are left out, so that you see the lines of your program. A report of a bug in
    aioqueue needs them. ``AIOQUEUE_FULL_TRACEBACKS=1`` in the environment does the same from the
    start, also in worker processes. What was raised before stays as it is.

    Args:
        show: whether to show them.
    """
    global _is_full
    _is_full = bool(show)


def is_library_file(name: str) -> bool:
    """Return whether a file, by the name in its code objects, belongs to Python or a library."""
    return name.startswith("<frozen") or os.path.normcase(name).startswith(_LIBRARIES)


def is_of_aioqueue(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_OURS)


def shorten(error: BaseException) -> None:
    """Take our own calls out of the traceback of an exception, and of all that it leads to.

    That are its members, if it is a group, its causes and its contexts.

    Args:
        error: what a user is about to see.
    """
    if _is_full:
        return
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    with suppress(
        Exception
    ):  # a class may fail to be inspected: the failure itself must still be raised
        while pending:
            one = pending.pop()
            if one is None or id(one) in seen:
                continue
            seen.add(id(one))
            if isinstance(one, BaseExceptionGroup):
                pending += one.exceptions
            pending += [one.__cause__, one.__context__]
            original = one.__traceback__
            _clear(original)
            short = _shortened(original, keeps_last=isinstance(one, Exception))
            if short is None and original is not None:
                short = _unless_explained(one, original)
            if short is not original:
                BaseException.with_traceback(one, short)


def shorten_again(error: BaseException) -> None:
    """Do the same in a call of ours that makes another public call, which has shortened the error.

    The frame of this call may be all that is left. It would look like the place of a mistake.
    """
    traceback = error.__traceback__
    if traceback is None or traceback.tb_next is not None:
        shorten(error)
    elif not _is_full:
        BaseException.with_traceback(error, None)


class _Shortened(AbstractContextManager[None]):
    """See `SHORTENED`."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            shorten(error)


SHORTENED: Final = _Shortened()
"""A context for the whole of a public call: what leaves it is shortened, also by its own frame."""


def reraise(error: BaseException, *, is_kept: bool = False) -> NoReturn:
    """Raise a failure that happened elsewhere, with its own traceback, cause and context.

    Args:
        error: the failure.
        is_kept: whether something of ours keeps it. Then a copy is raised, so that this does not
            keep all that the frames have which the copy comes through.

    Raises:
        BaseException: the failure.
    """
    if is_kept:
        error = copy_exception(error) or error
    cause, context, is_bare = error.__cause__, error.__context__, error.__suppress_context__
    try:
        raise error
    except BaseException:
        # What the caller is handling just now is not where it comes from.
        BaseException.__setattr__(error, "__context__", context)
        BaseException.__setattr__(error, "__cause__", cause)
        BaseException.__setattr__(error, "__suppress_context__", is_bare)
        raise
    finally:
        del error, cause, context  # which have this frame in their tracebacks


class FailureNote(str):
    """A note on an exception that also says, for titles, who failed on what.

    Args:
        text: the note.
        heading: whose failure it is, and on what: ``decode failed on item 5``.
    """

    __slots__ = ("heading",)
    heading: str

    def __new__(cls, text: str, heading: str) -> FailureNote:
        note = super().__new__(cls, on_one_line(text))
        note.heading = on_one_line(heading)
        return note

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)  # unpickled where aioqueue may not be installed


def text_of(
    error: BaseException,
    formatter: Callable[[BaseException], list[str]] = traceback.format_exception,
) -> str:
    """Return an exception as Python prints it, even if its class fails to be printed.

    Args:
        error: the exception.
        form: a function of `traceback` that formats it.
    """
    try:
        return "".join(formatter(error))
    except Exception:  # Python asks for the truth of exceptions, say, and one has none
        return f"{describe_exception(error)}\n"


def title_of(failures: Iterable[BaseException]) -> str:
    """What a group of failures is called: what failed first, and how many more there are.

    As in ``decode failed on item 5: ValueError: bad pixel, and 2 more failures``.
    """
    first, *others = failures
    notes = getattr(first, "__notes__", ())
    titles = [note.heading for note in notes if isinstance(note, FailureNote)]
    heading = titles[0] if titles else "a worker failed"
    lines = describe_exception(first).splitlines() or [""]
    what = lines[0][:_LONGEST]
    cut = "..." if what != lines[0] or len(lines) > 1 else ""
    more = f", and {counted(len(others), 'more failure')}" if others else ""
    return on_one_line(f"{heading}: {what}{cut}{more}")


def _clear(traceback: TracebackType | None) -> None:
    """Empty those of our own frames that have ended.

    A frame that stays in a traceback leads to those that have called it. What failed is often kept
    by what it failed in: a queue has the failure that closed it. With the frames between, that is a
    circle, and files that were open in it would wait for the cyclic collector.

    A generator or coroutine may have caught the failure and be waiting; it is left as it is.
    """
    entry = traceback
    while entry is not None:
        frame: FrameType | None = entry.tb_frame
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(_OURS) and not code.co_flags & _RESUMABLE:
                try:
                    frame.clear()
                except RuntimeError:
                    break  # it runs, and so do those that have called it
            frame = frame.f_back if entry.tb_next is None else None
        entry = entry.tb_next


def _shortened(traceback: TracebackType | None, *, keeps_last: bool) -> TracebackType | None:
    """The calls that are not ours, without those of libraries by which ours have called ours.

    Args:
        traceback: all calls.
        to_the_end: whether those of libraries stay that ours have made last. They say nothing of
            Ctrl-C and cancellations, which came where ours waited.
    """
    kept: list[TracebackType] = []
    between: list[TracebackType] = []  # calls of libraries that may lead from ours to ours
    has_ours = is_behind_ours = False
    entry = traceback
    while entry is not None:
        name = entry.tb_frame.f_code.co_filename
        if name.startswith(_OURS):
            has_ours = is_behind_ours = True
            between = []
        elif is_behind_ours and is_library_file(name):
            between.append(entry)
        else:
            kept += [*between, entry]
            between = []
            is_behind_ours = False
        entry = entry.tb_next
    if not has_ours:
        return traceback
    if keeps_last:
        kept += between
    made: TracebackType | None = None
    for entry in reversed(kept):
        made = TracebackType(made, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return made


def _unless_explained(error: BaseException, original: TracebackType) -> TracebackType | None:
    """What stays where all calls are ours: the innermost one, if that may be a fault of ours.

    It returns none if our code raised the error on purpose: then its message says all. A failure
    from another process has the traceback there as its cause.
    """
    if not isinstance(error, Exception) or error.__cause__ is not None:
        return None
    while original.tb_next is not None:
        original = original.tb_next
    code = original.tb_frame.f_code.co_code
    if not 0 <= original.tb_lasti < len(code) or code[original.tb_lasti] == _RAISE:
        return None
    return TracebackType(None, original.tb_frame, original.tb_lasti, original.tb_lineno)


class _LoaderWithSource(ExtensionFileLoader):
    """The loader of a compiled module. It knows the file that was compiled."""

    def get_source(self, fullname: str) -> str:  # type: ignore[override]  # typeshed: None
        folder, name = os.path.dirname(self.path), fullname.rpartition(".")[2]
        with open(os.path.join(folder, f"{name}.py"), encoding="utf-8") as file:
            return file.read()


def show_sources() -> None:
    """Let the package's compiled modules that have been imported so far show their source."""
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        if name.startswith("aioqueue.") and spec and type(spec.loader) is ExtensionFileLoader:
            spec.loader = module.__loader__ = _LoaderWithSource(name, str(spec.origin))
