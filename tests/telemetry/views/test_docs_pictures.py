"""The pictures of runs in the documentation are those that the code draws now."""

from __future__ import annotations

import pytest

pytest.importorskip("matplotlib", reason="needs the extra `pictures`")
pytest.importorskip("rich", reason="needs the extra `rich`")

from tests.telemetry.views.docs_pictures import IMAGES, pictures, words


@pytest.mark.slow
def test_they_are_as_they_would_be_drawn_now() -> None:
    """By what is written in them: other versions of the libraries draw other lines."""
    names = []
    for name, drawn in pictures():
        kept = (IMAGES / name).read_text(encoding="utf-8")
        assert words(kept) == words(drawn), "python -m tests.telemetry.views.docs_pictures"
        names.append(name)
    assert names == [
        "run-light.svg",
        "run-dark.svg",
        "table-ahead.svg",
        "table-decode.svg",
        "table-read.svg",
    ]


@pytest.mark.slow
def test_they_need_nothing_from_elsewhere() -> None:
    for name, drawn in pictures():
        assert "@import" not in drawn, name
        assert "cdn" not in drawn, name
        assert len(drawn) < 300_000, name
