"""A griffe extension for the reference: docstrings, names and types as users meet them.

mkdocstrings reads sources. But the two faces of a queue take their docstring from the class that
describes its kind (``__doc__ = FIFOConstructor.__doc__``), and their methods take theirs from the
text for both faces (`aioqueue.base.public_names`), which only a running Python sees. Signatures are
written for type checkers: overloads repeat all parameters for the sake of one, and aliases
(``Where``) are names that users cannot look up. And ``**options: Unpack[PrepareOptions]`` does not
show which options there are.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import griffe


class RuntimeDocstrings(griffe.Extension):
    """Replaces docstrings that are assigned or made; reStructuredText's ``::``, which ends a line;
    modules that a function of the same name hides; and, in signatures, what type checkers alone
    need.
    """

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        for function in functions_of(pkg):
            show_one_signature(function)
            show_options(function)

    def on_module_members(self, *, mod: griffe.Module, **_: Any) -> None:
        """Give a module that imports its `__all__` that list: griffe, which expands the lists of
        other modules before `on_module`, reads literals only.
        """
        if mod.exports is None and "__all__" in mod.imports:
            mod.exports = list(importlib.import_module(mod.path).__all__)

    def on_module(self, *, mod: griffe.Module, **_: Any) -> None:
        if mod.docstring is not None:
            mod.docstring.value = mod.docstring.value.replace("::\n", ":\n")

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        runtime = runtime_class(cls)
        if runtime is None:
            return
        if "__doc__" in cls.members:
            show_docstring(cls, inspect.getdoc(runtime))
            cls.del_member("__doc__")
        for name, function in list(cls.members.items()):
            if not isinstance(function, griffe.Function):
                continue
            if name not in vars(runtime):
                cls.del_member(name)  # there for type checkers only
            elif function.docstring is None:
                own = getattr(runtime, name).__doc__
                show_docstring(function, own and inspect.cleandoc(own))


def runtime_class(cls: griffe.Class) -> Any:
    """The class that runs. `None` if there is none to be had: it is made within a function, or its
    module needs an extra that is not installed here, so that the source has to do."""
    try:
        module = importlib.import_module(cls.module.path)
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] == "aioqueue":
            raise
        return None
    return getattr(module, cls.name, None)


def show_docstring(thing: griffe.Object, text: str | None) -> None:
    """Give a class or a function a docstring that its source does not show."""
    if text:
        thing.docstring = griffe.Docstring(
            text,
            lineno=thing.lineno,
            parent=thing,
            parser="google",
            parser_options={"returns_multiple_items": False},
        )


def functions_of(parent: griffe.Object) -> Iterator[griffe.Function]:
    """All functions and methods of a package."""
    for member in list(parent.members.values()):
        if isinstance(member, griffe.Function):
            yield member
        elif isinstance(member, griffe.Module | griffe.Class):
            yield from functions_of(member)


def show_one_signature(function: griffe.Function) -> None:
    """Take the types that overloads tell apart into the one signature, and write aliases out."""
    for parameter in function.parameters:
        kinds = [
            o.parameters[parameter.name].annotation
            for o in overloads_with(function, parameter)
        ]
        if str(parameter.annotation) == "Any" and len(set(map(str, kinds))) > 1:
            parameter.annotation = union(kinds)
        parameter.annotation = written_out(parameter.annotation)
    function.returns = written_out(function.returns)


def show_options(function: griffe.Function) -> None:
    """Write ``**options: Unpack[Options]`` out: one keyword for each option, as a stub would."""
    *_, last = [None, *function.parameters]
    unpacked = last and last.annotation
    if (
        not isinstance(unpacked, griffe.ExprSubscript)
        or unpacked.canonical_path != "typing.Unpack"
    ):
        return
    if function.docstring is not None:
        # What it says of **options is read now, while there is such a parameter: it is kept.
        _ = function.docstring.parsed
    del function.parameters[last.name]
    for name, annotation in options_in(unpacked.slice).items():
        function.parameters.add(
            griffe.Parameter(
                name,
                annotation=written_out(annotation),
                kind=griffe.ParameterKind.keyword_only,
                default="...",
            )
        )


def options_in(name: griffe.ExprName) -> dict[str, Any]:
    """The keys of a `TypedDict`, those of its bases first, each with its type."""
    options = name.parent.modules_collection[name.canonical_path]
    options = options.final_target if options.is_alias else options
    return {
        key: attribute.annotation
        for one in [*reversed(options.mro()), options]
        for key, attribute in one.attributes.items()
    }


def overloads_with(
    function: griffe.Function, parameter: griffe.Parameter
) -> list[griffe.Function]:
    return [
        o for o in function.overloads or [] if parameter.name in o.parameters
    ]


def union(kinds: list[Any]) -> griffe.Expr:
    """``A | B``, each once, in the order in which they come."""
    first, *others = {str(kind): kind for kind in kinds}.values()
    for other in others:
        first = griffe.ExprBinOp(first, "|", other)
    return first


def written_out(annotation: Any) -> Any:
    """An annotation with the aliases of this package replaced by what they stand for."""
    if isinstance(annotation, griffe.ExprName):
        return meaning(annotation)
    if isinstance(annotation, griffe.ExprBinOp):
        left, right = (
            written_out(annotation.left),
            written_out(annotation.right),
        )
        return griffe.ExprBinOp(left, annotation.operator, right)
    if isinstance(annotation, griffe.ExprSubscript):
        return griffe.ExprSubscript(
            annotation.left, written_out(annotation.slice)
        )
    return annotation


def meaning(name: griffe.ExprName) -> Any:
    """What an alias stands for; any other name itself."""
    try:
        found = name.parent.modules_collection[name.canonical_path]
        found = found.final_target if found.is_alias else found
    except (AttributeError, KeyError, griffe.AliasResolutionError):
        return name  # of another package
    is_alias = isinstance(found, griffe.Attribute) and isinstance(
        found.value, griffe.Expr
    )
    if not is_alias or isinstance(
        found.value, griffe.ExprCall
    ):  # a TypeVar is itself
        return name
    return written_out(found.value)
