"""Extras are installed from a checkout: a package index has another project under this name."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aioqueue.base import extras

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS: dict[str, list[str]] = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["custom"]["extras"]

NAME = "aioqueue"
WRONG = re.compile(rf"\b(?:install|add)(?: -\S+)* ['\"]?{NAME}\b|\b{NAME}\\?\[[a-z]")
"""Commands that would install the other project, and names of extras that suggest them."""

COMMAND = re.compile(r"pip install (?:-e )?['\"]?\.\\?\[([a-z0-9,-]+)\\?\]")

PLACES = ["aioqueue", "docs", "examples", "tests", ".ci", ".github"]


@functools.cache
def texts() -> dict[str, str]:
    """Every text of the project that a user or a contributor may read."""
    files = [path for place in PLACES for path in (ROOT / place).rglob("*") if path.is_file()]
    files += [path for path in ROOT.iterdir() if path.is_file()]
    kinds = {".py", ".md", ".ipynb", ".toml", ".yml", ".cff", ".txt", ""}
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in files
        if path.suffix in kinds
        and not {"__pycache__", ".ruff_cache"}.intersection(path.parts)
        and path.name not in (Path(__file__).name, ".git", ".coverage")
    }


@pytest.mark.parametrize(
    "command",
    [
        f"pip install {NAME}",
        f"pip install -U '{NAME}[torch]'",
        f'pip install "{NAME}"',
        f"uv add {NAME}",
        f"uv pip install {NAME}[ray]",
        f"comes with ``{NAME}[rich]``",
        rf"match=r'{NAME}\[rich\]'",
    ],
)
def test_the_wrong_form_is_seen(command: str) -> None:
    assert WRONG.search(command)


def test_no_text_installs_the_other_project() -> None:
    all_texts = texts()
    assert {name.split("/")[0] for name in all_texts} >= {*PLACES, "README.md", "pyproject.toml"}
    wrong = [
        f"{name}: {found.group()}"
        for name, text in all_texts.items()
        for found in WRONG.finditer(text)
    ]
    assert not wrong
    unknown = [
        f"{name}: {found.group()}"
        for name, text in all_texts.items()
        for found in COMMAND.finditer(text)
        if not {*found.group(1).split(",")} <= EXTRAS.keys() | {"extra"}
    ]
    assert not unknown, "no such extras"


def test_messages_ask_one_helper() -> None:
    users = [
        name
        for name, text in texts().items()
        if name.startswith("aioqueue/")
        and name.endswith(".py")
        and re.search(r"^(?!.*``).*[\"'].*pip install .*\.\[", text, re.MULTILINE)
    ]
    assert users == ["aioqueue/base/extras.py"]


def test_a_message_names_the_command_that_installs_an_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = "pip install '.[torch]' in a checkout of aioqueue"
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    for name, file, command in [
        ("numpy", "numpy/__init__.py", here),
        ("Aioqueue", f"{NAME}/__init__.py", here),
        ("aioqueue-tools", f"tools/{NAME}/__init__.py", here),
        ("coordinated-queues", f"{NAME}/__init__.py", "pip install 'coordinated-queues[torch]'"),
    ]:
        assert extras.command_for("torch") == here
        folder = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        folder.mkdir()
        folder.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\n")
        folder.joinpath("RECORD").write_text(f"{NAME}.txt,,\n{file},sha256=x,1\n")
        importlib.invalidate_caches()
        assert extras.command_for("torch") == command


def test_the_name_stands_in_one_place() -> None:
    """Another name in one line is another name everywhere in the metadata."""
    pytest.importorskip("hatchling", reason="it builds the package: pip install hatchling")
    assert "optional-dependencies" in PROJECT["project"]["dynamic"]
    assert not [one for needed in EXTRAS.values() for one in needed if one.startswith(NAME)]
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    metadata: dict[str, Any] = {"name": "other", "urls": PROJECT["project"]["urls"]}
    whole = SimpleNamespace(config={"extras": EXTRAS}, root=str(ROOT))
    build.MetadataHook.update(whole, metadata)
    completed = metadata["optional-dependencies"]
    assert completed.keys() == EXTRAS.keys()
    assert "other[test,docs,frozen]" in completed["dev"]
    assert not [one for needed in completed.values() for one in needed if one.startswith("[")]
