"""Finding files, and opening them: local ones, URLs, compressed ones, damaged ones."""

from __future__ import annotations

import bz2
import glob
import gzip
import importlib
import importlib.util
import lzma
import os
import pickle
import random
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aioqueue import AioQueueError, DataLossError, InvalidArgumentError
from aioqueue.inputs import numbers, read_json_lines, to_json_lines
from aioqueue.readers.compression import checked_compression
from aioqueue.readers.files import create, files, open_for_reading
from aioqueue.readers.lines import read_lines
from aioqueue.readers.reader import read_whole_files

HAS_FSSPEC = importlib.util.find_spec("fsspec") is not None
needs_fsspec = pytest.mark.skipif(not HAS_FSSPEC, reason="fsspec is not installed")

if HAS_FSSPEC:
    import fsspec

ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"


def zstd() -> Any:
    return pytest.importorskip(ZSTD, reason=f"{ZSTD} is not installed")


def checked_zstd(data: bytes) -> bytes:
    """With a checksum, as the zstd program writes it."""
    flag = zstd().CompressionParameter.checksum_flag
    return bytes(zstd().compress(data, options={flag: 1}))


COMPRESSORS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": (".gz", gzip.compress),
    "bz2": (".bz2", bz2.compress),
    "xz": (".xz", lzma.compress),
    "zstd": (".zst", checked_zstd),
    "zlib": ("", zlib.compress),
}


@pytest.fixture
def memory() -> Iterator[Any]:
    """An empty file system behind memory:// URLs."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


class TestFinding:
    def test_sorts_by_bytes(self, tmp_path: Path) -> None:
        for name in ("b", "a", "B", "é", "a1", "10", "9"):
            (tmp_path / name).touch()
        found = [os.path.basename(path) for path in files(tmp_path / "*", 1)]
        assert found == ["10", "9", "B", "a", "a1", "b", "é"]

    def test_several_patterns_give_each_file_once(self, tmp_path: Path) -> None:
        for name in ("a.txt", "b.txt", "c.csv"):
            (tmp_path / name).touch()
        source = files([f"{tmp_path}/*.txt", str(tmp_path / "a*"), tmp_path / "c.csv"], 1)
        assert [os.path.basename(path) for path in source] == ["a.txt", "b.txt", "c.csv"]

    def test_goes_into_directories_and_leaves_them_out(self, tmp_path: Path) -> None:
        (tmp_path / "x" / "y").mkdir(parents=True)
        (tmp_path / "x" / "y" / "a").touch()
        (tmp_path / "b").touch()
        (tmp_path / ".hidden").touch()
        found = [os.path.relpath(path, tmp_path) for path in files(f"{tmp_path}/**", 1)]
        assert found == ["b", os.path.join("x", "y", "a")]

    def test_nothing_found_is_an_error_that_names_the_pattern(self, tmp_path: Path) -> None:
        (tmp_path / "a").touch()
        pattern = str(tmp_path / "*.jpg")
        with pytest.raises(FileNotFoundError, match="no file matches") as caught:
            files([tmp_path / "a", pattern])
        assert caught.value.filename == pattern
        assert list(files(pattern, allow_empty=True)) == []

    def test_what_a_shell_would_have_done_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "a").touch()
        with pytest.raises(FileNotFoundError, match=rf"it is a folder: .*{tmp_path.name}.+\*'"):
            files(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path))
        with pytest.raises(FileNotFoundError, match=rf"~ is not expanded: try '{tmp_path}/x/\*'"):
            files("~/x/*")
        for path, note in (
            ("data/*.txt", "readers take paths, not patterns: write files('data/*.txt')"),
            ("pipe:cat a.txt", "readers take paths and URLs, not commands"),
            ("a.txt::b.txt", "readers take a list of paths: write [path, path]"),
        ):
            with pytest.raises(FileNotFoundError) as caught:
                list(read_lines(path))
            assert caught.value.__notes__[0].startswith(note)
        for made, pattern in (("", "/*"), (".hidden", "/*"), ("b.parquet", "/*.parquet")):
            folder = tmp_path / "folder"
            folder.mkdir(exist_ok=True)
            if made:
                (folder / made).touch()
            with pytest.raises(IsADirectoryError) as found:
                list(read_lines(folder))
            assert f"write files({str(folder) + pattern!r})" in found.value.__notes__[0]
        with pytest.raises(FileNotFoundError) as caught:
            list(read_lines("data/x.txt"))
        assert not hasattr(caught.value, "__notes__")

    def test_is_a_source_as_others(self, tmp_path: Path) -> None:
        for number in range(6):
            (tmp_path / str(number)).touch()
        shards = [list(files(f"{tmp_path}/*", 1, True, 7, (index, 2))) for index in (0, 1)]
        assert sorted(shards[0] + shards[1]) == list(files(f"{tmp_path}/*", 1))
        assert repr(files(f"{tmp_path}/*", 1, seed=3)) == (
            f"<aioqueue.inputs.files('{tmp_path}/*') of 6, epochs=1, seed=3>"
        )

    @pytest.mark.parametrize("pattern", [5, b"x", [b"x"], [None], []])
    def test_wrong_patterns_are_named(self, pattern: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="pattern: got"):
            files(pattern)

    @needs_fsspec
    def test_urls(self, memory: Any) -> None:
        for name in ("/d/b.txt", "/d/a.txt", "/d/x/c.txt", "/d/c.csv"):
            memory.pipe(name, b"x")
        assert list(files("memory://d/*.txt", 1)) == ["memory:///d/a.txt", "memory:///d/b.txt"]
        assert len(files("memory://d/**", 1)) == 4
        assert len(files("memory:///d/c.csv", 1)) == 1
        with pytest.raises(FileNotFoundError, match="no file matches"):
            files("memory://d/*.jpg")

    @needs_fsspec
    def test_files_in_an_archive(self, tmp_path: Path) -> None:
        archive = tmp_path / "a.zip"
        with zipfile.ZipFile(archive, "w") as inside:
            inside.writestr("d/one.txt", "1")
            inside.writestr("d/two.txt", "2")
        source = files(f"zip://d/*.txt::{archive}", 1)
        assert list(source) == [f"zip://d/one.txt::{archive}", f"zip://d/two.txt::{archive}"]
        assert list(read_whole_files(source)) == [b"1", b"2"]


class TestCompression:
    @pytest.mark.parametrize("kind", COMPRESSORS)
    def test_is_undone(self, kind: str, tmp_path: Path) -> None:
        suffix, compress = COMPRESSORS[kind]
        content = os.urandom(1000) * 300
        file = tmp_path / f"file{suffix}"
        raw = compress(content)
        file.write_bytes(raw)
        by_suffix = "infer" if suffix else kind
        assert list(read_whole_files(file, compression=by_suffix)) == [content]
        assert list(read_whole_files(file, compression=kind)) == [content]
        assert list(read_whole_files(file, compression=None)) == [raw]

    @pytest.mark.parametrize("kind", [*COMPRESSORS, None])
    def test_is_done(self, kind: str | None, tmp_path: Path) -> None:
        if kind == "zstd":
            zstd()
        file = str(tmp_path / "file")
        stream, closing = create(file, kind)
        with closing:
            for _ in range(100):
                stream.write(b"some text")
        assert list(read_whole_files(file, compression=kind)) == [b"some text" * 100]

    @pytest.mark.parametrize("kind", COMPRESSORS)
    def test_truncated_at_any_byte_is_data_loss(self, kind: str, tmp_path: Path) -> None:
        whole = COMPRESSORS[kind][1](b"some text" * 10)
        file = tmp_path / "file"
        for size in range(1, len(whole)):
            file.write_bytes(whole[:size])
            with pytest.raises(DataLossError, match=f"damaged {kind} data") as caught:
                list(read_whole_files(file, compression=kind))
            assert caught.value.path == str(file)

    @pytest.mark.parametrize("kind", COMPRESSORS)
    def test_damage_is_data_loss(self, kind: str, tmp_path: Path) -> None:
        whole = bytearray(COMPRESSORS[kind][1](b"some text" * 10))
        file = tmp_path / "file"
        for at in (0, len(whole) // 2):
            damaged = whole.copy()
            damaged[at] ^= 0xFF
            file.write_bytes(damaged)
            with pytest.raises(DataLossError, match=f"damaged {kind} data"):
                list(read_whole_files(file, compression=kind))

    def test_what_was_read_before_the_damage_is_reported(self, tmp_path: Path) -> None:
        file = tmp_path / "file.gz"
        file.write_bytes(gzip.compress(os.urandom(10**6))[:-500_000])
        with open_for_reading(str(file), "infer") as stream:
            assert len(stream.read(1000)) == 1000
        with pytest.raises(DataLossError) as caught, open_for_reading(str(file), "infer") as stream:
            while stream.read(1000):
                pass
        assert 400_000 < caught.value.offset < 501_000

    def test_the_suffix_is_that_of_the_file(self) -> None:
        assert checked_compression("infer", "a.csv.gz") == "gzip"
        assert checked_compression("infer", "https://host/a.xz?version=1.gz") == "xz"
        assert checked_compression("infer", "zip://a.bz2::archive.gz") == "bz2"
        assert checked_compression("infer", "a.gz/b") is None
        assert checked_compression("infer", "gz") is None

    @pytest.mark.parametrize("kind", ["rar", 5, ".gz", ""])
    def test_unknown_kinds_are_refused_at_once(self, kind: Any, tmp_path: Path) -> None:
        with pytest.raises(InvalidArgumentError, match=r"compression: got .* 'gzip'"):
            read_whole_files(tmp_path / "none", compression=kind)


class TestOpening:
    @pytest.mark.parametrize("suffix", ["", ".gz"])
    def test_what_is_missing_is_an_ordinary_error(self, suffix: str, tmp_path: Path) -> None:
        file = tmp_path / f"none{suffix}"
        with pytest.raises(FileNotFoundError) as caught:
            list(read_whole_files(file))
        assert caught.value.filename == str(file)

    @pytest.mark.skipif(sys.platform == "win32", reason="there it is PermissionError")
    def test_so_is_a_directory(self, tmp_path: Path) -> None:
        with pytest.raises(IsADirectoryError):
            list(read_whole_files(tmp_path))

    @needs_fsspec
    def test_a_missing_url_is_named(self, memory: Any) -> None:
        with pytest.raises(FileNotFoundError) as caught:
            list(read_whole_files("memory://none"))
        assert "while reading memory://none" in caught.value.__notes__

    @needs_fsspec
    def test_a_network_that_fails_is_no_damage(
        self, memory: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It may be there when it is read again."""

        def read(*_: Any) -> bytes:
            raise TimeoutError

        memory.pipe("/a.gz", gzip.compress(b"hello"))
        monkeypatch.setattr(type(memory.open("/a.gz")), "read", read)
        with pytest.raises(TimeoutError) as caught:
            list(read_whole_files("memory://a.gz"))
        assert "while reading memory://a.gz" in caught.value.__notes__

    @needs_fsspec
    def test_urls_can_be_compressed(self, memory: Any) -> None:
        memory.pipe("/a.gz", gzip.compress(b"hello"))
        assert list(read_whole_files("memory://a.gz")) == [b"hello"]

    @needs_fsspec
    def test_storage_options_reach_fsspec(self, tmp_path: Path) -> None:
        file = tmp_path / "new" / "file"
        stream, closing = create(f"local://{file}", None, {"auto_mkdir": True})
        with closing:
            stream.write(b"x")
        assert file.read_bytes() == b"x"

    def test_bytes_and_path_objects_are_paths(self, tmp_path: Path) -> None:
        file = tmp_path / "a"
        file.write_bytes(b"x")
        assert list(read_whole_files([file, str(file), os.fsencode(file)])) == [b"x"] * 3

    @pytest.mark.parametrize(
        ("path", "module", "command"),
        [
            ("memory://a", "fsspec", "pip install '.[files]'"),
            ("a.zst", ZSTD, "pip install '.[files]'"),
        ],
    )
    def test_a_missing_extra_is_reported_with_its_command(
        self, path: str, module: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def missing(name: str) -> Any:
            assert name == module
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        monkeypatch.setattr(importlib, "import_module", missing)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "a.zst").touch()
        with pytest.raises(ModuleNotFoundError) as caught:
            list(read_whole_files(path))
        assert command in str(caught.value)
        assert caught.value.name == module


def test_data_loss_has_a_location_and_survives_pickling() -> None:
    error = DataLossError(path="a.txt", offset=7, fault="corrupted record")
    assert str(error) == "a.txt: corrupted record at 7"
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.path, copy.offset, copy.fault) == (
        str(error),
        "a.txt",
        7,
        "corrupted record",
    )
    assert isinstance(error, AioQueueError)
    assert isinstance(error, ValueError)
    assert not isinstance(error, OSError)  # reading it again would not help


class TestWhatIsNamedIsRead:
    def test_one_file_by_several_spellings_comes_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        folder = tmp_path / "train"
        folder.mkdir()
        for number in range(3):
            (folder / f"{number}.txt").write_text("x\n")
        (tmp_path / "link").symlink_to("train")
        (folder / "again.txt").symlink_to("0.txt")
        (folder / "once-more.txt").symlink_to("again.txt")
        others = ["./train/*.txt", "train/../train/[0-2].txt", "link/*.txt", f"{folder}//*.txt"]
        expected = [f"train/{number}.txt" for number in range(3)]
        for other in others:
            assert list(files(["train/*.txt", other])) == expected
            assert len(files([other, "train/*.txt"])) == 3
        assert list(files("**/*.txt")) == expected

    def test_stores_keep_equal_contents_once_and_all_their_names_come(self, tmp_path: Path) -> None:
        store = tmp_path / "store"
        store.mkdir()
        (store / "e3b0").write_text("")
        names = [tmp_path / name for name in ("a.txt", "b.txt", "c.txt", "d.txt")]
        for link in names[:2]:
            link.symlink_to(store / "e3b0")
        for link in names[2:]:
            link.hardlink_to(store / "e3b0")
        assert list(files(tmp_path / "*.txt")) == list(map(str, names))

    @pytest.mark.parametrize("pattern", ["*.txt", "**/*.txt", "**", "lost.txt", "*/0.txt"])
    @pytest.mark.parametrize("target", ["nowhere", "lost.txt"], ids=["dangling", "circle"])
    def test_links_that_lead_nowhere_are_reported(
        self, pattern: str, target: str, tmp_path: Path
    ) -> None:
        (tmp_path / "there.txt").write_text("x")
        link = tmp_path / "lost.txt"
        link.symlink_to(target)
        with pytest.raises(FileNotFoundError, match=f"it is a link to '{target}'") as caught:
            files(tmp_path / pattern, allow_empty=True)
        assert caught.value.filename == str(link)
        assert len(files(tmp_path / "there*")) == 1  # who does not meet it is not concerned

    @pytest.mark.parametrize("pattern", ["*/*.txt", "**/*.txt", "shut/*.txt"])
    def test_folders_that_cannot_be_read_are_reported(
        self, pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("open", "shut"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "0.txt").write_text("x")
        scandir = os.scandir

        def refuse(path: str) -> Any:  # root may read whatever there is
            if os.path.basename(path) == "shut":
                raise PermissionError(13, "Permission denied", path)
            return scandir(path)

        monkeypatch.setattr(os, "scandir", refuse)
        with pytest.raises(PermissionError) as caught:
            files(tmp_path / pattern, allow_empty=True)
        assert caught.value.filename == str(tmp_path / "shut")

    def test_circles_of_links_end(self, tmp_path: Path) -> None:
        folder = tmp_path
        for name in "abc":
            folder = folder / name
            folder.mkdir()
            (folder / "0.txt").write_text("x")
            for up in range(6):
                (folder / f"up{up}").symlink_to(tmp_path)
        assert len(files(tmp_path / "**" / "*.txt")) == 3
        assert len(files(tmp_path / "**" / "a" / "**" / "*.txt")) == 3

    def test_a_name_with_brackets_that_exists_is_meant(self, tmp_path: Path) -> None:
        (tmp_path / "data[1]").mkdir()
        (tmp_path / "data1").mkdir()
        for folder in ("data[1]", "data1"):
            for name in ("a[b].txt", "ab.txt"):
                (tmp_path / folder / name).write_text("x")
        inside = tmp_path / "data[1]"
        assert list(files(inside / "a[b].txt")) == [str(inside / "a[b].txt")]
        assert len(files(inside / "*.txt")) == 2
        (inside / "a[b].txt").unlink()
        assert list(files(inside / "a[b].txt")) == [str(inside / "ab.txt")]
        with pytest.raises(FileNotFoundError, match=r"glob\.escape"):
            files(inside / "[x].txt")

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no such files")
    def test_all_that_is_no_folder_is_given_out(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        assert list(files(tmp_path / "*")) == [str(tmp_path / "pipe")]

    @needs_fsspec
    def test_the_list_of_files_that_a_pipeline_has_written_is_no_data(self, tmp_path: Path) -> None:
        numbers(3).write(to_json_lines(tmp_path))
        numbers(3).write(to_json_lines(tmp_path / "sub"))
        assert list(read_json_lines(files(tmp_path / "*"))) == [0, 1, 2]
        assert list(read_json_lines(files(tmp_path / "*.json*"))) == [0, 1, 2]
        assert list(read_json_lines(files(tmp_path / "**" / "*"))) == [0, 1, 2] * 2
        assert list(read_json_lines(files(tmp_path / "**"))) == [0, 1, 2] * 2
        (named,) = files(tmp_path / "_*", epochs=1)
        assert list(files(tmp_path / "_part.aioqueue.json", epochs=1)) == [named]

    @needs_fsspec
    def test_nor_behind_a_url(self, memory: Any) -> None:
        for name in ("part-00000.jsonl", "_part.aioqueue.json"):
            memory.pipe(f"/out/{name}", b"1\n")
        assert list(files("memory://out/*", epochs=1)) == ["memory:///out/part-00000.jsonl"]
        assert len(list(files("memory://out/_*", epochs=1))) == 1

    def test_urls_of_this_machine_are_paths(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("x")
        url = f"file://{tmp_path}/*.txt"
        assert list(files([tmp_path / "*.txt", url])) == [str(tmp_path / "a.txt")]
        assert list(files(url)) == [f"file://{tmp_path}/a.txt"]
        (tmp_path / "b.txt").symlink_to("nowhere")
        with pytest.raises(FileNotFoundError, match="it is a link"):
            files(url)

    @pytest.mark.parametrize("seed", range(4))
    def test_any_tree_has_what_glob_finds_and_each_file_once(
        self, seed: int, tmp_path: Path
    ) -> None:
        draw = random.Random(seed)
        folders = [tmp_path]
        for number in range(12):
            inside = draw.choice(folders)
            kind = draw.choice(["folder", "file", "file", "link"])
            path = inside / draw.choice(
                [f"{number}", f"x{number}.txt", f".{number}", f"[{number}]"]
            )
            if kind == "folder":
                path.mkdir()
                folders.append(path)
            elif kind == "file":
                path.write_text("x")
            else:
                path.symlink_to(draw.choice([*folders, *filter(Path.is_file, inside.iterdir())]))
        for _ in range(12):
            parts = draw.choices(["*", "**", "x*", "*.txt", ".*", "[0-9]*", "."], k=3)
            pattern = os.path.join(tmp_path, *parts[: draw.randint(1, 3)])
            found = list(files([pattern, os.path.join(tmp_path, ".", parts[0])], allow_empty=True))
            globbed = glob.glob(pattern, recursive=True)
            globbed += glob.glob(os.path.join(tmp_path, ".", parts[0]), recursive=True)
            expected = {os.path.realpath(one) for one in globbed if os.path.isfile(one)}
            real = [os.path.realpath(one) for one in found]
            assert set(real) == expected, pattern
            places = [(os.path.realpath(Path(one).parent), Path(one).name) for one in found]
            assert len(set(places)) == len(found), pattern
