"""The programs of a first week with aioqueue, run as their authors run them.

* A network that is trained on a folder of JPEG files: here, beside the same with PyTorch's loader.
* A service that batches requests, under load: `tests/batcher/test_batcher_load.py`.
* Threaded scripts that never stop their workers, and one that starts them again: here.
* A web service with traces, whose clients hang up: here.
* An asynchronous test suite: `tests/test_testing_suites.py` runs those of `docs/howto/testing.md`.
* Corpora that are mixed by tokens, in a program that is stopped and goes on: here.
* Features that take long to make, in a cache that is killed, goes on and becomes stale: here.
* A corpus that is curated into files, in a program that is killed and goes on: here.
* A series that is forecast from windows of it, in a program that is killed and goes on: here.
* Reviews from a dataset of Hugging Face, in a program that is stopped and goes on: here.
* Actors and a learner, whose transitions are trees of arrays: here.
* A survey whose answers are in files of three forms, some of them damaged: here.
* A crawler that asks no host too much, parses in processes and writes Parquet: here.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import itertools
import json
import re
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

import pytest

from tests.kit.children import ROOT, environment, output_of_module
from tests.programs.websites import PAGES, sites

TRAIN, SHAPES, CRAWLER = (f"examples/{name}.py" for name in ("train_folder", "shapes", "crawler"))
OURS = "tests/programs"


def run(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; a warning is a failure."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-X", "utf8", script, *map(str, arguments)],
        cwd=ROOT,
        env={**environment(), "OMP_NUM_THREADS": "1", "NO_PROXY": "*"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=50,
        check=False,
    )


def needs(*modules: str) -> pytest.MarkDecorator:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


# A folder of JPEG files.


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of 570 images."""
    root = tmp_path_factory.mktemp("shapes")
    done = run(SHAPES, root, "--train", "150", "--valid", "40")
    assert done.stdout == f"wrote 570 files to {root}\n", done.stderr
    return root


@needs("torch", "PIL", "tqdm")
class TestTraining:
    @pytest.mark.parametrize("script", [TRAIN, f"{OURS}/train_folder_dataloader.py"])
    def test_it_learns(self, script: str, shapes: Path) -> None:
        done = run(script, shapes, "--epochs", "3", "--workers", "2")
        assert done.returncode == 0, done.stderr
        right = re.findall(r"^epoch (\d): right (\d+\.\d)%$", done.stdout, re.MULTILINE)
        assert [int(epoch) for epoch, _ in right] == [0, 1, 2]
        assert float(right[-1][1]) > 90  # of three labels
        # The bar knows how many batches there are: 450 // 32.
        assert re.search(r"epoch 2: 100%.* 14/14 ", done.stderr)

    def test_it_does_the_same_on_every_run(self, shapes: Path) -> None:
        first, second = (
            # What limited a run, in the line behind, is another thing with other workers.
            run(TRAIN, shapes, "--epochs", "1", "--workers", workers).stdout.splitlines()[0]
            for workers in ("1", "3")
        )
        assert first == second
        assert first.startswith("epoch 0: right ")


def test_training_is_no_longer_than_with_pytorchs_loader() -> None:
    ours, theirs = map(lines_of_code, (TRAIN, f"{OURS}/train_folder_dataloader.py"))
    assert ours <= theirs


def lines_of_code(script: str) -> int:
    """Lines that have code: not those of comments, docstrings and the space in between."""
    text = (ROOT / script).read_text(encoding="utf-8")
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER)
        and token.string.strip()
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


# Threaded scripts that never stop their workers.


class TestLegacy:
    @pytest.mark.slow
    def test_queue_runners_of_tensorflow_1(self, tmp_path: Path) -> None:
        files = [tmp_path / "a.csv", tmp_path / "b.csv"]
        for number, file in enumerate(files):
            xs = [x / 50 for x in range(25 * number, 25 * number + 25)]
            file.write_text("".join(f"{x},{3 * x + 0.5}\n" for x in xs))
        done = run(f"{OURS}/legacy_tf1.py", *files)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "y = 3.00 x + 0.50\n"

    @pytest.mark.slow
    def test_threads(self) -> None:
        done = run(f"{OURS}/legacy_threads.py")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "right: 320 of 320\n"

    @pytest.mark.slow
    def test_threads_when_the_loop_fails(self) -> None:
        done = run(f"{OURS}/legacy_threads.py", "broken")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.endswith("\nValueError: broken\n")
        assert done.stderr.count("Traceback") == 1


# Corpora that are mixed.


@pytest.mark.slow
def test_a_mixture_continues_where_it_was_stopped(tmp_path: Path) -> None:
    for number in range(3):
        texts = [f"a text {line % 7} of file {number}" for line in range(40 + number)]
        (tmp_path / f"common-{number}.txt").write_text("\n".join(texts))
    rare = ["a title", *(f"rare words {line}" for line in range(10))]
    (tmp_path / "rare.txt").write_text("\n".join(rare))
    program = f"{OURS}/mix_corpora.py"
    whole = run(program, tmp_path)
    assert whole.returncode == 0, whole.stderr
    assert re.fullmatch(r"\d+ pairs, \d+ different, loss \d\.\d{4}\n", whole.stdout)
    for batches in (3, 14):  # in the first epoch, and in the second
        stopped = run(program, tmp_path, "--stop-after", str(batches))
        assert stopped.stdout == f"stopped after {batches} batches\n", stopped.stderr
    assert run(program, tmp_path).stdout == whole.stdout


@pytest.mark.slow
def test_an_arm_is_found_in_trees_of_arrays(tmp_path: Path) -> None:
    done = run(f"{OURS}/fit_arm.py", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "actors: off by 0.000000\nepisodes: off by 0.000000\n"


@needs("pyarrow")
@pytest.mark.slow
def test_a_curated_corpus_is_finished_after_kills(tmp_path: Path) -> None:
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        for number in range(4):
            lines = [
                f'{{"language": "{"en" if line % 3 else "de"}", "words": {["word"] * (line % 9)}}}'
                for line in range(130)
            ]
            text = "\n".join(["{broken", *lines]).replace("'", '"')
            (tmp_path / name / f"{number}.jsonl").write_text(text)
    program = f"{OURS}/curate_corpus.py"
    whole, *_ = run(program, tmp_path / "whole").stdout.splitlines()
    assert re.fullmatch(r"224 texts in 5 files, 224 packed, \d+ words, \d+\.\d{3}", whole)
    for texts in (40, 200):  # before and behind the first file
        killed = run(program, tmp_path / "killed", "--stop-after", str(texts))
        assert killed.returncode == -9, killed.stderr
    finished, resumed = run(program, tmp_path / "killed").stdout.splitlines()
    assert finished == whole
    assert re.fullmatch(r"resumed at (0|50|100|150|200)", resumed)


@needs("pyarrow")
@pytest.mark.slow
def test_features_are_made_once(tmp_path: Path) -> None:
    program = f"{OURS}/cached_features.py"
    whole, made = run(program, tmp_path / "whole").stdout.splitlines()
    assert made == "2000 made"
    killed = run(program, tmp_path, "--stop-after", "900")
    assert killed.returncode == -9, killed.stderr
    again, rest = run(program, tmp_path).stdout.splitlines()
    assert again == whole
    assert int(rest.split()[0]) < 1100, "the first file is there, of 4 MiB"
    assert run(program, tmp_path).stdout.splitlines() == [whole, "0 made"]
    stale = run(program, tmp_path, "--power", "2")
    assert stale.returncode == 1
    assert "code.0 prepare Features" in stale.stderr
    other, made = run(program, tmp_path, "--power", "2", "--rebuild").stdout.splitlines()
    assert (other != whole, made) == (True, "2000 made")


# Windows of a series, and a dataset of Hugging Face.


@needs("google_crc32c")
@pytest.mark.slow
def test_forecasts_of_a_run_that_was_killed(tmp_path: Path) -> None:
    program = f"{OURS}/forecast_series.py"
    whole, *_ = run(program, tmp_path / "whole").stdout.splitlines()
    assert re.fullmatch(r"98 windows in 5 files, wrong by 0\.0\d at most", whole)
    killed = run(program, tmp_path / "killed", "--stop-after", "60")
    assert killed.returncode == -9, killed.stderr
    finished, resumed = run(program, tmp_path / "killed").stdout.splitlines()
    assert finished == whole
    assert re.fullmatch(r"resumed at (0|20|40)", resumed)
    files = [sorted((tmp_path / name).rglob("part-*")) for name in ("whole", "killed")]
    first, second = ([path.read_bytes() for path in paths] for paths in files)
    assert first == second


@pytest.mark.slow
def test_windows_are_inspected() -> None:
    target = f"{OURS}/forecast_series.py:windows"
    shown = output_of_module("aioqueue", "inspect", "--seconds=0.1", target)
    assert re.search(r"^  window +12 every 4$", shown, re.MULTILINE)
    assert re.search(r"^  value +float32 \(12,\)$", shown, re.MULTILINE)
    assert "first elements" in shown
    assert "verdict" in shown


@needs("datasets")
@pytest.mark.slow
@pytest.mark.parametrize("form", [[], ["--streaming"]], ids=["by index", "streaming"])
def test_reviews_continue_where_they_were_stopped(form: list[str], tmp_path: Path) -> None:
    script = f"{OURS}/classify_reviews.py"
    whole = run(script, tmp_path / "whole.json", *form)
    assert whole.returncode == 0, whole.stderr
    stopped = run(script, tmp_path / "kept.json", *form, "--stop-after", "40")  # of 2 * 32
    assert stopped.stdout == "stopped after 40 batches\n", stopped.stderr
    assert run(script, tmp_path / "kept.json", *form).stdout == whole.stdout


# Drivers that crash, and a service with traces.


@pytest.mark.slow
def test_drivers_come_back() -> None:
    done = run(f"{OURS}/supervised_sensors.py")
    assert (done.returncode, done.stderr) == (0, "")
    messages = done.stdout.splitlines()
    assert messages[-2:] == [
        "readings: [(0, 28), (1, 28), (2, 28), (3, 28)]",
        "restarts: 8, versions: 113",
    ]
    failures = [line for line in messages if line.startswith("WARNING worker aioqueue-driver-")]
    assert len(failures) == 8
    for sensor, tick in itertools.product(range(4), (10, 20)):
        assert f"ConnectionError: sensor {sensor} has hung up at {tick}" in messages


@needs("starlette", "uvicorn")
@pytest.mark.slow
def test_traces_lead_to_the_batch_and_cancelled_calls_are_in_none() -> None:
    pytest.importorskip("opentelemetry.sdk")
    done = run(f"{OURS}/traced_service.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "True",
        "answered 6, cancelled 2, {6: 1}",
        "linked 6 of 8 requests: True",
    ]


# A survey.


@needs("pyarrow")
class TestSurvey:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """Answers with scores of year - 2020, but for some without, and some that are lost."""
        import pyarrow as pa
        import pyarrow.parquet as parquet

        for number in range(3):
            answers = [{"year": 2022 + n % 2, "score": 2 + n % 2} for n in range(7)]
            text = "".join(f"{json.dumps(answer)}\n" for answer in answers)
            (tmp_path / f"web-{number:03d}.jsonl").write_text(text)
        with open(tmp_path / "web-001.jsonl", "a") as file:
            file.write('{"year": 2022, "sco')
        table = 'year,score,remark\n2022,2.0,"two\nlines"\n2023,n/a,\n2023,3.0,"a ""b"""\n'
        (tmp_path / "phone-a.csv").write_text(table)
        (tmp_path / "phone-b.csv").write_text(f"{table}2023,three,\n2023,3.0,\n")
        for year, columns in (
            (2022, {"score": pa.array([2, 9], "int32"), "valid": [True, False]}),
            (2023, {"score": [3.0, None], "valid": [True, True], "remark": ["a", "b"]}),
            (2024, {"score": pa.nulls(1), "valid": [True]}),
        ):
            (tmp_path / f"year={year}").mkdir()
            parquet.write_table(pa.table(columns), tmp_path / f"year={year}" / "part.parquet")
        return tmp_path

    @pytest.mark.slow
    @pytest.mark.parametrize("stops", [[], [1], [3, 2]], ids=str)
    def test_counts_valid_rows_and_continues(self, stops: list[int], folder: Path) -> None:
        script = f"{OURS}/survey_answers.py"
        for stop in stops:
            done = run(script, folder, "--stop-after", str(stop))
            assert (done.returncode, done.stdout) == (0, "")
        done = run(script, folder)
        assert done.returncode == 0, done.stderr
        year_2022, year_2023 = 3 * 4 + 2 + 1, 3 * 3 + 2 + 1
        assert done.stdout.splitlines()[:2] == [
            f"2022: 2.00 of {year_2022} answers",
            f"2023: 3.00 of {year_2023} answers",
        ]
        assert sorted(done.stdout.splitlines()[2:]) == [
            "damaged at byte 189: web-001.jsonl",
            "damaged at byte 68: phone-b.csv",
        ]
        assert all("leaves out the rest of" in line for line in done.stderr.splitlines())


# A crawler.


@needs("pyarrow")
class TestCrawler:
    @pytest.mark.slow
    def test_it_fetches_each_page_once_and_asks_no_host_too_much(self, tmp_path: Path) -> None:
        import pyarrow.parquet

        out = tmp_path / "pages.parquet"
        with sites(3, at_once=2) as servers:
            done = run(CRAWLER, f"{servers[0].url}/", "--out", out, "--per-host", "2")
            assert (done.returncode, done.stderr) == (0, "")
            rows = {row["url"]: row for row in pyarrow.parquet.read_table(out).to_pylist()}
            assert f"wrote {len(rows)} pages" in done.stdout
            for server in servers:
                self.check(server.number, rows, server.url)
                assert server.peak == 2
                assert not server.was_slow
                assert set(Counter(server.requested).values()) == {1}
                assert len(server.requested) == sum(server.url in url for url in rows)

    def check(self, number: int, rows: dict[str, dict[str, object]], url: str) -> None:
        """The records of one site: all of its pages, and the links that lead nowhere."""
        titles = {rows[f"{url}/{page}"]["title"] for page in range(PAGES)}
        assert titles == {f"Page {page} of {number}" for page in range(PAGES)}
        third = rows[f"{url}/3"]
        assert (third["status"], third["words"]) == ("ok", 3 + 2 * 6)
        dead = [
            row for row in rows.values() if str(row["url"]).startswith(url) and not row["title"]
        ]
        assert {row["status"] for row in dead} == {"HTTP Error 404: Not Found"}
        assert len(dead) == PAGES + 1  # 12 to 24

    @pytest.mark.slow
    def test_it_ends_at_so_many_pages(self, tmp_path: Path) -> None:
        import pyarrow.parquet

        out = tmp_path / "pages.parquet"
        with sites(2, at_once=1) as servers:
            done = run(CRAWLER, f"{servers[0].url}/", "--out", out, "--pages", "7")
        assert (done.returncode, done.stderr) == (0, "")
        assert pyarrow.parquet.read_table(out).num_rows == 7
        assert sum(len(server.requested) for server in servers) == 7
