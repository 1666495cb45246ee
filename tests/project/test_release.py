"""What a release shows and promises: its public names, its version, its links, its workflows.

``python -m tests.project.test_release`` writes the public names down again, in `public_names.txt`.
What is missing there afterwards was public: see *Stability*.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

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
    names = ["CITATION.cff", "README.md", "mkdocs.yml", ".github/ISSUE_TEMPLATE/config.yml"]
    for path in (ROOT / name for name in names):
        if path.is_file():  # an installed archive of the sources has no .github
            assert urls["Source"] in path.read_text("utf-8"), path
    others = {name: url for name, url in urls.items() if name != "Documentation"}
    assert all(url.startswith(urls["Source"]) for url in others.values())
    pages = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert f"\nsite_url: {urls['Documentation']}\n" in pages
    assert f"\nrepo_url: {urls['Source']}\n" in pages


@needs_checkout
def test_the_pages_name_the_version() -> None:
    assert "\nhooks: [docs/version.py]" in (ROOT / "mkdocs.yml").read_text("utf-8")
    spec = importlib.util.spec_from_file_location("version", ROOT / "docs" / "version.py")
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    config = SimpleNamespace(config_file_path=str(ROOT / "mkdocs.yml"), copyright="A licence")
    assert hook.on_config(config) is config
    assert config.copyright == f"aioqueue {aioqueue.__version__} · A licence"


@needs_checkout
def test_the_links_of_the_readme_work_on_an_index() -> None:
    """It is shown there as it is, without the files beside it."""
    assert project()["project"]["readme"] == "README.md"
    page = (ROOT / "README.md").read_text("utf-8")
    text = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    source = project()["project"]["urls"]["Source"]
    targets = [
        *re.findall(r"\]\(([^)\s]+)\)", text),
        *re.findall(r"^\[.*?\]: (\S+)$", text, re.MULTILINE),
    ]
    assert len(targets) > 20
    for target in targets:
        assert target.startswith("https://"), target
        if target.startswith(source):
            path = target.removeprefix(f"{source}/blob/main/").partition("#")[0]
            assert (ROOT / path).is_file(), target
    named = {*re.findall(r"^\[(.*?)\]: ", text, re.MULTILINE)}
    assert {*re.findall(r"\]\[([^\]]+)\]", text)} == named


@needs_checkout
def test_the_metadata_are_of_a_version_that_the_tools_of_a_release_know() -> None:
    """What a build writes by default grows with hatchling."""
    found = project()
    targets = found["tool"]["hatch"]["build"]["targets"]
    assert {name: one["core-metadata-version"] for name, one in targets.items()} == {
        "wheel": "2.4",
        "sdist": "2.4",
    }
    (needed,) = found["build-system"]["requires"]
    assert re.fullmatch(r"hatchling>=[\d.]+,<[\d.]+", needed)
    pinned = (ROOT / ".ci" / "release.txt").read_text("utf-8")
    for tool in ("build", "hatchling", "packaging", "twine"):
        assert re.search(rf"^{tool}==[\d.]+$", pinned, re.MULTILINE), tool


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
        for name, job in jobs_of(path).items():
            rights = {*re.findall(r"^ +([\w-]+): write\b", job, re.MULTILINE)}
            assert rights == RIGHTS.get(name, set()), f"{path.name}: {name}"
            assert "write-all" not in job


RIGHTS = {
    "publish": {"id-token", "attestations"},  # for the index; for what says where files come from
    "publish-pages": {"id-token", "pages"},
}


def jobs_of(path: Path) -> dict[str, str]:
    parts = re.split(r"\n  (?=[\w-]+:\n)", path.read_text("utf-8").split("\njobs:")[1])
    return {name: text for name, _, text in (part.strip().partition(":\n") for part in parts)}


@needs_workflows
class TestReleaseJobs:
    JOBS: ClassVar[dict[str, str]] = (
        jobs_of(ROOT / ".github" / "workflows" / "release.yml") if WORKFLOWS else {}
    )

    def test_what_is_uploaded_was_tested(self) -> None:
        assert "- run: .ci/matrix dist\n        env:\n          DIST: " in self.JOBS["pure"]
        assert "cibuildwheel@" in self.JOBS["compiled"]
        tests = project()["tool"]["cibuildwheel"]["test-command"]
        assert any(one.startswith("pytest ") for one in tests)
        assert "needs: [pure, compiled, pages]" in self.JOBS["publish"]
        assert "environment: release" in self.JOBS["publish"]

    def test_the_pages_are_published(self) -> None:
        assert "- run: .ci/matrix docs\n        env:\n          SITE: " in self.JOBS["pages"]
        assert "upload-pages-artifact@" in self.JOBS["pages"]
        assert "needs: publish" in self.JOBS["publish-pages"]
        assert "deploy-pages@" in self.JOBS["publish-pages"]

    def test_the_tools_are_those_of_the_action_that_uploads(self) -> None:
        """A change of the action looks up which twine and which packaging it has."""
        (version,) = re.findall(r"gh-action-pypi-publish@\w+ # (v[\d.]+)", self.JOBS["publish"])
        assert f"its version {version}," in (ROOT / ".ci" / "release.txt").read_text("utf-8")


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
