"""Pictures of a run, by Matplotlib."""

from __future__ import annotations

import io

import pytest

from aioqueue.telemetry.metrics.intervals import recorded
from aioqueue.telemetry.verdict.bottleneck import verdict_of
from tests.telemetry.fluid_model import Stage, Watching, history, usual

pytest.importorskip("matplotlib", reason="needs the extra `pictures`")
image = pytest.importorskip("PIL.Image", reason="needs Pillow")

from aioqueue.telemetry.views.matplotlib_picture import picture  # noqa: E402

RUNS = {
    "usual": (usual(30), False),
    "no bound": (Watching(history([Stage("a" * 200 + "解码", capacity=None)], seconds=5)), True),
    "of a second": (Watching(history([Stage("decode")], seconds=1)), False),
    "that begins": (Watching(history([Stage("decode")], seconds=0)), True),
}


@pytest.mark.slow(but="no bound")
@pytest.mark.parametrize("run", RUNS)
def test_a_png_is_1200_pixels_wide(run: str) -> None:
    watching, dark = RUNS[run]
    snapshots = recorded(watching.history, watching.now)
    verdict = watching.verdict(None)
    drawn = picture(snapshots, verdict, verdict_of, kind="png", dark=dark)
    made = image.open(io.BytesIO(drawn))
    assert made.format == "PNG"
    assert made.size[0] == 1200
    corner = made.convert("L").getpixel((1, 1))
    assert corner < 64 if dark else corner > 192


@pytest.mark.slow
def test_a_drawing_has_its_words_as_text_and_is_always_the_same() -> None:
    watching = usual(30)
    snapshots = recorded(watching.history, watching.now)
    drawn = picture(snapshots, watching.verdict(None), verdict_of, kind="svg", dark=False)
    assert drawn == picture(snapshots, watching.verdict(None), verdict_of, kind="svg", dark=False)
    for words in ("read-queue", "data is ahead", "4 threads", "Throughput", "waits for room"):
        assert words in drawn.decode()


@pytest.mark.slow
def test_no_window_and_no_figure_is_left_behind() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    before = pyplot.get_fignums()
    watching = usual(5)
    snapshots = recorded(watching.history, watching.now)
    picture(snapshots, watching.verdict(None), verdict_of, kind="pdf", dark=False)
    assert pyplot.get_fignums() == before
