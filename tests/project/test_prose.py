"""Prose: phrases that a native technical writer would not use are refused; and the glossary.

The test reads the pages, and the docstrings, comments and messages of the package. If a page has to
quote such a phrase, add it to `EXCEPTIONS`, with the reason.

It also reads the docstrings of tests, proofs, benchmarks and examples, and all identifiers: names
of functions, tests, classes, parameters, attributes and variables. If a name must have a word of
`JARGON`, add the name to `FOREIGN_NAMES`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

BANNED = (
    "told",
    "whoever",
    "whomever",
    "whom",
    "of which",
    "at hand",
    "by turns",
    "gone through",
    "goes through it",
    "what comes",
    "what becomes of",
    "nobody hears",
    "nobody's",
    "of somebody",
    "said last",
    "is to be said",
    "lest",
    "in the manner of",
    "as good as",
    "go on with",
    "gone on with",
    "goes on with",
    "is let go",
    "let go of",
    "as far as it goes",
    "others nothing",
    "who asks",
    "what is asked",
    "makes up for",
    "is none",
)
"""Phrases that are translated, or whose subject has no name. Say who does what."""

EXCEPTIONS: dict[tuple[str, str], str] = {}
"""A file and a phrase that it may have, and why: where it quotes another library, say."""

JARGON = {
    "told": "reported, described, formatted",
    "tell": "report, format",
    "tells": "reports, names",
    "telling": "reporting",
    "let go": "release, close, clear",
    "lets go": "releases, closes, clears",
    "letting go": "releasing, closing",
    "at hand": "ready",
    "gone": "left, dropped, withdrawn, collected",
    "goes on": "continues, resumes, proceeds",
    "go on": "continue, resume, proceed",
    "going on": "continuing, running",
    "went on": "continued, resumed",
    "passes on": "forwards",
    "pass on": "forward",
    "comes again": "is replayed, returns",
    "struck": "interrupted",
    "strike": "inject, interrupt",
    "strikes": "interrupts, faults",
    "standing": "resume_point, position",
    "stood": "waited",
    "hand out": "deliver",
    "hand over": "transfer, assign",
    "hands": "claimed, in_progress",
    "in hand": "held, in_progress",
    "by hand": "without the part of the library that does it: directly, manual",
    "books": "record, assignments, ledgers",
    "booked": "recorded",
    "soon": "later, scheduled",
    "anew": "again, restarted",
    "brief": "short",
    "briefly": "short",
    "shortly": "short",
    "said": "message, described, declared",
    "say": "report, name, have",
    "says": "reports, names, has",
    "saying": "errors, messages",
    "who": "the caller, worker or reader that is meant",
    "whom": "the caller, worker or reader that is meant",
    "whoever": "a caller, any caller",
    "somebody": "another caller, another program",
    "nobody": "no caller, no worker, no reader",
    "whereabouts": "place, location, stack",
    "look": "sample, check, inspect",
    "looks": "samples, checks, layouts",
    "looked": "sampled, inspected",
    "looking": "sampling, checking",
    "keeper": "listener, owner",
    "pour": "forward",
    "heir": "next owner",
    "deputy": "replacement",
    "desk": "handle, server",
    "fate": "outcome, plan",
    "outlast": "wait_shielded",
}
"""Words that mean several things here, or that the field has another word for; and words for them.

A name has such a word if that is what it has between two underscores, or two capitals.
"""

FOREIGN_NAMES: dict[str, str] = {
    "call_soon": "of event loops of asyncio, and what stands in for it",
    "call_soon_threadsafe": "the same",
    "tell": "of files, in Python and TensorFlow",
    "looks": "a field of public snapshots",
    "gil_looks": "a field of public snapshots",
}
"""Names with a word of `JARGON` that others have chosen, or users have; and whose they are."""

UNREAD = ("aioqueue/compat/", "tests/compat/", "proofs/oracle/", "examples/compat_v1/")
"""Folders in whose names such words may be: what they are about is named as in TensorFlow, and what
is ported there as in the programs that were written for it."""

ELSEWHERE_ALLOWED = ("of which", "what comes", "is none")
"""Phrases that docstrings outside the package may have: they are clear, if long."""

_PHRASES = re.compile(
    r"\b(?:" + "|".join(phrase.replace(" ", r"\s+") for phrase in BANNED) + r")\b(?<!(?-i:None))",
    re.IGNORECASE,
)
_COMMENTS = re.compile(r"(?:^[ \t]*#[^\n]*\n)+|  #[^\n]*\n", re.MULTILINE)
_BETWEEN = re.compile(r"[\s#\"']+(?:f\")?")
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`|<!--.*?-->|\]\([^)]*\)", re.MULTILINE | re.DOTALL)


def folders() -> dict[str, list[Path]]:
    """The files of each folder that is looked at, by its name."""
    found = {"pages": [*ROOT.glob("*.md"), *sorted((ROOT / "docs").glob("*.md"))]}
    found["howto"] = sorted((ROOT / "docs/howto").glob("*.md"))
    package = ROOT / "aioqueue"
    found["aioqueue"] = sorted(package.glob("*.py"))
    for folder in sorted(path for path in package.iterdir() if (path / "__init__.py").exists()):
        found[folder.name] = sorted(folder.glob("*.py"))
        for inner in sorted(path for path in folder.iterdir() if path.is_dir()):
            files = sorted(inner.rglob("*.py"))
            if files:
                found[f"{folder.name}/{inner.name}"] = files
    return found


def prose_of(path: Path) -> Iterator[str]:
    """What a file says: a page without its code, or docstrings, messages and comments."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield _CODE.sub(" ", text)
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.value
    for comment in _COMMENTS.findall(text):
        yield comment.replace("#", " ")


def names_in(path: Path) -> Iterator[str]:
    """The names that a file gives to something."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def jargon_of(name: str) -> list[str]:
    """The words of `JARGON` that a name has."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_").replace("_", " ")
    return [word for word in JARGON if f" {word} " in f" {words} "]


def phrases_in(path: Path) -> list[str]:
    """The banned phrases of a file, each as often as it is there."""
    name = path.relative_to(ROOT).as_posix()
    words = _BETWEEN.sub(" ", path.read_text(encoding="utf-8"))
    if not _PHRASES.search(words):  # neither in prose nor in code: nothing is parsed
        return []
    found = (
        " ".join(one.lower().split()) for text in prose_of(path) for one in _PHRASES.findall(text)
    )
    return [one for one in found if (name, one) not in EXCEPTIONS]


@pytest.mark.slow(but=("aioqueue", "howto"))
@pytest.mark.parametrize("folder", list(folders()))
def test_no_banned_phrases(folder: str) -> None:
    found = {path.relative_to(ROOT): phrases_in(path) for path in folders()[folder]}
    where = "\n".join(f"{path}: {', '.join(phrases)}" for path, phrases in found.items() if phrases)
    assert not where, f"phrases that BANNED lists; say who does what:\n{where}"


@pytest.mark.slow(but=("benchmarks",))
@pytest.mark.parametrize("folder", ["benchmarks", "examples", "proofs", "tests"])
def test_no_banned_phrases_in_docstrings(folder: str) -> None:
    """Docstrings of modules, classes and functions outside the package, which few people read."""
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        if place.startswith(UNREAD) or not _PHRASES.search(path.read_text(encoding="utf-8")):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                phrases = _PHRASES.findall(ast.get_docstring(node) or "")
                phrases = [" ".join(one.lower().split()) for one in phrases]
                found += [f"{place}: {one}" for one in phrases if one not in ELSEWHERE_ALLOWED]
    where = "\n".join(found)
    assert not where, f"phrases that BANNED lists; say who does what:\n{where}"


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["aioqueue", "benchmarks", "examples", "proofs", "tests"])
def test_no_jargon_in_names(folder: str) -> None:
    found = [
        f"{place}: {name}: {word} -> {JARGON[word]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not (place := path.relative_to(ROOT).as_posix()).startswith(UNREAD)
        for name in sorted({*names_in(path)})
        if name.lstrip("_") not in FOREIGN_NAMES
        for word in jargon_of(name)
    ]
    where = "\n".join(found)
    assert not where, f"names with words that JARGON lists, and what to write instead:\n{where}"


def test_foreign_names_are_needed() -> None:
    assert all(jargon_of(name) for name in FOREIGN_NAMES)
    assert jargon_of("TellsTheEnd") == ["tells"]
    assert jargon_of("_let_go_of") == ["let go"]
    assert jargon_of("outlook") == []


def test_phrases_are_found_across_lines_and_not_in_code(tmp_path: Path) -> None:
    page, code = tmp_path / "page.md", tmp_path / "code.py"
    page.write_text(
        "It goes by\nturns; None is None.\n\n```python\ntold = 1\n```\nSee `told`, [it](told.md).\n"
    )
    code.write_text(
        'told = "whoever"\n\n# What lies at\n# hand.\nraise OSError("of "\n    "which")\n'
    )
    found = [_PHRASES.findall(" ".join(" ".join(prose_of(path)).split())) for path in (page, code)]
    assert found == [["by turns"], ["of which", "at hand"]]


def test_exceptions_are_needed() -> None:
    for name, phrase in EXCEPTIONS:
        text = " ".join(" ".join(prose_of(ROOT / name)).lower().split())
        assert phrase in text, (name, phrase)


def test_the_glossary_has_each_term_once_and_in_order() -> None:
    page = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    terms: list[str] = []
    for table in page.split("\n## ")[1:]:
        rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", table, re.MULTILINE)[1:]
        names = [term.lower() for term, _ in rows]
        assert names == sorted(names)
        assert all(meaning[0].isupper() and meaning.endswith(".") for _, meaning in rows)
        terms += [part for name in names for part in name.split(", ")]
    assert len(terms) == len(set(terms))
    assert len(terms) >= 60
