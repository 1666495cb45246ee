"""Code objects: what they read, and what of them decides what they do.

Where a line stands, how a local variable is called and what a text documents does not count.
"""

from __future__ import annotations

import dis
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, Final, NamedTuple


class Import(NamedTuple):
    """An import statement within code."""

    level: int
    module: str
    names: tuple[str, ...]


class NamesRead(NamedTuple):
    """What code reads by name."""

    globals: tuple[str, ...]
    attributes: frozenset[str]
    imports: tuple[Import, ...]
    words: frozenset[str]
    """The words in its texts: `getattr` and `format` take names from these."""


_WORD: Final = re.compile(r"[^\W\d]\w*")
_GLOBALS: Final = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_ATTRIBUTES: Final = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER", "IMPORT_FROM")
_LONGEST: Final = 10_000
_NOTHING: Final = frozenset({"NOP", "CACHE", "EXTENDED_ARG", "NOT_TAKEN"})
_JUMPS: Final = frozenset({"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE"})
_ENDS: Final = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})
_OR_POP: Final = {
    "JUMP_IF_FALSE_OR_POP": "POP_JUMP_IF_FALSE",
    "JUMP_IF_TRUE_OR_POP": "POP_JUMP_IF_TRUE",
}
_NOTED: Final = ("__firstlineno__", "__static_attributes__")
"""What the compiler notes in a class: where it stands, and the attributes that methods set, in an
order that may be another one in the next process."""
_HAS_DOCSTRING: Final = 0x4000000
"""The flag of code that begins with a text, from Python 3.13 on."""
_ANNOTATED: Final = 4
_CLOSED: Final = 8
_LOCALS: Final = frozenset({"locals", "vars", "dir", "eval", "exec", "f_locals"})
"""Code that reads one of these may read the names of its local variables."""


@functools.lru_cache(maxsize=4096)
def reading_of(code: CodeType, *, keeps_annotations: bool = False) -> NamesRead:
    """What code reads, with the functions and classes that it defines.

    Args:
        code: the code.
        keeps_annotations: whether those of the functions that it defines count.
    """
    named: dict[str, None] = {}
    attributes: set[str] = set()
    words: set[str] = set()
    imports: list[Import] = []
    pending = [code]
    while pending:
        one = pending.pop()
        before: list[Any] = [None, None]
        for step in _steps(one, keeps_annotations):
            if step.opname.startswith(_GLOBALS):
                named[step.argval] = None
            elif step.opname.startswith(_ATTRIBUTES):
                attributes.add(step.argval)
            elif step.opname == "IMPORT_NAME":
                level, names = before
                is_relative = isinstance(level, int)
                imports.append(Import(level if is_relative else 0, step.argval, tuple(names or ())))
            before = [before[1], step.argval]
        for constant in _flat(one.co_consts):
            if isinstance(constant, CodeType):
                pending.append(constant)
            elif isinstance(constant, str) and len(constant) <= _LONGEST:
                words.update(_WORD.findall(constant))
    return NamesRead(tuple(sorted(named)), frozenset(attributes), tuple(imports), frozenset(words))


def _flat(constants: Any) -> Iterator[Any]:
    for constant in constants:
        if isinstance(constant, tuple | frozenset):
            yield from _flat(constant)
        else:
            yield constant


def parts_of_code(
    code: CodeType,
    digest: Callable[[Any], bytes],
    *,
    keeps_texts: bool,
    keeps_annotations: bool,
) -> Iterator[bytes]:
    """What of some code decides what it does.

    Args:
        code: the code.
        digest: of a constant.
        keeps_texts: whether the text that documents a function counts, as something reads it.
        keeps_annotations: whether those of the functions that it defines count.
    """
    head, constants = _canonical(code, keeps_texts, keeps_annotations)
    yield head
    for constant in constants:
        yield digest(constant)


@functools.lru_cache(maxsize=4096)
def _canonical(
    code: CodeType, keeps_texts: bool, keeps_annotations: bool
) -> tuple[bytes, tuple[Any, ...]]:
    """The steps of some code in the order in which they are reached, and its constants.

    The compiler leaves steps that do nothing, and jumps to jumps, where a line begins, so that they
    depend on the format of a text. So this function follows jumps, and identifies the steps behind
    them by their numbers in this order.
    """
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    if not _LOCALS.isdisjoint(code.co_names):  # it reads the names of its variables
        count = len(code.co_varnames)
    head: list[Any] = [
        code.co_varnames[:count],
        code.co_freevars,
        code.co_cellvars,
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_flags & ~_HAS_DOCSTRING,
    ]
    constants: list[Any] = []
    if keeps_texts and _is_documented(code):
        constants.append(code.co_consts[0])
    steps = _steps(code, keeps_annotations)
    after = {one.offset: number for number, one in enumerate(steps)}
    number = len(steps)
    for offset in range(len(code.co_code), -1, -2):  # a jump may lead to a step that does nothing
        number = after.setdefault(offset, number)
    handlers: dict[int, tuple[int, int, bool]] = {}
    for entry in getattr(dis.Bytecode(code), "exception_entries", ()):
        for offset in range(entry.start, entry.end, 2):
            handlers[offset] = (after[entry.target], entry.depth, entry.lasti)

    is_body = not code.co_flags & inspect.CO_NEWLOCALS
    numbers: dict[int, int] = {}
    pending = [0]

    def behind(at: int) -> int:
        """Return the step that runs at a place, after any jumps."""
        passed = set()
        while at < len(steps) and steps[at].opname in _JUMPS and at not in passed:
            passed.add(at)
            at = after[steps[at].argval]
        return at

    while pending:
        at = behind(pending.pop())
        while at < len(steps) and at not in numbers:
            numbers[at] = len(numbers)
            step = steps[at]
            name = step.opname.replace("FORWARD_", "").replace("BACKWARD_", "")
            handler = handlers.get(step.offset)
            value: Any = None
            if step.opcode in dis.hasconst:
                value = "constant"
                if _documents(steps, at) and is_body and not keeps_texts:
                    constants.append(None)
                else:
                    constants.append(code.co_consts[step.arg or 0])  # `dis` knows not all kinds
            elif step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
                target = behind(after[step.argval])
                while name in _OR_POP and target < len(steps):
                    # Where it leads to a jump by the same value, it is that jump, or none.
                    other = steps[target].opname.replace("FORWARD_", "").replace("BACKWARD_", "")
                    if other not in {*_OR_POP, *_OR_POP.values()}:
                        break
                    is_same = ("FALSE" in other) == ("FALSE" in name)
                    if other not in _OR_POP or not is_same:
                        name = _OR_POP[name]
                    target = behind(after[steps[target].argval] if is_same else target + 1)
                value = ("jump", target)
                pending.append(target)
            elif step.opcode in dis.haslocal:
                value = ("local", step.arg)
            elif step.opcode in dis.hasname or step.opcode in dis.hasfree:
                value = ((step.arg or 0) & _bits_of(step.opname), step.argval)
            else:
                value = step.arg
            head.append([name, value, handler])
            if handler is not None:
                pending.append(handler[0])
            at = len(steps) if step.opname in _ENDS else behind(at + 1)
        head.append(("then", at))
    # Numbers of steps become those in the order in which they were reached.
    for one in head[7:]:
        if type(one) is list:
            if type(one[1]) is tuple and one[1][0] == "jump":
                one[1] = ("jump", numbers.get(one[1][1]))
            if one[2] is not None:
                one[2] = (numbers.get(behind(one[2][0])), *one[2][1:])
    numbered = [(one[0], numbers.get(one[1])) if type(one) is tuple else one for one in head[7:]]
    return repr((head[:7], numbered)).encode(), tuple(constants)


def _bits_of(opname: str) -> int:
    """Return the mask of those bits of a step's argument that do not belong to its name's index."""
    if opname == "LOAD_SUPER_ATTR":
        return 3
    return int(opname == "LOAD_GLOBAL" or (opname == "LOAD_ATTR" and sys.version_info >= (3, 12)))


def _steps(code: CodeType, keeps_annotations: bool) -> list[dis.Instruction]:
    """Return the steps of a code object that have an effect."""
    steps = [one for one in dis.get_instructions(code) if one.opname not in _NOTHING]
    for at in range(len(steps) - 1, 0, -1):
        if steps[at].opname == "STORE_NAME" and steps[at].argval in _NOTED:
            del steps[at - 1 : at + 1]
    if keeps_annotations:
        return steps
    for at in range(len(steps) - 1, -1, -1):
        flags = steps[at].arg if at < len(steps) and steps[at].opname == "MAKE_FUNCTION" else None
        if not flags or not flags & _ANNOTATED:
            continue
        end = at - 1  # before its code
        if flags & _CLOSED:
            end -= 1 + (steps[end - 1].arg or 0)
        begin, missing = end, 1
        while missing > 0 and begin > 0:
            begin -= 1
            if steps[begin].opcode in dis.hasjrel:
                break
            missing -= dis.stack_effect(steps[begin].opcode, steps[begin].arg, jump=False)
        if missing == 0:
            steps[at] = steps[at]._replace(arg=flags & ~_ANNOTATED)
            del steps[begin:end]
    return steps


def _documents(steps: list[dis.Instruction], at: int) -> bool:
    """Return whether a step loads the docstring of a class or a module."""
    behind = steps[at + 1] if at + 1 < len(steps) else None
    return (
        isinstance(steps[at].argval, str)
        and behind is not None
        and behind.opname == "STORE_NAME"
        and behind.argval == "__doc__"
    )


def _is_documented(code: CodeType) -> bool:
    """Return whether the first constant is the docstring of a function: not if it has no name."""
    if not code.co_consts or not isinstance(code.co_consts[0], str):
        return False
    if sys.version_info >= (3, 13):
        return bool(code.co_flags & _HAS_DOCSTRING)
    is_function = bool(code.co_flags & inspect.CO_NEWLOCALS)
    return is_function and not code.co_name.startswith("<")
