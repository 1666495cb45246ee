"""Which code belongs to the program, and which to an installed package.

The program's own code changes while you work on it, so it is compared as it is. That of a package
counts by the package's name and version. A package is what lies in a folder ``site-packages`` or
``dist-packages`` of any environment, or what the record of an installed distribution lists. The
code of an editable install lies elsewhere, is in no such record, and belongs to the program.
"""

from __future__ import annotations

import functools
import importlib.machinery
import os
import sys
import sysconfig
import zipfile
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import aioqueue

_FOLDERS: Final = {"site-packages", "dist-packages"}
_OF_PYTHON: Final = "python"


class Package(NamedTuple):
    """An installed package."""

    name: str
    version: str


def package_of(module: str, file: str | None = None) -> Package | None:
    """The package that a module belongs to; ``None`` if that is the program.

    Args:
        module: its full name.
        file: its file, if that is known.
    """
    return _package_of(module, file_of(module) if file is None else file)


def is_program(module: str) -> bool:
    return package_of(module) is None


@functools.lru_cache(maxsize=4096)
def _package_of(module: str, file: str | None) -> Package | None:
    top = module.partition(".")[0]
    if top == "aioqueue":
        return Package(top, aioqueue.__version__)
    if file is None:
        is_python = top in sys.stdlib_module_names and module != "__main__"
        return _python() if is_python else None
    place = os.path.realpath(file)
    if _FOLDERS.isdisjoint(part.lower() for part in Path(place).parts):
        if any(place.startswith(folder + os.sep) for folder in _of_python()):
            return _python()
        if not _is_recorded(place):
            return None
    return Package(top, _version_of(top, place))


def _python() -> Package:
    return Package(_OF_PYTHON, f"{sys.version_info[0]}.{sys.version_info[1]}")


@functools.cache
def _of_python() -> list[str]:
    """Return the folders of the standard library."""
    paths = sysconfig.get_paths()
    folders = [paths["stdlib"], paths["platstdlib"], os.path.dirname(os.__file__)]
    return sorted({os.path.realpath(folder) for folder in folders})


def _is_recorded(place: str) -> bool:
    """Return whether an installed distribution outside of the usual folders lists a file."""
    for root, recorded in _records():
        if place.startswith(root + os.sep):
            return os.path.relpath(place, root).replace(os.sep, "/") in recorded
    return False


@functools.cache
def _records() -> list[tuple[str, set[str]]]:
    """Return the unusual folders that hold distributions, with the files of these."""
    from importlib.metadata import distributions

    found: dict[str, set[str]] = {}
    for one in distributions():
        root = os.path.realpath(str(one.locate_file("")))
        record = None
        if _FOLDERS.isdisjoint(part.lower() for part in Path(root).parts):
            record = one.read_text("RECORD")  # a checkout that was built has none
        for line in (record or "").splitlines():
            found.setdefault(root, set()).add(line.rsplit(",", 2)[0].strip('"'))
    return sorted(found.items(), key=lambda one: len(one[0]), reverse=True)


@functools.cache
def _version_of(top: str, place: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(top)
    except metadata.PackageNotFoundError:
        names = sorted(set(metadata.packages_distributions().get(top, ())))
    if names:
        return " ".join(f"{name} {metadata.version(name)}" for name in names)
    try:  # a file that somebody has put there
        return blake2b(Path(place).read_bytes(), digest_size=8).hexdigest()
    except OSError:
        return "unknown"


def file_of(module: str) -> str | None:
    """The file of a module, or the folder of one without a file; ``None`` if it has neither, or if
    no such module can be found. Nothing is imported."""
    loaded = sys.modules.get(module)
    if not module:
        return None
    if loaded is not None:
        file = getattr(loaded, "__file__", None)
        return file if isinstance(file, str) else next(iter(_folders_of(loaded)), None)
    where: Any = None
    spec = None
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        parent = sys.modules.get(name)
        if parent is not None:
            where = _folders_of(parent)
            continue
        try:
            spec = importlib.machinery.PathFinder.find_spec(name, where)
        except (ImportError, ValueError, AttributeError):
            return None
        if spec is None:
            return None
        where = list(spec.submodule_search_locations or ())
    if spec is None:
        return None
    return spec.origin if spec.has_location else next(iter(where or ()), None)


def source_of(file: str) -> bytes | None:
    """What the file of a module holds, also one in an archive; ``None`` if it is a folder, or gone.

    Raises:
        OSError: it cannot be read.
    """
    path = Path(file)
    if path.is_file():
        return path.read_bytes()
    archive = next((one for one in path.parents if one.is_file()), None)
    if archive is None:
        return None
    try:
        with zipfile.ZipFile(archive) as opened:
            return opened.read(path.relative_to(archive).as_posix())
    except (zipfile.BadZipFile, KeyError):
        return archive.read_bytes()


def _folders_of(module: ModuleType) -> list[str]:
    return list(getattr(module, "__path__", ()))


def module_name(module: str) -> str:
    """The last part of a module's name; for a script, that which it has when it is imported.

    So a function is the same one whether its file is run, imported, or imported from a package.
    """
    if module in ("__main__", "__mp_main__"):
        main = sys.modules.get(module)
        spec = getattr(main, "__spec__", None)
        file = getattr(main, "__file__", None)
        if spec is not None:  # python -m package.script
            module = spec.name.removesuffix(".__main__")
        elif isinstance(file, str):
            module = Path(file).stem
    return module.rpartition(".")[2]


def resolved(module: str, name: str) -> Any:
    """Return what a loaded module has under a dotted name; ``None`` if it has nothing there."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
