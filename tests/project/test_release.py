"""What a release shows and promises: its public names, its version, its links, its workflows.

``python -m tests.project.test_release`` writes the public names down again, in `public_names.txt`.
What is missing there afterwards was public: see *Stability*.
"""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import aioqueue

ROOT = Path(__file__).resolve().parents[2]
NAMES = Path(__file__).with_name("public_names.txt")
MODULES = ("", "sync", "inputs", "torch", "ray", "rl", "testing", "asgi", "compat.v1")


def public_names(module: str) -> list[str]:
    """The names in the ``__all__`` of a module, also of one that cannot be imported here."""
    full = f"aioqueue.{module}".rstrip(".")
    if module == "torch":
        text = (Path(aioqueue.__file__).parent / "torch" / "__init__.py").read_text("utf-8")
        for node in ast.parse(text).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                return sorted(ast.literal_eval(node.value))
    return sorted(importlib.import_module(full).__all__)


def written_names() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in NAMES.read_text("utf-8").splitlines():
        if line and not line.startswith(" "):
            names = found.setdefault(line.rstrip(":"), [])
        else:
            names += line.split()
    return found


@pytest.mark.parametrize("module", MODULES)
def test_public_names_are_as_written_down(module: str) -> None:
    """A name that goes was public: it needs a deprecation. A name that comes is public from now
    on: write it down with ``python -m tests.project.test_release``."""
    now = public_names(module)
    written = written_names()[f"aioqueue.{module}".rstrip(".")]
    assert now == written, {"gone": {*written} - {*now}, "new": {*now} - {*written}}


needs_checkout = pytest.mark.skipif(
    not (ROOT / "SECURITY.md").is_file(), reason="these tests lie beside no sources"
)


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return found


@needs_checkout
def test_the_page_on_stability_lists_these_modules() -> None:
    text = (ROOT / "docs" / "stability.md").read_text("utf-8")
    table = re.findall(r"^\| `(aioqueue[\w.]*)` \|", text, re.MULTILINE)
    assert table == [f"aioqueue.{module}".rstrip(".") for module in MODULES]


@needs_checkout
def test_the_version_stands_in_one_place() -> None:
    pattern = re.compile(rf"(?<![\d.]){re.escape(aioqueue.__version__)}(?![\d.])")
    files = ["pyproject.toml", "CITATION.cff", "mkdocs.yml", "README.md", "aioqueue/__init__.py"]
    found = [name for name in files if pattern.search((ROOT / name).read_text("utf-8"))]
    assert found == ["aioqueue/__init__.py"]
    reported = project()["tool"]["hatch"]["version"]["path"]
    assert reported == "aioqueue/__init__.py"


@needs_checkout
def test_the_repository_is_named_alike_everywhere() -> None:
    urls = project()["project"]["urls"]
    assert {"Source", "Documentation", "Changelog", "Issues"} <= {*urls}
    files = [ROOT / "CITATION.cff", ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml"]
    for path in files:
        if path.is_file():  # an installed archive of the sources has no .github
            assert urls["Source"] in path.read_text("utf-8")
    assert all(url.startswith(urls["Source"]) for url in urls.values())


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
needs_workflows = pytest.mark.skipif(not WORKFLOWS, reason="no workflows lie beside these sources")


@needs_workflows
def test_the_workflows_name_what_they_run_by_its_commit() -> None:
    """A tag can be moved to other code. The version beside it is for readers and Dependabot."""
    versions: dict[str, set[str]] = {}
    for path in WORKFLOWS:
        text = path.read_text("utf-8")
        used = re.findall(r"uses: *([^\s#]*)(.*)", text)
        assert used, path
        for action, comment in used:
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action), f"{path.name}: {action}"
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), f"{path.name}: {action}{comment}"
            versions.setdefault(action.partition("@")[0], set()).add(action + comment)
        assert all("==" in run for run in re.findall(r"pipx run (\S+)", text)), path
        checkouts = text.count("uses: actions/checkout@")
        assert text.count("persist-credentials: false") == checkouts, path
    assert {name: len(found) for name, found in versions.items()} == dict.fromkeys(versions, 1)
    asked = (ROOT / ".github" / "dependabot.yml").read_text("utf-8")
    assert "package-ecosystem: github-actions" in asked


@needs_workflows
def test_the_workflows_have_no_right_that_they_need_not() -> None:
    for path in WORKFLOWS:
        text = path.read_text("utf-8")
        assert "\npermissions:\n  contents: read\n" in text, path
        assert "password" not in text
        assert "secrets." not in text
        head, _, publish = text.partition("\n  publish:\n")
        assert "write" not in head.split("\njobs:")[1], path
        assert bool(publish) == (path.name == "release.yml")
    assert "environment: release" in publish_job()
    assert "id-token: write" in publish_job()


def publish_job() -> str:
    path = ROOT / ".github" / "workflows" / "release.yml"
    return path.read_text("utf-8").split("\n  publish:\n")[1]


def written(names: list[str]) -> str:
    lines, line = [], "   "
    for name in names:
        if len(line) + len(name) > 98:
            lines.append(line)
            line = "   "
        line += f" {name}"
    return "\n".join([*lines, line])


if __name__ == "__main__":
    parts = [f"aioqueue.{one}".rstrip(".") + f":\n{written(public_names(one))}" for one in MODULES]
    NAMES.write_text("\n".join(parts) + "\n", encoding="utf-8")
