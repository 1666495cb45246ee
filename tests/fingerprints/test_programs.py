"""Which code belongs to the program, and which to an installed package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from aioqueue.fingerprints import programs
from aioqueue.fingerprints.programs import is_program, package_of

pytest.importorskip("cloudpickle")

PRINT_KEYS = """
import json, vend
from aioqueue.inputs import numbers
from aioqueue.pipeline.fingerprint import code_of

def f(x): return vend.g(x)
def h(x):
    import vend.inner
    return vend.inner.g(x)

print(json.dumps([code_of(numbers(3, seed=0).prepare(one)) for one in (f, h)]))
"""
EDITABLE = json.dumps({"url": "file:///src", "dir_info": {"editable": True}})


def install(root: Path, source: Path, version: str, body: int, *, kind: str = "wheel") -> None:
    """Put a package into a folder, and its metadata into another one."""
    package = source / "vend"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(f"def g(x): return x + {body}\n")
    (package / "inner.py").write_text(f"def g(x): return x + {body}\n")
    name = "vend.egg-info" if kind == "egg" else "vend.dist-info"
    metadata = root / name
    metadata.mkdir(parents=True, exist_ok=True)
    text = f"Metadata-Version: 2.1\nName: vend\nVersion: {version}\n"
    (metadata / ("PKG-INFO" if kind == "egg" else "METADATA")).write_text(text)
    if kind == "editable":
        (metadata / "direct_url.json").write_text(EDITABLE)
        (metadata / "RECORD").write_text(f"__editable__.vend.pth,,\n{name}/METADATA,,\n")
    elif kind == "wheel":
        (metadata / "RECORD").write_text("vend/__init__.py,,\nvend/inner.py,,\n")


CASES = {
    # what lies where, and whether the code counts, or the version
    "site-packages": ("env/lib/site-packages", "env/lib/site-packages", "wheel", False),
    "dist-packages": ("usr/lib/dist-packages", "usr/lib/dist-packages", "wheel", False),
    "any folder": ("vendored", "vendored", "wheel", False),
    "editable": ("env/lib/site-packages", "src", "editable", True),
    "a checkout that was built": ("src", "src", "egg", True),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_package_counts_by_its_version_and_the_program_by_its_code(
    case: str, tmp_path: Path
) -> None:
    metadata, source, kind, is_code = CASES[case]
    root, place = tmp_path / metadata, tmp_path / source
    (tmp_path / "tell.py").write_text(PRINT_KEYS)

    def key(version: str, body: int) -> str:
        install(root, place, version, body, kind=kind)
        env = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{place}"}
        command = [sys.executable, "-B", str(tmp_path / "tell.py")]
        run = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        return run.stdout

    first = key("1.0", 1)
    assert key("1.0", 1) == first
    for old, new in zip(json.loads(first), json.loads(key("1.0", 20)), strict=True):
        assert (old != new) is is_code
    for old, new in zip(json.loads(first), json.loads(key("1.1", 1)), strict=True):
        assert (old != new) is not is_code
        if not is_code:
            assert (old["packages"]["vend"], new["packages"]["vend"]) == ("1.0", "1.1")


@pytest.fixture
def unknown() -> Iterator[None]:
    """Nothing is known of any module yet, nor afterwards."""
    for one in (programs._package_of, programs._records, programs._version_of):
        one.cache_clear()
    yield
    for one in (programs._package_of, programs._records, programs._version_of):
        one.cache_clear()


def test_what_is_installed(unknown: None) -> None:
    assert package_of("numpy.random") == ("numpy", np.__version__)
    python = ("python", ".".join(map(str, sys.version_info[:2])))
    assert package_of("json.decoder") == package_of("sys") == package_of("builtins") == python
    assert package_of("aioqueue.inputs") == ("aioqueue", __import__("aioqueue").__version__)
    assert is_program(__name__)
    assert is_program("__main__") or "site-packages" in str(sys.modules["__main__"].__file__)


def test_a_file_written_by_another_program_counts_by_its_contents(
    unknown: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    found = set()
    for text in ("x = 1", "x = 2"):
        (folder / "loose.py").write_text(text)
        programs._package_of.cache_clear()
        programs._version_of.cache_clear()
        found.add(package_of("loose"))
    assert len(found) == 2
    assert all(one is not None and one.name == "loose" for one in found)


def test_a_module_of_the_program_may_have_the_name_of_one_of_python(
    unknown: None, tmp_path: Path
) -> None:
    (tmp_path / "queue.py").write_text("x = 1")
    assert package_of("queue", str(tmp_path / "queue.py")) is None
