"""The build: the compiled core, and the text that a package index shows.

`AIOQUEUE_COMPILE=1 pip install .` builds the core from the files of the package.

The modules that `pyproject.toml` lists are compiled by Cython, each from its ``.py`` file, which is
installed beside what was made of it, and whose lines tracebacks show. A ``.pxd`` file beside some
of them says how fields are kept and calls are made in C; it holds no rule. Without the variable
nothing of this happens, nothing else is needed, and the package is pure Python.

It also completes the extras of the project, which refer to each other without its name.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

VARIABLE = "AIOQUEUE_COMPILE"
NEEDS = ["cython>=3.1", "setuptools>=77"]
DIRECTIVES = {
    "language_level": 3,
    "annotation_typing": False,  # annotations tell type checkers more than C could be held to
    "auto_pickle": False,
    "nonecheck": True,  # the collector may have cleared a field that a finalizer asks for
    "freethreading_compatible": True,  # what is without a lock there: docs/howto/compiled.md
}


class CompilingHook(BuildHookInterface[Any]):
    """Adds the extension modules to a wheel, if that is asked for."""

    def dependencies(self) -> list[str]:
        return NEEDS if is_asked_for() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not is_asked_for():
            return
        if version == "editable":
            raise SystemExit(
                f"{VARIABLE}=1: got an editable install, whose files would change without what was"
                " compiled of them; expected `pip install .`"
            )
        why_not = obstacle()
        if why_not:
            raise SystemExit(f"{VARIABLE}=1: {why_not}; without it, the pure package is installed")
        self.place = tempfile.mkdtemp()
        for built in compiled(Path(self.root), self.config["modules"], self.place):
            build_data["force_include"][str(built)] = built.relative_to(self.place).as_posix()
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if is_asked_for():
            shutil.rmtree(self.place)


class MetadataHook(MetadataHookInterface):
    """Adds the extras, with the project's name before those of its own, and the README.

    An index shows the README without the files beside it, so its links are made absolute.
    """

    def update(self, metadata: dict[str, Any]) -> None:
        metadata["optional-dependencies"] = {
            extra: [metadata["name"] + one if one.startswith("[") else one for one in needed]
            for extra, needed in self.config["extras"].items()
        }
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        content = with_absolute_links(text, metadata["urls"]["Source"])
        metadata["readme"] = {"content-type": "text/markdown", "text": content}


def with_absolute_links(text: str, repository: str) -> str:
    """Return a page of the repository whose links and images lead there from anywhere."""

    def absolute(found: re.Match[str]) -> str:
        view = "raw" if found[1].endswith((".svg", ".png")) else "blob"
        return f"]({repository}/{view}/main/{found[1]}"

    return re.sub(r"\]\((?!https?://|mailto:|#)([^)\s]+)", absolute, text)


def is_asked_for() -> bool:
    """Whether the core is to be compiled.

    Raises:
        SystemExit: the variable is neither 0 nor 1.
    """
    asked = os.environ.get(VARIABLE, "")
    if asked not in ("", "0", "1"):
        raise SystemExit(f"{VARIABLE}: got {asked!r}; expected 0 or 1")
    return asked == "1"


def obstacle() -> str | None:
    """Why this Python cannot have the compiled core; ``None`` if it can."""
    if sys.implementation.name != "cpython":
        return f"this is {sys.implementation.name}, and the compiled core is for CPython"
    return None


def compiled(root: Path, modules: list[str], place: str) -> list[Path]:
    """Compile modules of the package; return the files that were made, below a place."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    os.chdir(root)  # the names of files in tracebacks are those of the package
    flags = [] if sys.platform == "win32" else ["-O2", "-g0"]
    extensions = [
        Extension(name, [f"{name.replace('.', '/')}.py"], extra_compile_args=flags)
        for name in modules
    ]
    made = cythonize(extensions, compiler_directives=DIRECTIVES, build_dir=place, quiet=True)
    distribution = Distribution({"ext_modules": made})
    command: Any = distribution.get_command_obj("build_ext")
    command.build_lib = command.build_temp = place
    command.parallel = os.cpu_count()
    command.ensure_finalized()
    command.run()
    return [Path(command.get_ext_fullpath(name)) for name in modules]
