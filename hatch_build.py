"""The build of the compiled core.

`AIOQUEUE_COMPILE=1 pip install .` builds the core from the files of the package.

The modules that `pyproject.toml` lists are compiled by Cython, each from its ``.py`` file, which is
installed beside what was made of it, and whose lines tracebacks show. A ``.pxd`` file beside some
of them says how fields are kept and calls are made in C; it holds no rule. Without the variable
nothing of this happens, nothing else is needed, and the package is pure Python.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
import tempfile
import weakref
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

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
        self.place = tempfile.mkdtemp(prefix="aioqueue-build-")
        # If another part of the build fails, nothing calls `finalize`.
        self.remove = weakref.finalize(self, shutil.rmtree, self.place, ignore_errors=True)
        try:
            made = compiled(Path(self.root), self.config["modules"], self.place)
        except BaseException as error:
            self.remove()
            if is_of_the_compiler(error):
                raise SystemExit(f"{VARIABLE}=1: the C compiler has failed: {error}") from None
            raise
        for built in made:
            build_data["force_include"][str(built)] = built.relative_to(self.place).as_posix()
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if is_asked_for():
            self.remove()


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
    if sys.platform == "win32":  # setuptools looks for Visual C++, and says what is missing
        return None
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler {compiler!r}: install one, such as the package gcc"
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.is_file():
        return (
            f"there are no headers of Python ({header}): install them, as the package python3-dev"
        )
    return None


def is_of_the_compiler(error: BaseException) -> bool:
    """Whether setuptools says so: it lacks a compiler, or one has refused the code."""
    from setuptools.errors import CompileError, LinkError, PlatformError

    return isinstance(error, CompileError | LinkError | PlatformError)


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
