"""The examples on real data, run as a user runs them, in small sizes."""

from __future__ import annotations

import importlib.util
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.kit.children import complaints
from tests.project.test_examples import ROOT, run

IMAGES, TEXT, SERVICE = (f"examples/{name}.py" for name in ("images", "text", "service"))
SMALL = ["--crops", "96", "--images", "128", "--batch-size", "32", "--shuffle", "64"]
VERDICTS = ("data is ahead: ", "the training step waits ")
"""What a verdict begins with."""

needs_images = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("PIL", "sklearn", "tqdm")),
    reason="the extra `examples` (pillow, scikit-learn, tqdm) is not installed",
)


@pytest.fixture(scope="module")
def crops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that the first run writes its files to."""
    return tmp_path_factory.mktemp("images")


@needs_images
class TestImages:
    @pytest.mark.slow
    def test_batches_do_not_depend_on_the_number_of_workers(self, crops: Path) -> None:
        checksums = set()
        for workers in ("1", "3"):
            done = run(IMAGES, "--root", str(crops), *SMALL, "--workers", workers)
            assert done.returncode == 0, done.stderr
            assert done.stderr == ""
            assert "96 crops with 8 labels" in done.stdout
            assert re.search(r"^bare threads +[\d,]+ images/s", done.stdout, re.MULTILINE)
            assert re.search(
                r"^through aioqueue +[\d,]+ images/s \(\d+% of", done.stdout, re.MULTILINE
            )
            found = re.search(r"all batches +checksum ([0-9a-f]{8}) for seed 7", done.stdout)
            assert found is not None
            checksums.add(found[1])
        assert len(checksums) == 1

    @pytest.mark.slow
    def test_the_contact_sheet_shows_the_batch(self, crops: Path, tmp_path: Path) -> None:
        from PIL import Image

        sheet = tmp_path / "sheet.png"
        done = run(IMAGES, "--root", str(crops), *SMALL, "--sheet", str(sheet))
        assert done.returncode == 0, done.stderr
        assert str(sheet) in done.stdout
        with Image.open(sheet) as image:
            assert image.size == (8 * (112 + 12) + 12, 4 * (112 + 18 + 12) + 12)
            colours = np.unique(np.asarray(image).reshape(-1, 3), axis=0)
        assert len(colours) > 5000  # photographs, not a blank

    @pytest.mark.slow
    def test_an_unreadable_file_is_named(self, crops: Path, tmp_path: Path) -> None:
        done = run(IMAGES, "--root", str(tmp_path), *SMALL)
        assert done.returncode == 0, done.stderr
        broken = next((tmp_path / "crops-96").glob("*/*.jpg"))
        broken.write_bytes(b"this is no image")
        done = run(IMAGES, "--root", str(tmp_path), *SMALL, "--seed", "1")
        assert done.returncode == 1
        assert broken.name in done.stderr
        assert "stopped by a failure after" in done.stdout


class TestText:
    @pytest.mark.slow
    def test_bucketing_saves_most_of_the_padding_and_loses_nothing(self) -> None:
        done = run(TEXT)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        shares = [float(share) for share in re.findall(r"(\d+\.\d)%$", done.stdout, re.MULTILINE)]
        assert len(shares) == 3
        assert shares[0] > 50
        assert max(shares[1:]) < 25
        assert "every sentence came exactly once, each way" in done.stdout
        last = done.stdout.splitlines()[-1]
        assert last.removeprefix("bucketed, up to 2,048 tokens: ").startswith(VERDICTS)

    @pytest.mark.slow
    def test_no_batch_is_larger_than_its_budget(self) -> None:
        done = run(TEXT, "--tokens", "1024", "--batch-size", "8")
        assert done.returncode == 0, done.stderr
        found = re.search(r"up to 1,024 tokens +\d+ +([\d,]+)", done.stdout)
        assert found is not None
        assert int(found[1].replace(",", "")) <= 1024

    @pytest.mark.slow
    def test_a_budget_that_is_too_small_is_explained(self) -> None:
        done = run(TEXT, "--tokens", "20")
        assert done.returncode == 1
        assert "expected at most 20, for which a batch is large enough" in done.stderr


class TestService:
    @pytest.mark.slow
    def test_every_answer_is_right_and_comes_in_batches(self) -> None:
        done = run(SERVICE, "--seconds", "0.5", "--clients", "24")
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert re.search(r"^latency +[\d.]+ ms \(half\)", done.stdout, re.MULTILINE)
        assert re.search(r"^  batches of \d+ to \d+ +\d", done.stdout, re.MULTILINE)
        assert "answers          all right" in done.stdout

    @pytest.mark.slow
    def test_batches_are_no_larger_than_allowed(self) -> None:
        done = run(SERVICE, "--seconds", "0.3", "--clients", "16", "--max-batch", "1")
        assert done.returncode == 0, done.stderr
        assert "for 1.0 requests on average" in done.stdout

    @pytest.mark.slow
    @pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
    def test_ctrl_c_ends_it_with_a_summary(self) -> None:
        command = [sys.executable, "-W", "error", "-X", "dev", SERVICE, "--seconds", "60"]
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("serving on 127.0.0.1:")
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=20)
        assert process.returncode == 130
        assert rest.startswith("interrupted\n")
        assert complaints(errors) == ""


@pytest.mark.slow
def test_a_killed_training_ends_as_an_undisturbed_one() -> None:
    done = run("examples/resume.py", "--kills", "2", "--seed", "1")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines[:3]] == ["run 1", "run 2", "run 3"]
    assert lines[2].endswith("to the end, step 375")
    assert lines[-2].startswith(VERDICTS)
    assert lines[-1] == "2 kills, 375 batches: every one as in a run that was not disturbed"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
@pytest.mark.timeout(300)  # fourteen processes, one after another or two at a time
def test_ranks_of_a_language_model_are_killed_and_changed() -> None:
    done = run("examples/language_model.py", "--steps", "20", seconds=280)
    assert done.returncode == 0, done.stderr
    first, quiet, killed, four, last = done.stdout.splitlines()
    tokens = first.rpartition(": ")[2]
    assert re.fullmatch(r"2 ranks, not disturbed: 20 steps each, weights \w{8}", quiet)
    assert killed.startswith("2 ranks, killed at the steps 6 and 11, and resumed: 20 steps each")
    assert killed[-8:] == quiet[-8:]
    assert re.match(r"4 ranks, .*: 1\d\d steps each, 0\.\d% padding", four)
    assert last == f"each of {tokens} of the first epoch came once"


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="torch is not installed (pip install '.[torch]')",
)
class TestRanks:
    @pytest.mark.timeout(200)  # every process imports PyTorch, which may take many seconds
    def test_they_stay_in_step_though_one_skips_more_than_the_other(self) -> None:
        command = ["examples/ranks.py", "--epochs", "2", "--samples", "601", "--damaged", "60"]
        done = subprocess.run(
            [sys.executable, "-W", "error", *command],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        lines = re.findall(
            r"^rank (\d)  \w+  ([\d +]+) steps, (\d+) damaged samples, accuracy ([\d.]+),"
            r" weights (\w+)\n {8}\S.*$",
            done.stdout,
            re.MULTILINE,
        )
        ranks, steps, skipped, accuracies, weights = zip(*lines, strict=True)
        assert ranks == ("0", "1")
        assert set(steps) == {"10 + 10"}  # 301 samples each, in batches of 32
        assert len(set(skipped)) == 2
        assert len(set(weights)) == 1
        assert float(accuracies[0]) > 0.8
