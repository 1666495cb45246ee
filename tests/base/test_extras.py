"""Extras are installed from a checkout: a package index has another project under this name."""

from __future__ import annotations

import functools
import importlib
import re
import tomllib
from pathlib import Path

import pytest

from aioqueue.base import extras

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]

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
    lists = f'"{NAME}['  # the extras of this project, as pip and tools read them
    all_texts["pyproject.toml"] = all_texts["pyproject.toml"].replace(lists, '"[')
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


class TestLists:
    """Tools read the lists without building anything, so they are written down in full."""

    NEED = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(\[(?P<extras>[a-z,-]+)\])?(?P<rest>.*)")

    @classmethod
    def needs(cls) -> list[tuple[str, str, list[str], str]]:
        """Extras, and what each needs: a name, its extras, and the rest."""
        found = []
        for extra, needed in EXTRAS.items():
            for one in needed:
                match = cls.NEED.fullmatch(one)
                assert match is not None, one
                extras = match["extras"].split(",") if match["extras"] else []
                found.append((extra, match["name"], extras, match["rest"]))
        return found

    def test_nothing_of_the_metadata_is_computed(self) -> None:
        assert PROJECT["project"]["dynamic"] == ["version"]
        assert PROJECT["project"]["readme"] == "README.md"
        assert "metadata" not in PROJECT["tool"]["hatch"]

    def test_an_extra_of_the_project_exists_and_comes_before(self) -> None:
        name, known = PROJECT["project"]["name"], list(EXTRAS)
        own = [(extra, others, rest) for extra, one, others, rest in self.needs() if one == name]
        assert len(own) > 5
        for extra, others, rest in own:
            assert others, f"{extra}: the project itself"
            assert not rest, f"{extra}: {rest}"
            for other in others:
                assert known.index(other) < known.index(extra), f"{extra}: {other}"

    def test_a_package_has_one_bound(self) -> None:
        """Also if several extras need it: else one of them would be tested with another version."""
        bounds: dict[str, set[str]] = {}
        for _, name, own, rest in self.needs():
            if name not in (PROJECT["project"]["name"], "protobuf"):  # TensorFlow needs an old one
                bounds.setdefault(name + str(own), set()).add(rest)
        assert {name: found for name, found in bounds.items() if len(found) > 1} == {}
        assert all(rest.startswith((">=", "<")) for found in bounds.values() for rest in found)

    def test_one_that_is_in_another_is_not_repeated(self) -> None:
        """An extra does not list what the extras of this project that it needs bring anyway."""
        direct = {extra: {*needed} for extra, needed in EXTRAS.items()}

        def brought(extra: str) -> set[str]:
            found = set()
            for one in direct[extra]:
                match = self.NEED.fullmatch(one)
                if match is not None and match["name"] == PROJECT["project"]["name"]:
                    for other in match["extras"].split(","):
                        found |= direct[other] | brought(other)
            return found

        repeated = {extra: direct[extra] & brought(extra) for extra in EXTRAS}
        assert {extra: both for extra, both in repeated.items() if both} == {}
