"""Braces in the names of files stand for several, as in a shell; and short names of archives."""

from __future__ import annotations

import io
import random
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from aioqueue import InvalidArgumentError
from aioqueue.inputs import files, items, read_lines, read_tar
from aioqueue.readers import braces
from aioqueue.readers.braces import expanded

BASH = shutil.which("bash")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("{000..127}", [f"{n:03d}" for n in range(128)]),
        ("a-{8..11}.tar", ["a-8.tar", "a-9.tar", "a-10.tar", "a-11.tar"]),
        ("{08..11}", ["08", "09", "10", "11"]),
        ("{0..10..5}", ["0", "5", "10"]),
        ("{3..1}", ["3", "2", "1"]),
        ("{-1..1}", ["-1", "0", "1"]),
        ("{a..e..2}", ["a", "c", "e"]),
        ("{train,valid}-{0..1}", ["train-0", "train-1", "valid-0", "valid-1"]),
        ("{a,b{0..1}}", ["a", "b0", "b1"]),
        ("{a,}x", ["ax", "x"]),
        ("plain", ["plain"]),
        ("{", ["{"]),
        ("}{", ["}{"]),
        ("{}", ["{}"]),
        ("{abc}", ["{abc}"]),
        ("{x{0..1}}", ["{x0}", "{x1}"]),
        ("{1..a}", ["{1..a}"]),
        ("{1...3}", ["{1...3}"]),
        ("{a{b,c}", ["{ab", "{ac"]),
        ("{b,c}}", ["b}", "c}"]),
    ],
)
def test_what_a_pattern_stands_for(pattern: str, names: list[str]) -> None:
    assert list(expanded(pattern)) == names


@pytest.mark.slow
@pytest.mark.skipif(BASH is None, reason="bash is not installed")
def test_it_is_what_a_shell_makes_of_it() -> None:
    draw = random.Random(1)

    def part(depth: int) -> str:
        kind = draw.randrange(5 if depth else 2)
        if kind == 0:
            return draw.choice(["a", "b-", ".tar", "x7"])
        if kind == 1:
            return "{" + "..".join(draw.choice(["0", "07", "12", "3", "-2"]) for _ in "ab") + "}"
        if kind == 2:
            return "{" + draw.choice(["0..9..3", "a..d", "d..a..2", "5..1"]) + "}"
        return "{" + ",".join(word(depth - 1) for _ in range(draw.randrange(2, 4))) + "}"

    def word(depth: int) -> str:
        return "".join(part(depth) for _ in range(draw.randrange(1, 3)))

    patterns = [word(2) for _ in range(80)]
    script = "".join(f"printf '%s\\n' {pattern}; echo =\n" for pattern in patterns)
    done = subprocess.run(
        [str(BASH), "-c", script], capture_output=True, text=True, check=True, timeout=50
    )
    for pattern, output in zip(patterns, done.stdout.split("=\n"), strict=False):
        assert list(expanded(pattern)) == output.splitlines(), pattern


@pytest.mark.parametrize("depth", [101, 3000])
@pytest.mark.parametrize("pattern", ["{{}}", "{a,{}}", "{{},{{}}}"])
def test_too_many_braces_are_refused(pattern: str, depth: int) -> None:
    for nested in (
        pattern.replace("{}", "{" * depth + "}" * depth),
        pattern.replace("{}", "{a}" * depth),
        pattern.replace("{}", "{a," * depth + "}" * depth),
    ):
        pairs = nested.count("{")
        with pytest.raises(InvalidArgumentError, match=rf"paths: got .* has {pairs:,} pairs of br"):
            read_lines(nested)
    with pytest.raises(InvalidArgumentError, match=r"pattern: got .* expected at most 100"):
        list(files("{" * depth + "}" * depth))


def test_the_most_braces_are_expanded(tmp_path: Path) -> None:
    name = "{" * 99 + "{a,b}" + "}" * 99
    assert braces.names_of(name, "paths") == [name.replace("{a,b}", one) for one in "ab"]
    (tmp_path / ("{" * 120 + "}" * 120)).write_text("x\n")
    assert list(read_lines(tmp_path / ("{" * 120 + "}" * 120))) == ["x"]


class TestNames:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for number in range(3):
            (tmp_path / f"part-{number:02d}.txt").write_text(f"{number}\n")
        return tmp_path

    def test_of_readers(self, folder: Path) -> None:
        pattern = folder / "part-{02..00}.txt"
        for paths in (pattern, str(pattern), bytes(pattern), [str(pattern)]):
            assert list(read_lines(paths)) == ["2", "1", "0"]
        reader = read_lines([str(pattern), str(folder / "part-00.txt")])
        assert list(reader) == ["2", "1", "0", "0"]
        *_, last = list(reader.placed())[:2]
        assert list(reader.after(reader.position(last.place))) == ["0", "0"]

    def test_of_files(self, folder: Path) -> None:
        assert [Path(path).name for path in files(folder / "part-{00,02}.txt")] == [
            "part-00.txt",
            "part-02.txt",
        ]
        assert len(files(folder / "p*-{00..02}.*")) == 3
        with pytest.raises(FileNotFoundError, match=r"part-03\.txt"):
            files(folder / "part-{00..03}.txt")

    def test_a_file_with_such_a_name_is_meant(self, folder: Path) -> None:
        (folder / "part-{00,01}.txt").write_text("braces\n")
        assert list(read_lines(folder / "part-{00,01}.txt")) == ["braces"]
        assert len(files(folder / "part-{00,01}.txt")) == 1

    def test_paths_of_a_source_are_as_they_are(self, folder: Path) -> None:
        with pytest.raises(FileNotFoundError):
            list(read_lines(items([str(folder / "part-{00..02}.txt")])))

    def test_of_urls(self) -> None:
        reader = read_lines("s3://bucket/{000..127}.txt")
        assert "from 128 paths" in repr(reader)

    def test_too_many_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(braces, "MOST_NAMES", 100)
        for make, argument in ((read_lines, "paths"), (files, "pattern")):
            with pytest.raises(InvalidArgumentError, match=f"{argument}: got .* more than"):
                make("s3://bucket/{0..999999999999999999}/{0..9}")


@pytest.mark.parametrize(
    ("suffix", "mode"), [("tgz", "w:gz"), ("tbz2", "w:bz2"), ("txz", "w:xz"), ("tar.gz", "w:gz")]
)
def test_short_names_of_compressed_archives(suffix: str, mode: Any, tmp_path: Path) -> None:
    for number in range(2):
        with tarfile.open(tmp_path / f"{number}.{suffix}", mode) as archive:
            member = tarfile.TarInfo(f"{number}.cls")
            member.size = 1
            archive.addfile(member, io.BytesIO(b"7"))
    samples = list(read_tar(f"{tmp_path}/{{0..1}}.{suffix}"))
    assert [(sample["__key__"], sample["cls"]) for sample in samples] == [("0", b"7"), ("1", b"7")]
