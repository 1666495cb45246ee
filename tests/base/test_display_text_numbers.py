"""Numbers in words."""

from __future__ import annotations

import pytest

from aioqueue.base.display_text import clock, count, duration, share, shortened, size, workers


@pytest.mark.parametrize(
    ("part", "text"),
    [(0.0, "0 %"), (0.001, "<1 %"), (0.286, "29 %"), (0.999, "100 %"), (1.0, "100 %")],
)
def test_shares(part: float, text: str) -> None:
    assert share(part) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (0.4231, "0.42"),
        (4.23, "4.2"),
        (42.0, "42"),
        (42.34, "42.3"),
        (1830.4, "1,830"),
        (99.96, "100"),
    ],
)
def test_counts(number: float, text: str) -> None:
    assert count(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 µs"),
        (8e-7, "0.8 µs"),
        (1.2e-5, "12 µs"),
        (0.99999e-3, "1.0 ms"),
        (0.0123, "12 ms"),
        (0.9999, "1.0 s"),
        (3.42, "3.4 s"),
        (42.0, "42 s"),
        (300.0, "5 min"),
        (7200.0, "2.0 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_clocks() -> None:
    assert [clock(of) for of in (0, 42.4, 725, 3723)] == ["0:00", "0:42", "12:05", "1:02:03"]


def test_sizes() -> None:
    assert [size(of) for of in (0, 512, 1536, 64 * 2**20, 2**40)] == [
        "0 B",
        "512 B",
        "1.5 KiB",
        "64 MiB",
        "1.0 TiB",
    ]


def test_workers() -> None:
    assert [workers(1, "thread"), workers(4, "process"), workers(2, "ray")] == [
        "1 thread",
        "4 processes",
        "2 Ray workers",
    ]


def test_names_keep_their_ends() -> None:
    assert shortened("decode", 6) == "decode"
    for letters in (3, 8, 20):
        short = shortened("read_and_decode_images_of_the_left_camera", letters)
        assert len(short) == letters
        assert "…" in short
    assert shortened("camera_left", 8) == "camer…ft"
