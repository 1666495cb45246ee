"""Readers: what is in the files and nothing else, with keys; damage reported; files closed."""

from __future__ import annotations

import gc
import gzip
import importlib.util
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioqueue import DataLossError, InvalidArgumentError, sync
from aioqueue.readers.files import files
from aioqueue.readers.lines import read_lines
from aioqueue.readers.reader import Reader, Records, read_records, read_whole_files
from aioqueue.sources.kinds.sequences import items
from tests.conftest import Write
from tests.kit.worlds import TaskWorld, spin_until

properties = settings(derandomize=True, deadline=None, max_examples=60)
needs_fsspec = pytest.mark.skipif(
    importlib.util.find_spec("fsspec") is None, reason="fsspec is not installed"
)


class TestLines:
    @pytest.mark.parametrize(
        ("content", "lines"),
        [
            ("", []),
            ("\n", [""]),
            ("a", ["a"]),
            ("a\n", ["a"]),
            ("a\n\nb", ["a", "", "b"]),
            ("a\r\nb\r\r\nc\r", ["a", "b\r", "c"]),
            ("a\rb\n", ["a\rb"]),
            ("\r\n\r\n", ["", ""]),
            ("é\nü\n", ["é", "ü"]),
            ("a\x0bb\u2028c\x85d\n", ["a\x0bb\u2028c\x85d"]),  # what str.splitlines would split
        ],
    )
    def test_are_split_at_newlines(self, content: str, lines: list[str], write: Write) -> None:
        path = write(content)
        assert list(read_lines(path)) == lines
        assert list(read_lines(path, encoding=None)) == [line.encode() for line in lines]

    def test_longer_than_any_block(self, write: Write) -> None:
        lines = ["x" * 200_000, "", "y" * 70_000, "z"]
        assert list(read_lines(write("\n".join(lines)))) == lines

    def test_of_many_blocks(self, write: Write) -> None:
        lines = [f"line {number}" for number in range(30_000)]
        reader = read_lines(write("\n".join(lines) + "\n", "a.txt")).with_keys()
        assert [line for _, line in reader] == lines
        assert [key.rsplit(":")[-1] for key, _ in reader] == [str(n) for n in range(1, 30_001)]

    def test_keys_count_header_lines(self, write: Write) -> None:
        path = write("h1\nh2\na\nb\n")
        reader = read_lines(path, skip_header_lines=2)
        assert list(reader.with_keys()) == [(f"{path}:3", "a"), (f"{path}:4", "b")]

    def test_a_header_may_be_longer_than_a_block_or_the_file(self, write: Write) -> None:
        long, short = write("h\n" * 50_000 + "a"), write("h\n", "short")
        assert list(read_lines([short, long, short], skip_header_lines=50_000)) == ["a"]

    def test_in_other_encodings(self, write: Write) -> None:
        assert list(read_lines(write("é\nü".encode("latin-1")), encoding="latin-1")) == ["é", "ü"]
        path = write("\ufeffa\n\ufeffb".encode())
        assert list(read_lines(path, encoding="utf-8-sig")) == ["a", "\ufeffb"]
        assert list(read_lines(write(b"a\xff\n"), errors="replace")) == ["a\ufffd"]

    @pytest.mark.parametrize(
        ("text", "lines"), [("", []), ("\n", [""]), ("\r", [""]), ("a", ["a"])]
    )
    def test_behind_a_byte_order_mark(self, text: str, lines: list[str], write: Write) -> None:
        path = write(("\ufeff" + text).encode())
        assert list(read_lines(path, encoding="utf-8-sig")) == lines

    def test_that_the_encoding_joins_are_reported(self, write: Write) -> None:
        """The ~ of HZ at the end of a line: where a block ends there, it would be two lines."""
        assert list(read_lines(write(b"a\nb~\nc\n"), encoding="hz")) == ["a", "bc"]
        with pytest.raises(DataLossError, match="the line continues after its end"):
            list(read_lines(write(b"a\n" * 32_766 + b"b~\nc\n"), encoding="hz"))

    def test_that_are_no_text_are_data_loss(self, write: Write) -> None:
        good = ["good"] * 40_000
        path = write("\n".join(good).encode() + b"\nbad \xff\nmore\n")
        read = []
        with pytest.raises(DataLossError, match="line 40001 is not utf-8 text at 200004") as caught:
            for line in read_lines(path):
                read.append(line)  # noqa: PERF402  # what was read before the failure
        assert read == good
        assert (caught.value.path, caught.value.offset) == (path, 200_004)

    def test_first_line_that_is_no_text(self, write: Write) -> None:
        with pytest.raises(DataLossError, match="line 1 is not ascii text at 1"):
            list(read_lines(write("aé"), encoding="ascii"))

    @pytest.mark.parametrize("encoding", ["utf-16", "utf-32-le", "no such", "rot13", 5])
    def test_encodings_that_cannot_be_are_refused(self, encoding: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="encoding"):
            read_lines("a", encoding=encoding)

    @pytest.mark.parametrize("skip", [-1, 1.0, None])
    def test_wrong_header_sizes_are_refused(self, skip: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="skip_header_lines: got"):
            read_lines("a", skip_header_lines=skip)

    @needs_fsspec
    def test_of_an_url(self) -> None:
        import fsspec

        system = fsspec.filesystem("memory")
        system.pipe("/lines.txt.gz", gzip.compress(b"a\nb\n"))
        reader = read_lines("memory://lines.txt.gz").with_keys()
        assert list(reader) == [("memory://lines.txt.gz:1", "a"), ("memory://lines.txt.gz:2", "b")]
        system.rm("/lines.txt.gz")


def parsed_records(
    content: bytes, record: int, header: int, footer: int, hop: int
) -> list[bytes] | None:
    """The records, as the words of `read_records` have it; ``None`` for data loss."""
    body = content[header : max(header, len(content) - footer)]
    if len(content) < header + footer:
        return None
    found, at = [], 0
    while at + record <= len(body):
        found.append(body[at : at + record])
        at += hop
    covered = at - hop + record if found else 0  # `at` is where the next one would begin
    complete = len(body) <= max(covered, at)
    return found if complete else None


class TestRecords:
    def test_of_a_fixed_length(self, write: Write) -> None:
        path = write(b"aaabbbccc")
        assert list(read_records(path, 3)) == [b"aaa", b"bbb", b"ccc"]
        assert list(read_records(path, 3).with_keys())[1] == (f"{path}:1", b"bbb")

    def test_with_header_and_footer(self, write: Write) -> None:
        path = write(b"HHaabbccFFF")
        assert list(read_records(path, 2, header_bytes=2, footer_bytes=3)) == [b"aa", b"bb", b"cc"]

    def test_that_overlap_or_leave_gaps(self, write: Write) -> None:
        assert list(read_records(write(b"abcdef"), 4, hop_bytes=1)) == [b"abcd", b"bcde", b"cdef"]
        assert list(read_records(write(b"ab..cd..ef"), 2, hop_bytes=4)) == [b"ab", b"cd", b"ef"]
        assert list(read_records(write(b"ab..cd..ef."), 2, hop_bytes=4)) == [b"ab", b"cd", b"ef"]

    @properties
    @given(
        size=st.integers(0, 40),
        record=st.integers(1, 9),
        header=st.integers(0, 5),
        footer=st.integers(0, 5),
        hop=st.integers(1, 12),
    )
    def test_are_those_that_are_there(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        size: int,
        record: int,
        header: int,
        footer: int,
        hop: int,
    ) -> None:
        path = tmp_path_factory.getbasetemp() / "fixed"
        content = bytes(range(size))
        path.write_bytes(content)
        reader = read_records(path, record, header_bytes=header, footer_bytes=footer, hop_bytes=hop)
        expected = parsed_records(content, record, header, footer, hop)
        if expected is None:
            with pytest.raises(DataLossError, match="truncated"):
                list(reader)
        else:
            assert list(reader) == expected

    @pytest.mark.slow(but="1000]")
    @pytest.mark.parametrize("hop", [3, 1000, 1001, 70_000])
    def test_are_the_same_across_blocks(self, hop: int, write: Write) -> None:
        content = np.random.default_rng(1).bytes(300_000)
        record = 1000
        last = (len(content) - 7 - 5 - record) // hop * hop
        content = content[: 7 + last + record + 5]
        reader = read_records(write(content), record, header_bytes=7, footer_bytes=5, hop_bytes=hop)
        assert list(reader) == parsed_records(content, record, 7, 5, hop)

    def test_larger_than_a_block(self, write: Write) -> None:
        content = np.random.default_rng(1).bytes(600_000)
        assert list(read_records(write(content), 200_000)) == [
            content[:200_000],
            content[200_000:400_000],
            content[400_000:],
        ]

    def test_an_incomplete_one_is_data_loss_after_the_others(self, write: Write) -> None:
        path = write(b"HHaaabbbcc")
        run = iter(read_records(path, 3, header_bytes=2))
        assert [next(run), next(run)] == [b"aaa", b"bbb"]
        with pytest.raises(DataLossError, match=f"{path}: truncated record at 8") as caught:
            next(run)
        assert (caught.value.path, caught.value.offset) == (path, 8)

    def test_a_file_may_be_empty_but_not_too_short(self, write: Write) -> None:
        assert list(read_records(write(b""), 3)) == []
        assert list(read_records(write(b"HF"), 3, header_bytes=1, footer_bytes=1)) == []
        with pytest.raises(DataLossError, match="truncated header at 0"):
            list(read_records(write(b"H"), 3, header_bytes=2))
        with pytest.raises(DataLossError, match="truncated footer at 2"):
            list(read_records(write(b"HHF"), 3, header_bytes=2, footer_bytes=2))

    def test_an_absurd_length_takes_no_memory(self, write: Write) -> None:
        with pytest.raises(DataLossError, match="truncated record at 0"):
            list(read_records(write(b"abc"), 2**50))

    @pytest.mark.parametrize(
        "arguments",
        [
            {"record_bytes": 0},
            {"record_bytes": -1},
            {"record_bytes": 1.5},
            {"header_bytes": -1},
            {"footer_bytes": None},
            {"hop_bytes": 0},
        ],
    )
    def test_wrong_sizes_are_named(self, arguments: dict[str, Any]) -> None:
        name = next(iter(arguments))
        with pytest.raises(InvalidArgumentError, match=f"{name}: got"):
            read_records("a", **{"record_bytes": 3, **arguments})


class TestWholeFiles:
    def test_are_one_record_each(self, write: Write) -> None:
        paths = [write(b"a\x00b", "one"), write(b"", "two")]
        assert list(read_whole_files(paths)) == [b"a\x00b", b""]
        assert list(read_whole_files(paths).with_keys())[1] == (paths[1], b"")


class TestPaths:
    def test_can_be_one_or_many_or_a_source(self, write: Write, tmp_path: Path) -> None:
        paths = [write("a\n", "1.txt"), write("b\n", "2.txt")]
        assert list(read_lines(paths[0])) == ["a"]
        assert list(read_lines(tmp_path / "1.txt")) == ["a"]
        assert list(read_lines(tuple(paths))) == ["a", "b"]
        assert list(read_lines(path for path in paths)) == ["a", "b"]
        assert list(read_lines(np.array(paths))) == ["a", "b"]
        assert list(read_lines(files(f"{tmp_path}/*.txt", 2))) == ["a", "b", "a", "b"]

    def test_can_come_from_a_queue(self, write: Write) -> None:
        queue = sync.FIFOQueue(5)
        queue.enqueue_many([write("a", "1"), write("b", "2")])
        queue.close()
        assert list(read_lines(queue)) == ["a", "b"]

    def test_are_opened_one_after_the_other_when_needed(self, write: Write) -> None:
        run = iter(read_lines([write("a\n"), "/no/such/file"]))
        assert next(run) == "a"
        with pytest.raises(FileNotFoundError):
            next(run)

    @pytest.mark.parametrize("paths", [5, None])
    def test_that_are_none_are_refused(self, paths: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="paths: got"):
            read_lines(paths)
        with pytest.raises(InvalidArgumentError, match="path: got"):
            list(read_lines([paths]))

    def test_of_an_async_queue_need_its_thread_face(self) -> None:
        with pytest.raises(InvalidArgumentError, match=r"queue\.sync"):
            read_lines(sync.FIFOQueue(5).aio)  # type: ignore[call-overload]


class TestEntries:
    def test_give_every_record_an_index_of_its_own(self, write: Write) -> None:
        paths = [write("a\nb\n", "1"), write("c\n", "2")]
        reader = read_lines(items(paths, 2, shuffle=True, seed=5))
        entries = list(reader.entries())
        assert reader.seed == 5
        assert len({(entry.epoch, entry.index) for entry in entries}) == 6
        assert {(entry.value, entry.index) for entry in entries} == {
            ("a", 0),
            ("b", 1),
            ("c", 2**40),
        }

    def test_have_keys_too(self, write: Write) -> None:
        path = write("a\n")
        (entry,) = read_lines(path).with_keys().entries()
        assert entry == ((f"{path}:1", "a"), 0, 0)

    def test_repr(self, write: Write) -> None:
        source = items(["a"], 1, seed=3)
        assert repr(read_lines(source)) == f"<aioqueue.inputs.read_lines from {source!r}, seed=3>"
        assert repr(read_records("a.bin", 5)).startswith(
            "<aioqueue.inputs.read_records from 'a.bin', seed="
        )
        assert repr(read_lines(["a", "b"])).startswith(
            "<aioqueue.inputs.read_lines from 2 paths, seed="
        )


class Endless:
    """A format without end, that knows how many files are open."""

    def __init__(self) -> None:
        self.streams: list[IO[bytes]] = []
        self.given = 0

    def __call__(self, stream: IO[bytes], path: str, mark: Any) -> Iterator[Records[int]]:
        self.streams.append(stream)
        while True:
            self.given += 1
            yield Records((self.given,), [self.given])

    @property
    def closed(self) -> bool:
        return bool(self.streams) and all(stream.closed for stream in self.streams)

    def reader(self, paths: Any, ahead: int = 4) -> Reader[int]:
        return Reader("endless", paths, self, ahead=ahead, compression=None, storage_options=None)


def reading_threads() -> list[str]:
    return [
        thread.name for thread in threading.enumerate() if thread.name.startswith("aioqueue-read-")
    ]


class TestReadingAhead:
    @pytest.mark.slow(but="uvloop")
    async def test_gives_the_same_as_reading(self, task_world: TaskWorld, write: Write) -> None:
        path = write("".join(f"{n}\n" for n in range(20_000)))
        reader = read_lines(path)
        assert [line async for line in reader] == list(reader)
        assert [entry async for entry in reader._aentries()] == list(reader.entries())
        assert [pair async for pair in reader.with_keys()] == list(reader.with_keys())
        await task_world.until(lambda: not reading_threads())

    async def test_one_item_of_an_iterator_without_a_reference(
        self, task_world: TaskWorld, write: Write
    ) -> None:
        path = write("first\nsecond\n")
        assert await anext(aiter(read_lines(path))) == "first"
        await task_world.until(lambda: not reading_threads())

    async def test_is_tried_again_where_no_thread_could_be_started(
        self, task_world: TaskWorld, write: Write, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        run = aiter(read_lines(write("first\nsecond\n")))
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            for _ in range(2):
                with pytest.raises(RuntimeError, match="can't start new thread"):
                    await anext(run)
        assert [line async for line in run] == ["first", "second"]

    async def test_happens_on_one_thread_that_is_bounded(
        self, task_world: TaskWorld, write: Write
    ) -> None:
        endless = Endless()
        run = aiter(endless.reader(write("")))
        assert not reading_threads()  # nothing happens before somebody asks
        assert await anext(run) == 1
        await task_world.until(lambda: endless.given >= 5)
        assert reading_threads() == ["aioqueue-read-endless"]
        for number in range(2, 100):
            assert await anext(run) == number
            assert endless.given <= number + 2 * 4 + 1
        del run
        await task_world.until(lambda: not reading_threads())

    async def test_a_loop_left_early_closes_everything(
        self, task_world: TaskWorld, write: Write
    ) -> None:
        endless = Endless()
        async for number in endless.reader(write("")):
            if number == 3:
                break
        gc.collect()  # for interpreters that count no references
        await task_world.until(lambda: endless.closed and not reading_threads())

    async def test_so_does_aclose(self, task_world: TaskWorld, write: Write) -> None:
        endless = Endless()
        async with aclosing(endless.reader(write("")).__aiter__()) as run:  # type: ignore[type-var]
            assert await anext(run) == 1
        await task_world.until(lambda: endless.closed and not reading_threads())
        with pytest.raises(StopAsyncIteration):
            await anext(run)

    async def test_so_does_an_exception_in_the_loop(
        self, task_world: TaskWorld, write: Write
    ) -> None:
        endless = Endless()
        with pytest.raises(KeyError) as caught:
            async for _ in endless.reader(write("")):
                raise KeyError
        assert caught.value  # which somebody may keep
        await task_world.until(lambda: endless.closed and not reading_threads())

    async def test_so_does_cancellation(self, task_world: TaskWorld, write: Write) -> None:
        queue = sync.FIFOQueue(5)
        endless = Endless()
        queue.enqueue(write(""))
        taken = []

        async def loop() -> None:
            async for number in endless.reader(queue):
                taken.append(number)
                if number == 50:
                    await forever.dequeue()

        forever = task_world.fifo(1)
        operation = task_world.spawn(loop)
        await task_world.until(lambda: forever.statistics().waiting_dequeues)
        operation.cancel()
        assert await operation.was_cancelled()
        await task_world.until(lambda: endless.closed and not reading_threads())
        assert taken == list(range(1, 51))

    async def test_a_cancelled_wait_for_an_item_closes_it_too(
        self, task_world: TaskWorld, write: Write
    ) -> None:
        """Also while somebody keeps the exception, and what hangs on that."""
        paths = sync.FIFOQueue(5)
        endless = Endless()
        kept: list[BaseException] = []

        async def loop() -> None:
            try:
                async for _ in endless.reader(paths):
                    pass
            except BaseException as error:
                kept.append(error)
                raise

        operation = task_world.spawn(loop)
        await task_world.until(lambda: paths.statistics().waiting_dequeues)
        operation.cancel()
        assert await operation.was_cancelled()
        paths.enqueue(write(""))  # the thread was in the call that waits for a path
        await task_world.until(lambda: endless.closed and not reading_threads())
        assert kept

    async def test_a_cancelled_wait_loses_nothing(
        self, task_world: TaskWorld, write: Write
    ) -> None:
        paths = sync.FIFOQueue(5)
        run = aiter(read_lines(paths))

        async def one() -> Any:
            return await anext(run)

        operation = task_world.spawn(one)
        await task_world.until(lambda: paths.statistics().waiting_dequeues)
        operation.cancel()
        assert await operation.was_cancelled()
        paths.enqueue(write("a\nb\n"))
        assert await anext(run) == "a"
        assert await anext(run) == "b"
        paths.close()
        with pytest.raises(StopAsyncIteration):
            await anext(run)

    async def test_items_are_there_before_the_next_one_is(
        self, task_world: TaskWorld, write: Write
    ) -> None:
        paths = sync.FIFOQueue(5)
        run = aiter(read_lines(paths))
        paths.enqueue(write("a\nb\n"))
        assert [await anext(run), await anext(run)] == ["a", "b"]
        paths.close()

    async def test_several_tasks_share_a_run(self, task_world: TaskWorld, write: Write) -> None:
        def eights(stream: IO[bytes], path: str, mark: Any) -> Iterator[Records[int]]:
            for first in range(0, 800, 8):
                numbers = range(first, first + 8)
                yield Records(numbers, list(numbers))

        reader = Reader(
            "eights", write(""), eights, ahead=3, compression=None, storage_options=None
        )
        run = aiter(reader)
        taken: list[int] = []

        async def loop() -> None:
            async for number in run:
                taken.append(number)
                await task_world.tick()

        operations = [task_world.spawn(loop) for _ in range(3)]
        for operation in operations:
            await operation.result()
        assert sorted(taken) == list(range(800))

    async def test_failures_come_after_what_was_read(
        self, task_world: TaskWorld, write: Write
    ) -> None:
        path = write(b"aaabbbcc")
        run = aiter(read_records([path, path], 3))
        assert [await anext(run), await anext(run)] == [b"aaa", b"bbb"]
        with pytest.raises(DataLossError, match="truncated record at 6"):
            await anext(run)
        with pytest.raises(StopAsyncIteration):
            await anext(run)
        await task_world.until(lambda: not reading_threads())

    async def test_a_missing_file_is_an_ordinary_error(
        self, task_world: TaskWorld, tmp_path: Path
    ) -> None:
        with pytest.raises(FileNotFoundError) as caught:
            async for _ in read_lines(tmp_path / "none"):
                pytest.fail("there is nothing to read")
        assert caught.value.filename == str(tmp_path / "none")

    def test_a_plain_loop_left_early_closes_its_file(self, write: Write) -> None:
        endless = Endless()
        for number in endless.reader(write("")):
            if number == 3:
                break
        gc.collect()
        spin_until(lambda: endless.closed)
        assert not reading_threads()


ENCODINGS = [
    *("utf-8", "utf-8-sig", "ascii", "latin-1", "cp1252", "utf-7", "shift_jis", "cp932", "euc_jp"),
    *("iso2022_jp", "iso2022_jp_2", "iso2022_kr", "hz", "gb2312", "gb18030", "big5", "euc_kr"),
    *("utf-16", "utf-16-le", "utf-32", "cp037", "koi8-r", "idna", "punycode", "raw_unicode_escape"),
]


class TestEncodings:
    """A file of many blocks is the text that its bytes are as a whole, or refused."""

    @pytest.mark.parametrize("encoding", ENCODINGS)
    def test_any_is_read_as_a_whole_or_refused(self, encoding: str, tmp_path: Path) -> None:
        texts = ["plain", "~a + b-", "日本語", "한국어", "中文", "é", "русский"]
        known = [text for text in texts if self._can(text, encoding)]
        path = tmp_path / "text.txt"
        try:
            read_lines(path, encoding=encoding)
        except InvalidArgumentError as error:
            assert "encoding: got" in str(error)  # that it may be refused
            return
        text = "\n".join(f"{known[at % len(known)]} {at}" for at in range(7_000))
        path.write_bytes(text.encode(encoding))
        self._check(path, encoding)

    def test_a_state_continues_from_line_to_line(self, tmp_path: Path) -> None:
        # Who writes so is allowed to: the escape is not repeated, and ASCII does not come back.
        path = tmp_path / "text.txt"
        path.write_bytes(b"a\x1b$B" + b"F|K\\\n" * 14_000 + b"\x1b(Bend")
        self._check(path, "iso2022_jp")
        path.write_bytes(b"\x1b$)C" + b"\x0eGQ19\x0f 1\n" * 8_000)
        self._check(path, "iso2022_kr")

    def test_damage_in_a_later_block_is_where_it_is(self, tmp_path: Path) -> None:
        path = tmp_path / "text.txt"
        path.write_bytes(b"\x1b$B" + b"F|K\\\n" * 30_000 + b"F|K\\\n\xff\xff\n")
        found = []
        with pytest.raises(DataLossError, match="line 30002 is not iso2022_jp text") as caught:
            for line in read_lines(path, encoding="iso2022_jp"):
                found.append(line)  # noqa: PERF402  # what was read before the failure
        assert found == ["日本"] * 30_001
        assert caught.value.offset == 3 + 5 * 30_001

    def _can(self, text: str, encoding: str) -> bool:
        try:
            return text.encode(encoding).decode(encoding) == text
        except UnicodeError:
            return False

    def _check(self, path: Path, encoding: str) -> None:
        reader = read_lines(files(path, 1), encoding=encoding)
        whole = path.read_bytes().decode(encoding).removesuffix("\n").split("\n")
        assert list(reader) == whole
        places = [placed.place for placed in reader.placed()]
        for at in (0, len(places) // 2, len(places) - 2):
            again = read_lines(files(path, 1), encoding=encoding)
            position = json.loads(json.dumps(reader.position(places[at])))
            assert list(again.after(position)) == whole[at + 1 :]


class TestSeeds:
    def test_readers_pass_their_seed_to_the_files(self, tmp_path: Path) -> None:
        paths = [tmp_path / f"{number}.txt" for number in range(9)]
        for path in paths:
            path.write_text(f"{path.name}\n")
        make: list[Callable[..., Reader[Any]]] = [read_lines, read_whole_files]
        for read in make:
            assert read(paths, seed=5).seed == read(paths[0], seed=5).seed == 5
            assert read(files(paths[0], seed=3)).seed == 3
            runs = [list(read(files(tmp_path / "*", shuffle=True), seed=5)) for _ in range(3)]
            assert runs[0] == runs[1] == runs[2]
            ranks = [
                read(files(tmp_path / "*", shuffle=True), seed=5).shard(r, 3) for r in range(3)
            ]
            assert sorted(item for rank in ranks for item in rank) == sorted(runs[0])
            own = read(files(tmp_path / "*", shuffle=True, seed=1), seed=5)
            assert list(own) == list(read(files(tmp_path / "*", shuffle=True, seed=1)))
            with pytest.raises(InvalidArgumentError, match="seed: got -1"):
                read(paths, seed=-1)

    def test_a_position_knows_both(self, tmp_path: Path) -> None:
        path = tmp_path / "a.txt"
        path.write_text("x\n" * 10)
        reader = read_lines(files(path, 1, seed=1), seed=5)
        place = next(reader.placed()).place
        assert len(list(reader.after(reader.position(place)))) == 9
        other = read_lines(files(path, 1, seed=1), seed=6)
        with pytest.raises(InvalidArgumentError, match="seed"):
            other.after(reader.position(place))
        drawn = read_lines(files(path, 1))
        assert drawn.after(read_lines(files(path, 1), seed=5).position(place)).seed == 5
