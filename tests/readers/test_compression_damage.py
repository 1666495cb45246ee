"""Compressed files: one that could be read to its end was whole, whatever has happened to it.

Every bit of small files is turned, and they are cut off at every length. Either that is an error,
or the data is right all the same; and for the latter, the bits that say nothing are listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aioqueue import DataLossError
from aioqueue.readers.files import open_for_reading
from aioqueue.readers.reader import read_whole_files
from tests.readers.test_files import COMPRESSORS

KINDS = pytest.mark.parametrize("kind", COMPRESSORS)
COUNTS = pytest.mark.parametrize("count", [1, 2, 3])
DATA = [b"some text, " * 9, b"another text", b""]

# Of each kind, the places in a stream whose bits may be turned without a loss, by the bits there:
# counted from its start, or from its end where that is less than 0.
ALL = 0xFF
END_OF_DEFLATE = 0b1111_1110  # what is left of the last byte that was begun
SILENT_DAMAGE: dict[str, dict[int, int]] = {
    "gzip": {
        3: 0b0000_0001,  # "probably text"
        **dict.fromkeys(range(4, 8), ALL),  # when the file was changed
        8: ALL,  # how hard the compressor tried
        9: ALL,  # on which system
        -9: END_OF_DEFLATE,
    },
    "zlib": {-5: END_OF_DEFLATE},
    "bz2": {
        3: 0b0000_1111,  # the size of blocks: how much memory the reader needs at most
        # The codes of the Huffman trees: those of symbols that do not occur, and of trees that
        # are not used, are read and not looked at again.
        **dict.fromkeys(range(14, 40), ALL),
        -1: 0b0111_1111,  # what is left of the last byte that was begun
    },
    "xz": {},
    "zstd": {4: 0b0011_0000},  # unused; whether all fits into one window
}


@pytest.fixture
def read(tmp_path: Path) -> Callable[[bytes, str], bytes]:
    """Reads a file with some content."""
    path = tmp_path / "file"

    def read(content: bytes, kind: str) -> bytes:
        path.write_bytes(content)
        try:
            (data,) = read_whole_files(path, compression=kind)
        except DataLossError as error:
            assert error.path == str(path)
            assert error.fault.startswith(f"damaged {kind} data")
            assert error.offset >= 0  # damaged data may say more than there was
            raise
        return data

    return read


Read = Callable[[bytes, str], bytes]


def streams(kind: str, count: int) -> list[bytes]:
    return [COMPRESSORS[kind][1](data) for data in DATA[:count]]


def silent_bits(kind: str, parts: list[bytes]) -> Iterator[tuple[int, int]]:
    """The places in a file whose bits say nothing, and the bits."""
    start = 0
    for part in parts:
        for place, bits in SILENT_DAMAGE[kind].items():
            if place < len(part):
                yield start + (place if place >= 0 else len(part) + place), bits
        start += len(part)


@pytest.mark.slow(but=("1-zlib", "1-gzip"))
@KINDS
@COUNTS
def test_every_bit_counts(kind: str, count: int, read: Read) -> None:
    parts = streams(kind, count)
    whole, right = b"".join(parts), b"".join(DATA[:count])
    assert read(whole, kind) == right
    silent: dict[int, int] = {}
    for place, bits in silent_bits(kind, parts):
        silent[place] = silent.get(place, 0) | bits
    for place in range(len(whole)):
        # Two of nine; one bit of each byte in turn, so that each of them is turned somewhere.
        for turned in (1 << place % 8, 0xFF):
            damaged = bytearray(whole)
            damaged[place] ^= turned
            try:
                data = read(bytes(damaged), kind)
            except DataLossError:
                continue
            assert data == right, (place, turned)
            assert turned | silent.get(place, 0) == silent.get(place, 0), (place, turned)


@KINDS
@COUNTS
def test_cut_off_anywhere(kind: str, count: int, read: Read) -> None:
    """But between streams, where what is left is a file as whole as any."""
    parts = streams(kind, count)
    whole = b"".join(parts)
    ends = {sum(map(len, parts[:n])): b"".join(DATA[:n]) for n in range(1, count)}
    for size in range(len(whole)):
        if size in ends:
            assert read(whole[:size], kind) == ends[size]
        else:
            with pytest.raises(DataLossError):
                read(whole[:size], kind)


@KINDS
@COUNTS
@pytest.mark.parametrize(
    "garbage",
    [b"x", b"no stream at all, but some other thing", b"\xff" * 70_000, b"\0x", b"\0" * 70_000],
    ids=["short", "text", "long", "behind a zero", "zeros"],
)
def test_garbage_behind_the_last_stream(kind: str, count: int, garbage: bytes, read: Read) -> None:
    whole = b"".join(streams(kind, count)) + garbage
    if not garbage.strip(b"\0") and kind in ("gzip", "xz"):
        assert read(whole, kind) == b"".join(DATA[:count])  # padding
    else:
        with pytest.raises(DataLossError):
            read(whole, kind)


@pytest.mark.parametrize("size", [0, 1, 3, 4, 8, 65_533, 65_536, 2**17 + 1, 2**17 + 4])
@pytest.mark.parametrize(("kind", "unit"), [("gzip", 1), ("xz", 4)])
def test_padding(kind: str, unit: int, size: int, read: Read) -> None:
    """Zeros may stand between streams and behind them, in portions that the format allows."""
    one, two = streams(kind, 2)
    padding = bytes(size)
    for whole, right in (
        (one + padding, DATA[0]),
        (one + padding + two, DATA[0] + DATA[1]),
        (one + padding + two + padding, DATA[0] + DATA[1]),
    ):
        if size % unit:
            with pytest.raises(DataLossError):
                read(whole, kind)
        else:
            assert read(whole, kind) == right
    if size:
        with pytest.raises(DataLossError):
            read(padding + one, kind)


@KINDS
def test_many_streams_in_small_portions(kind: str, tmp_path: Path) -> None:
    """However a file is read; and its end stays its end."""
    path = tmp_path / "file"
    path.write_bytes(b"".join(streams(kind, 3) * 500))
    right = b"".join(DATA) * 500
    reads: list[Callable[[Any], bytes]] = [
        lambda stream: stream.read(7),
        lambda stream: stream.read1(100_000),
        lambda stream: stream.read(),
    ]
    for read in reads:
        with open_for_reading(str(path), kind) as stream:
            assert b"".join(iter(lambda: read(stream), b"")) == right  # noqa: B023
            assert stream.tell() == len(right)
            assert stream.read() == read(stream) == b""
