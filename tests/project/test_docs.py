"""The documentation does what it says: every Python block in it runs.

The blocks of one page are one program, in order: a later block may use what an earlier one made. A
block with ``<!-- fragment -->`` on the line before it is left out.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import chart, report
from tests.kit import drawings
from tests.kit.children import ROOT, environment

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MAX_FRAGMENTS = 3
COLUMNS = 80
WITH_SHAPES = ("docs/pipelines.md",)
"""Pages whose programs read what `examples/shapes.py` draws."""

ON_RAY = ("docs/howto/cluster.md", "docs/howto/shared-queues.md", "docs/howto/programs.md")
"""Pages whose programs start a cluster."""

ON_ONE_CLUSTER = """
import functools, runpy, sys
import ray
ray.init, shutdown = functools.partial(ray.init, ignore_reinit_error=True), ray.shutdown
ray.shutdown = lambda: None
for page in sys.argv[1:]:
    runpy.run_path(page, run_name="__main__")
shutdown()
"""
"""Runs these pages one after the other: a cluster takes long to start."""

NEED = {
    **dict.fromkeys(WITH_SHAPES, ("PIL",)),
    "docs/howto/checkpoints.md": ("torch", "jax", "orbax.checkpoint"),
    **dict.fromkeys(ON_RAY, ("ray",)),
    "docs/howto/frameworks.md": ("torch", "jax"),
    "docs/howto/pytorch-lightning.md": ("torch", "lightning"),
    "docs/howto/monitoring.md": (
        "matplotlib",
        "opentelemetry.sdk",
        "prometheus_client",
        "rich",
        "tensorboardX",
        "tqdm",
    ),
    "docs/howto/records.md": ("google_crc32c", "pyarrow"),
    "docs/howto/requests.md": ("opentelemetry.sdk", "uvicorn"),
    "docs/howto/web-workers.md": ("opentelemetry", "prometheus_client"),
}
"""Pages whose programs need a package that comes with an extra, or that is for them alone."""

THEIR_WARNINGS = {
    # Of Lightning 2.6 about itself, with PyTorch 2.13.
    "docs/howto/pytorch-lightning.md": (
        "ignore::FutureWarning:lightning.pytorch.utilities._pytree",
    ),
}
"""Warnings that packages give which such a program needs, as ``-W`` wants them."""


SKIP_ITEMS = {
    "docs/howto/bad-records.md",
    "docs/howto/hang.md",
    "docs/howto/ranks.md",
    "docs/howto/records.md",
    "docs/pipelines.md",
}
"""Pages whose programs skip items, of which the log has a warning."""
SKIPPED = (
    r"prepare into '.*' has ended: .* [1-9]\d* skipped, .*; skipped first was |read_.* leaves out"
)


def fenced(page: Path, language: str) -> list[tuple[int, list[str], bool]]:
    """The blocks of a page: number of the first line, lines, and whether it is a fragment."""
    blocks = []
    lines = page.read_text(encoding="utf-8").splitlines()
    start = None
    for index, line in enumerate(lines):
        if start is None and line == f"```{language}":
            start = index + 1
        elif start is not None and line == "```":
            fragment = start >= 2 and lines[start - 2] == "<!-- fragment -->"
            blocks.append((start, lines[start:index], fragment))
            start = None
    assert start is None, f"{page.name}:{start}: a block has no end"
    return blocks


def program(page: Path) -> str:
    """The blocks of a page as one program, whose line numbers are those of the page."""
    lines: list[str] = []
    for start, block, fragment in fenced(page, "python"):
        if not fragment:
            lines += [""] * (start - len(lines)) + block
    return "\n".join(lines) + "\n"


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.slow(but=("howto/pytorch.md", "howto/choose.md"))
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if program(page).strip() and name_of(page) not in ON_RAY],
    ids=name_of,
)
def test_the_blocks_of_a_page_run(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    has_shapes = name_of(page) in WITH_SHAPES
    where = request.getfixturevalue("folder_with_shapes") if has_shapes else ROOT
    script = written(page, tmp_path)
    filters = ["error", *THEIR_WARNINGS.get(name_of(page), ())]
    warnings = [part for one in filters for part in ("-W", one)]
    reported = errors_of([*warnings, str(script)], where)
    if name_of(page) in SKIP_ITEMS:
        reported = [line for line in reported if not re.match(SKIPPED, line)]
    assert reported == []


@pytest.mark.slow
def test_the_blocks_of_the_pages_on_ray_run(tmp_path: Path) -> None:
    scripts = [str(written(ROOT / name, tmp_path)) for name in ON_RAY]
    assert errors_of(["-W", "error", "-c", ON_ONE_CLUSTER, *scripts], ROOT) == []


def written(page: Path, folder: Path) -> Path:
    """The file with the program of a page, if what it needs is installed."""
    for needed in NEED.get(name_of(page), ()):
        pytest.importorskip(needed, reason=f"the page needs {needed}, which is not installed")
    script = folder / f"{page.stem}.py"
    script.write_text(program(page), encoding="utf-8")
    return script


def errors_of(arguments: list[str], folder: Path) -> list[str]:
    """The lines that a program writes to its error output."""
    done = subprocess.run(
        [sys.executable, "-X", "utf8", *arguments],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


@pytest.fixture(scope="session")
def folder_with_shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the pages ask their readers to run `examples/shapes.py`."""
    folder = tmp_path_factory.mktemp("pages")
    script = ROOT / "examples" / "shapes.py"
    subprocess.run([sys.executable, str(script), "shapes"], cwd=folder, timeout=50, check=True)
    return folder


def test_fragments_are_few() -> None:
    fragments = [
        f"{name_of(page)}:{start}"
        for page in PAGES
        for start, _, fragment in fenced(page, "python")
        if fragment
    ]
    assert len(fragments) <= MAX_FRAGMENTS, fragments


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_samples_fit_the_width_of_a_page(page: Path) -> None:
    wide = [
        f"{name_of(page)}:{number}"
        for language in ("python", "bash")
        for start, block, _ in fenced(page, language)
        for number, line in enumerate(block, start + 1)
        if len(line) > COLUMNS
    ]
    assert wide == []


def test_the_pictures_of_the_benchmarks_show_every_row_that_has_a_peer() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| [^|]+ \| ([^|]+) \|", page, flags=re.MULTILINE)
    aims = (ROOT / "docs" / "aims.md").read_text(encoding="utf-8")
    found = report.read(page, aims)
    assert [(c.row.number, c.row.over) for c in found] == rows
    assert report.render(found, re.findall(r"^Measured .*$", page, re.MULTILINE)[0]) == page
    assert report.render_aims(found) == aims
    shown = [line for line in chart.lines_of(found) if isinstance(line, chart.Bar)]
    assert len(shown) == sum(over in chart.PEERS for _, over in rows) > 20
    for path in chart.PICTURES.values():
        picture = path.read_text(encoding="utf-8")
        assert all(chart.multiple(bar.times) in picture for bar in shown)


@pytest.mark.slow
def test_the_drawing_of_a_pipeline_is_what_the_code_draws(
    folder_with_shapes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("PIL", reason="the page needs Pillow, which is not installed")
    monkeypatch.chdir(folder_with_shapes)
    drawn = drawings.drawing_of_the_page()
    assert drawn == drawings.PICTURE.read_text(encoding="utf-8"), "python -m tests.kit.drawings"
    assert "prefers-color-scheme: dark" in drawn
    page = drawings.PAGE.read_text(encoding="utf-8")
    assert f"]({drawings.PICTURE.relative_to(ROOT / 'docs').as_posix()})" in page


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_pages_have_a_target(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)
    local = [target for target in targets if "://" not in target]
    missing = [target for target in local if not (page.parent / target).exists()]
    assert not missing


FILES = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "tests").rglob("*.py"))]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    """Tests go by their end (`core/test_machine.py`), all others by their whole path."""
    text = page.read_text(encoding="utf-8")
    tests = set(re.findall(r"[\w/]*\btest_\w+\.py", text))
    paths = set(re.findall(r"`((?:tests|examples|aioqueue|docs|\.ci)/[\w./-]+)`", text))
    modules = {name.replace(".", "/") for name in re.findall(r"python -m (tests[\w.]*)", text)}
    missing = [
        *(name for name in tests if not any(f"/{path}".endswith(f"/{name}") for path in FILES)),
        *(path for path in paths if not (ROOT / path).exists()),
        *(name for name in modules if not {f"{name}.py", f"{name}/__main__.py"} & {*FILES}),
    ]
    assert not missing


def test_the_front_page_leads_to_every_page() -> None:
    front = ROOT / "docs" / "index.md"
    linked = {*re.findall(r"\]\(([^)#:]+\.md)", front.read_text(encoding="utf-8"))}
    pages = {path.relative_to(front.parent).as_posix() for path in front.parent.rglob("*.md")}
    assert pages - linked == {"index.md"}


COMMANDS = [
    "pip install '.[examples]' && python examples/train_digits.py",
    "pip install '.[test]' && pytest -n auto --dist worksteal",
]


def test_the_readme_has_two_commands_and_ci_no_copy_of_them() -> None:
    lines = [line for _, block, _ in fenced(ROOT / "README.md", "bash") for line in block]
    assert lines == COMMANDS
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "README.md" in script
    assert not any(command in script for command in COMMANDS)


@pytest.mark.skipif(sys.platform == "win32", reason="the script needs bash")
def test_ci_runs_the_commands_of_the_readme() -> None:
    printed = subprocess.run(
        ["bash", str(ROOT / ".ci" / "run"), "--commands"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
    )
    assert printed.stdout.splitlines() == COMMANDS
