"""Positions: whatever has been taken, what comes behind it is exactly the rest of the run."""

from __future__ import annotations

import bz2
import copy
import gzip
import importlib.util
import json
import lzma
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioqueue import DataLossError, InvalidArgumentError, sync
from aioqueue.items.item import Entry
from aioqueue.items.positions import position_of
from aioqueue.items.quarantined import Quarantined
from aioqueue.readers.csv import read_csv
from aioqueue.readers.files import files
from aioqueue.readers.lines import read_lines
from aioqueue.readers.reader import Reader, Records, read_records, read_whole_files
from aioqueue.readers.tfrecord import TFRecordWriter, read_tfrecords
from aioqueue.sources import shuffling
from aioqueue.sources.kinds.mixture import mix
from aioqueue.sources.kinds.sequences import arrays, numbers
from aioqueue.sources.kinds.source import QuarantinedItems, Source
from tests.kit.worlds import TaskWorld

properties = settings(derandomize=True, deadline=None, max_examples=60)

needs_crc32c = pytest.mark.skipif(
    importlib.util.find_spec("google_crc32c") is None, reason="google-crc32c is not installed"
)


def through_json(position: Any) -> Any:
    """What comes back from a file; a position is made of plain JSON types only."""
    text = json.dumps(position)
    assert json.loads(text) == position
    return json.loads(text)


def comparable(value: Any) -> Any:
    """Entries that == distinguishes, whatever arrays are in them."""
    if isinstance(value, np.ndarray):
        values = value.tolist()
        return (
            value.dtype.str,
            value.shape,
            comparable(values) if value.dtype.hasobject else values,
        )
    if isinstance(value, dict):
        return {key: comparable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return tuple(comparable(one) for one in value)
    return value


def check_every_position(
    make: Callable[[], Source[Any]], *, step: int = 1, most: int = 400
) -> None:
    """Take k items, for all k, and go on from there with a new source.

    Args:
        make: a source, the same one every time.
        step: only every so many k.
        most: how many items to look at, of a source without end.
    """
    source = make()
    whole = [comparable(entry) for entry in islice(source.entries(), most)]
    placed = list(islice(source.placed(), most))
    assert [comparable(entry) for entry, _ in placed] == whole
    assert [comparable(value) for value in islice(source.run(), most)] == [one[0] for one in whole]
    places = [None, *(place for _, place in placed)]
    for k in {*range(0, len(places), step), len(places) - 1}:
        left = most - k
        position = through_json(source.position(places[k]))
        resumed = make().after(position)
        found = list(islice(resumed.placed(), left))
        assert [comparable(entry) for entry, _ in found] == whole[k:], k
        assert [comparable(one) for one in islice(resumed.entries(), left)] == whole[k:], k
        # Its own positions are those of the whole run: a second resume is as good as the first.
        for offset, (_, place) in enumerate(found[:1], 1):
            again = make().after(through_json(resumed.position(place)))
            rest = [comparable(one) for one in islice(again.entries(), left - offset)]
            assert rest == whole[k + offset :], (k, offset)
        assert resumed.position() == position


class TestSequences:
    @pytest.mark.slow
    @settings(properties, max_examples=20)
    @given(
        n=st.integers(0, 30),
        epochs=st.one_of(st.none(), st.integers(0, 3)),
        shuffle=st.booleans(),
        seed=st.integers(0, 2**64 - 1),
        shards=st.integers(1, 4),
        drop=st.booleans(),
        data=st.data(),
    )
    def test_every_position(
        self,
        n: int,
        epochs: int | None,
        shuffle: bool,
        seed: int,
        shards: int,
        drop: bool,
        data: st.DataObject,
    ) -> None:
        shard = (data.draw(st.integers(0, shards - 1)), shards)
        check_every_position(
            lambda: numbers(n, epochs, shuffle, seed, shard, drop_remainder=drop), most=70
        )

    @pytest.mark.slow(but="True-shard1")
    @pytest.mark.parametrize("shard", [None, (0, 3), (2, 3)])
    @pytest.mark.parametrize("shuffle", [False, True])
    def test_of_several_chunks_of_a_shuffle(self, shuffle: bool, shard: Any) -> None:
        check_every_position(lambda: numbers(5_000, 2, shuffle, 7, shard), step=1999, most=10_000)

    @properties
    @given(start=st.integers(0, 40), shards=st.integers(1, 4), n=st.integers(1, 40))
    def test_of_shuffles_without_a_table(self, start: int, shards: int, n: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shuffling, "LONGEST_TABLE", 0)
            patch.setattr(shuffling, "_CHUNK", 4)
            for index in range(shards):
                whole = list(shuffling.indices(n, 7, 1, (index, shards)))
                assert list(shuffling.indices(n, 7, 1, (index, shards), start)) == whole[start:]

    def test_far_away_without_going_there(self) -> None:
        """Nobody counts to 10**15 within a test."""
        source = numbers(10**12, None, shuffle=True, seed=7)
        resumed = source.after(source.position(10**15 + 5))
        assert next(iter(resumed.entries())).epoch == 1000
        entries = list(islice(source.entries_after(10**15), 7))
        assert list(islice(resumed.entries(), 2)) == entries[5:]

    def test_of_arrays(self) -> None:
        data = {"x": np.arange(12).reshape(6, 2), "y": np.arange(6)}
        check_every_position(lambda: arrays(data, 2, shuffle=True, seed=3))

    def test_length_of_the_rest(self) -> None:
        source = numbers(10, 3, seed=1)
        resumed = source.after(source.position(12))
        assert len(resumed) == len(list(resumed)) == 18  # type: ignore[arg-type]
        endless = numbers(10, seed=1)  # of the epoch, then
        resumed = endless.after(endless.position(13))
        assert len(resumed) == len(list(resumed)) == 7  # type: ignore[arg-type]

    def test_more_epochs_may_come(self) -> None:
        position = numbers(5, 1, shuffle=True, seed=1).position(5)
        longer = numbers(5, 3, shuffle=True, seed=1)
        assert list(longer.after(position)) == list(longer)[5:]

    @pytest.mark.parametrize(("n", "epochs"), [(5, 2), (0, 2), (0, None), (5, 0)])
    def test_beyond_the_end_there_is_none(self, n: int, epochs: int | None) -> None:
        source = numbers(n, epochs, seed=1)
        with pytest.raises(InvalidArgumentError, match="position: got 11 items taken; expected"):
            list(source.after(source.position(11)))

    def test_a_seed_that_was_drawn_comes_with_the_position(self) -> None:
        source = numbers(20, 2, shuffle=True)
        position = source.position(7)
        resumed = numbers(20, 2, shuffle=True).after(position)
        assert resumed.seed == source.seed
        assert list(resumed.entries()) == list(source.entries())[7:]
        assert resumed.after(position).seed == source.seed
        other = numbers(20, 2, shuffle=True, seed=source.seed ^ 1).position(7)
        assert "source.seed" in refused(resumed, other)

    def test_repr_has_the_place(self) -> None:
        source = numbers(5, 1, seed=1)
        assert repr(source.after(source.position(2))) == (
            "<aioqueue.inputs.numbers of 5, epochs=1, seed=1, after 2>"
        )


class Fibonacci(Source[int]):
    """A source of the user's, with the one method that it must have."""

    def __init__(self, count: int = 20, seed: int | None = 1) -> None:
        super().__init__("fibonacci", seed)
        self.count = count

    def entries(self) -> Iterator[Entry[int]]:
        one, other = 0, 1
        for number in range(self.count):
            yield Entry(one, number // 7, number % 7)
            one, other = other, one + other


class TestOtherSources:
    @pytest.mark.slow
    @given(st.recursive(st.text("'\"\\\\a:{é"), st.lists))
    def test_any_quotes_may_be_in_a_place(self, place: Any) -> None:
        assert through_json(position_of({"kind": "any"}, place))["place"] == place

    def test_somebodys_own(self) -> None:
        check_every_position(Fibonacci)

    def test_that_has_become_another_is_refused(self) -> None:
        *_, (_, place) = Fibonacci(20).placed()
        position = Fibonacci(20).position(place)
        with pytest.raises(InvalidArgumentError, match=r"position: got .* of item 20; .* fewer"):
            list(Fibonacci(19).after(position))

    def test_quarantined_items(self) -> None:
        records = [Quarantined(n, 0, n, "", "", 1, 5) for n in range(5)]
        check_every_position(lambda: QuarantinedItems(records, "quarantine", 5))
        source = QuarantinedItems(records, "quarantine", 5)
        *_, (_, place) = islice(source.placed(), 2)
        assert len(source.after(source.position(place))) == 3  # type: ignore[arg-type]

    @pytest.mark.slow
    @properties
    @given(
        sizes=st.lists(st.integers(0, 12), min_size=1, max_size=4),
        seed=st.integers(0, 2**32),
        stop=st.sampled_from(["first", "all"]),
        data=st.data(),
    )
    def test_mixtures(self, sizes: list[int], seed: int, stop: Any, data: st.DataObject) -> None:
        weight = st.floats(0.01, 10)
        weights = data.draw(st.lists(weight, min_size=len(sizes), max_size=len(sizes)))

        def make() -> Source[Any]:
            sources: list[Source[Any]] = [
                numbers(size, 2, shuffle=True, seed=number) for number, size in enumerate(sizes)
            ]
            last = mix([sources.pop(), Fibonacci(5)], seed=9)
            return mix([*sources, last], weights, seed, stop=stop)

        check_every_position(make)

    def test_length_of_the_rest_of_a_mixture(self) -> None:
        mixture = mix([numbers(5, 1), numbers(9, 2)], seed=3)
        for k, (_, place) in enumerate(mixture.placed(), 1):
            resumed: Any = mixture.after(mixture.position(place))
            assert len(resumed) == len(mixture) - k

    def test_mixtures_bring_all_their_seeds(self) -> None:
        def make() -> Any:
            return mix(
                [numbers(9, 1, shuffle=True), mix([numbers(9, 1, True), Fibonacci(5, None)])]
            )

        mixture = make()
        *_, (_, place) = islice(mixture.placed(), 8)
        resumed = make().after(mixture.position(place))
        assert resumed.seed == mixture.seed
        assert list(resumed.entries()) == list(mixture.entries())[8:]

    def test_an_end_of_a_source_that_has_grown_is_refused(self) -> None:
        def make(epochs: int) -> Source[int]:
            return mix([numbers(2, epochs, seed=1), numbers(50, 1, seed=1)], seed=1)

        *_, (_, place) = make(1).placed()
        assert list(make(1).after(make(1).position(place))) == []
        with pytest.raises(InvalidArgumentError, match=r"the end of sources\[0\]"):
            list(make(2).after(make(1).position(place)))

    def test_parts_that_begin_in_their_midst(self) -> None:
        part = numbers(9, 1, True, 4)

        def make() -> Source[Any]:
            return mix([part.after(part.position(3)), numbers(5, 1, seed=1)], seed=2)

        check_every_position(make)


def write_lines(folder: Path, sizes: list[int], suffix: str = "") -> None:
    packs: dict[str, Callable[[bytes], bytes]] = {
        "": bytes,
        ".gz": gzip.compress,
        ".bz2": bz2.compress,
        ".xz": lzma.compress,
    }
    for number, size in enumerate(sizes):
        text = "".join(f"{number}: line {n}\n" for n in range(size))
        (folder / f"{number}.txt{suffix}").write_bytes(packs[suffix](text.encode()))


LINES = [40, 0, 25, 1, 30]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files need not be large to have many blocks."""
    from aioqueue.readers import lines, tfrecord
    from aioqueue.readers import reader as base

    for module in (base, lines, tfrecord):
        monkeypatch.setattr(module, "_BLOCK", 100)


@pytest.mark.usefixtures("small_blocks")
class TestReaders:
    @pytest.mark.slow(but=".gz")
    @pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".xz"])
    def test_lines(self, suffix: str, tmp_path: Path) -> None:
        write_lines(tmp_path, LINES, suffix)
        pattern = f"{tmp_path}/*.txt*"
        check_every_position(lambda: read_lines(sorted(tmp_path.iterdir())).with_keys(), step=3)
        check_every_position(
            lambda: read_lines(files(pattern, 2, shuffle=True, seed=5)).with_keys(), step=7
        )

    def test_lines_of_shards(self, tmp_path: Path) -> None:
        write_lines(tmp_path, LINES)
        for index in range(2):
            check_every_position(
                lambda: read_lines(files(f"{tmp_path}/*", 2, True, 5, shard=(index, 2))),  # noqa: B023
                step=5,
            )

    @pytest.mark.slow
    def test_lines_with_headers_marks_and_long_ones(self, tmp_path: Path) -> None:
        text = "\ufeffhead\nhead\n" + "".join(f"{'ä' * n}\r\n" for n in range(0, 120, 3)) + "last"
        (tmp_path / "a").write_bytes(text.encode())
        for skip in (0, 1, 2, 30):
            check_every_position(
                lambda: read_lines(
                    [tmp_path / "a"] * 2,
                    encoding="utf-8-sig",
                    skip_header_lines=skip,  # noqa: B023
                ).with_keys()
            )
        check_every_position(lambda: read_lines(tmp_path / "a", encoding=None))

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "dtypes", ["int64", [int, str, float], {"c": float, "a": int}], ids=["one", "list", "dict"]
    )
    def test_csv(self, dtypes: Any, tmp_path: Path) -> None:
        middle = "2" if dtypes == "int64" else '"x,y"'
        rows = [f"{n},{middle},{n}\n" + "\n" * (n % 3 == 0) for n in range(40)]
        (tmp_path / "a").write_text("a,b,c\n" + "".join(rows))
        check_every_position(
            lambda: read_csv(
                [tmp_path / "a", tmp_path / "a"], dtypes, skip_header_lines=1
            ).with_keys()
        )

    def test_csv_continues_with_the_width_of_the_first_row(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("1,2\n" * 60 + "1,2,3\n")
        source = read_csv(tmp_path / "a", int)
        *_, (_, place) = islice(source.placed(), 59)
        run = iter(source.after(source.position(place)))
        assert next(run).tolist() == [1, 2]
        with pytest.raises(DataLossError, match=r"line 61: .*columns, and lines above have 2"):
            next(run)

    @pytest.mark.slow(every=5)
    @pytest.mark.parametrize("hop", [3, 7, 10, 250])
    @pytest.mark.parametrize("suffix", ["", ".gz"])
    def test_records(self, hop: int, suffix: str, tmp_path: Path) -> None:
        content = b"HHHH" + np.random.default_rng(1).bytes(20 * hop + 7 - hop) + b"FF"
        (tmp_path / f"a{suffix}").write_bytes(gzip.compress(content) if suffix else content)
        check_every_position(
            lambda: read_records(
                [tmp_path / f"a{suffix}"] * 2, 7, header_bytes=4, footer_bytes=2, hop_bytes=hop
            ).with_keys()
        )

    @needs_crc32c
    @pytest.mark.parametrize("suffix", ["", ".gz"])
    def test_tfrecords(self, suffix: str, tmp_path: Path) -> None:
        paths = [tmp_path / f"{name}{suffix}" for name in "abc"]
        for path, count in zip(paths, (30, 0, 11), strict=True):
            with TFRecordWriter(path) as writer:
                for number in range(count):
                    writer.write(bytes([number]) * (number * 5 % 70))
        check_every_position(lambda: read_tfrecords(paths).with_keys())

    def test_whole_files(self, tmp_path: Path) -> None:
        write_lines(tmp_path, LINES)
        pattern = f"{tmp_path}/*"
        check_every_position(lambda: read_whole_files(files(pattern, 3, True, 1)).with_keys())

    def test_whole_files_are_not_read_again(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"one")
        (tmp_path / "b").write_bytes(b"two")
        source = read_whole_files([tmp_path / "a", tmp_path / "b"])
        *_, (_, place) = islice(source.placed(), 1)
        resumed = source.after(source.position(place))
        (tmp_path / "a").write_bytes(b"longer")
        assert list(resumed) == [b"two"]

    def test_a_format_that_begins_at_the_start_only(self, tmp_path: Path) -> None:
        (tmp_path / "a").touch()

        def sevens(stream: Any, path: str, mark: Any) -> Iterator[Records[int]]:
            assert mark is None
            for first in range(0, 28, 7):
                yield Records(range(first, first + 7), list(range(first, first + 7)))

        check_every_position(
            lambda: Reader(
                "sevens",
                [tmp_path / "a"] * 2,
                sevens,
                ahead=8,
                compression=None,
                storage_options=None,
            ).with_keys()
        )

    @pytest.mark.slow
    def test_mixtures_of_readers(self, tmp_path: Path) -> None:
        write_lines(tmp_path, LINES)

        def make() -> Source[Any]:
            paths = mix([files(f"{tmp_path}/[01]*", 2, seed=1), files(f"{tmp_path}/2*", 1)], seed=3)
            return mix([read_lines(paths), numbers(50, 1), read_lines(tmp_path / "4.txt")], seed=2)

        whole = make()
        position = whole.position()
        check_every_position(lambda: make().after(position), step=3)

    def test_readers_bring_the_seeds_of_their_paths(self, tmp_path: Path) -> None:
        write_lines(tmp_path, LINES)

        def make() -> Source[Any]:
            return read_lines(files(f"{tmp_path}/*", 2, shuffle=True))

        source = make()
        *_, (_, place) = islice(source.placed(), 50)
        resumed = make().after(source.position(place))
        assert resumed.seed == source.seed
        assert list(resumed.entries()) == list(source.entries())[50:]

    def test_damage_is_reported_as_in_a_whole_run(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"good\n" * 100 + b"bad \xff\n")
        source = read_lines(tmp_path / "a")
        *_, (_, place) = islice(source.placed(), 90)
        read = []
        with pytest.raises(DataLossError, match="line 101 is not utf-8 text at 504"):
            for line in source.after(source.position(place)):
                read.append(line)  # noqa: PERF402  # what was read before the failure
        assert read == ["good"] * 10

    async def test_with_async_for(self, task_world: TaskWorld, tmp_path: Path) -> None:
        write_lines(tmp_path, LINES)
        source = read_lines(files(f"{tmp_path}/*", 2, seed=1))
        placed = [one async for one in source.aplaced()]
        assert placed == list(source.placed())
        resumed = source.after(source.position(placed[33].place))
        assert [one async for one in resumed.aplaced()] == placed[34:]
        assert [one async for one in resumed._aentries()] == [one.entry for one in placed[34:]]
        assert [one async for one in resumed] == [one.entry.value for one in placed[34:]]

    @pytest.mark.parametrize(
        "paths", [{"a"}, iter(["a"]), sync.FIFOQueue(3)], ids=["set", "iterator", "queue"]
    )
    def test_paths_that_come_once_have_no_position(self, paths: Any) -> None:
        reader = read_lines(paths)
        with pytest.raises(InvalidArgumentError, match=r"paths: got .*no position"):
            next(reader.placed())
        with pytest.raises(InvalidArgumentError, match=r"paths: got .*no position"):
            reader.position()
        with pytest.raises(InvalidArgumentError, match=r"paths: got .*no position"):
            reader.after(read_lines("a").position())


def refused(source: Source[Any], position: Any) -> str:
    with pytest.raises(InvalidArgumentError, match=r"^position: got ") as caught:
        list(islice(source.after(position).run(), 1000))
    return str(caught.value)


class TestRefused:
    @pytest.mark.parametrize("position", [None, 5, "x", [], {}, {"format": "other"}])
    def test_what_is_no_position(self, position: Any) -> None:
        assert "expected a dict that Source.position() has made" in refused(numbers(5), position)

    def test_other_versions(self) -> None:
        position = numbers(5).position()
        for version, whose, instead in (
            (1, "an earlier", "begin the run anew"),
            (2, "an earlier", "begin the run anew"),
            (4, "a newer", "install that one"),
        ):
            message = refused(numbers(5), {**position, "version": version})
            assert f"version {version}, which {whose} aioqueue has written; expected" in message
            assert "expected version 3: " in message
            assert instead in message
        for other in (None, True, "3"):
            message = refused(numbers(5), {**position, "version": other})
            assert f"version {other!r}; expected version 3" in message

    @pytest.mark.parametrize(
        ("other", "difference"),
        [
            (numbers(6, 1, True, 1), "source.length 5; expected 6"),
            (numbers(5, 1, True, 2), "source.seed 1; expected 2"),
            (numbers(5, 1, False, 1), "source.shuffle True; expected False"),
            (numbers(5, 1, True, 1, (0, 2)), "source.shard[1] 1; expected 2"),
            (
                numbers(5, 1, True, 1, drop_remainder=True),
                "source.drop_remainder False; expected True",
            ),
            (mix([numbers(5)], seed=1), "source.kind 'sequence'; expected 'mixture'"),
            (Fibonacci(), "source.kind 'sequence'; expected 'Fibonacci'"),
        ],
    )
    def test_that_of_another_source(self, other: Source[Any], difference: str) -> None:
        assert difference in refused(other, numbers(5, 1, True, 1).position(2))

    def test_that_of_another_mixture(self) -> None:
        position = mix([numbers(5, 1, seed=1), numbers(6, 1, seed=1)], [1, 2], seed=1).position()
        other = mix([numbers(5, 1, seed=1), numbers(6, 1, seed=1)], [1, 3], seed=1)
        assert "source.weights[1] 2.0; expected 3.0" in refused(other, position)
        other = mix([numbers(5, 1, seed=1), numbers(7, 1, seed=1)], [1, 2], seed=1)
        assert "source.sources[1].length 6; expected 7" in refused(other, position)
        other = mix([numbers(5, 1, seed=1)], seed=1)
        assert "source.weights [1.0, 2.0]; expected [1.0]" in refused(other, position)

    def test_that_of_other_files(self, tmp_path: Path) -> None:
        write_lines(tmp_path, LINES)
        pattern = f"{tmp_path}/*"
        position = read_lines(files(pattern, 1, seed=1)).position()
        assert list(read_lines(files(pattern, 1, seed=1)).after(position))
        (tmp_path / "0.txt").write_bytes(b"shorter")
        assert "source.files.sizes" in refused(read_lines(files(pattern, 1, seed=1)), position)
        (tmp_path / "0.txt").rename(tmp_path / "x")
        assert "source.paths.names" in refused(read_lines(files(pattern, 1, seed=1)), position)
        (tmp_path / "y").touch()
        assert "source.paths.length 5; expected 6" in refused(
            read_lines(files(pattern, 1, seed=1)), position
        )
        assert "source.kind 'read_lines'; expected 'read_whole_files'" in refused(
            read_whole_files(files(pattern, 1, seed=1)), position
        )

    def test_files_that_were_moved_together_are_the_same(self, tmp_path: Path) -> None:
        (tmp_path / "one").mkdir()
        write_lines(tmp_path / "one", LINES)
        position = read_lines(files(f"{tmp_path}/one/*", 1)).position()
        whole = list(read_lines(files(f"{tmp_path}/one/*", 1)))
        (tmp_path / "one").rename(tmp_path / "two")
        assert list(read_lines(files(f"{tmp_path}/two/*", 1)).after(position)) == whole

    def test_that_of_other_options(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"x" * 60)
        position = read_records(tmp_path / "a", 4).position()
        other = read_records(tmp_path / "a", 4, hop_bytes=2)
        assert "source.options.hop 4; expected 2" in refused(other, position)

    def test_whatever_was_changed(self, tmp_path: Path) -> None:
        """Every leaf of a position, turned into others: each is refused."""
        write_lines(tmp_path, LINES)

        def make() -> Source[Any]:
            return mix(
                [read_lines(files(f"{tmp_path}/*", 2, seed=1)), numbers(50, 1, seed=1)], seed=2
            )

        source = make()
        *_, (_, place) = islice(source.placed(), 60)
        position = through_json(source.position(place))
        assert list(make().after(position).entries()) == list(source.entries())[60:]
        changed = 0
        for field in leaves(position):
            for other in others(get(position, field)):
                damaged = copy.deepcopy(position)
                get(damaged, field[:-1])[field[-1]] = other
                refused(make(), damaged)
                changed += 1
            if isinstance(field[-1], str):
                damaged = copy.deepcopy(position)
                del get(damaged, field[:-1])[field[-1]]
                refused(make(), damaged)
        assert changed > 50
        refused(make(), {**position, "more": 1})
        refused(make(), {**position, "place": {1, 2}})

    def test_places_that_no_file_has(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"line\n" * 10)
        source = read_lines(tmp_path / "a")
        for place, what in (
            ((None, 0, None, 11), "1 records more than there are"),
            ((None, 1, (7, 2), 1), "offset 7"),
            ((None, 9, (500, 9), 1), "offset 499"),
        ):
            assert what in refused(source, source.position(place))
        (tmp_path / "a.gz").write_bytes(gzip.compress(b"line\n" * 10))
        source = read_lines(tmp_path / "a.gz")
        assert "offset 499" in refused(source, source.position((None, 9, (500, 9), 1)))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to all that is in a nest of dicts and lists."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, one in pairs:
            yield from leaves(one, (*path, key))
    if path:
        yield path


def get(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def others(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value, int(value), None]
    if isinstance(value, int | float):
        return [value + 1, -1, str(value), None]
    if isinstance(value, str):
        return [value[:-1], value + "x", None]
    return [5, "x", [], {}] if value not in ([], {}) else [5]
