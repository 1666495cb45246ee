"""``python -m aioqueue.compat.v1``: an unmodified script sees what it would see from Python."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aioqueue.compat.v1 import app, flags
from aioqueue.compat.v1.__main__ import main
from tests.compat.steps import refused
from tests.compat.warm import WARM
from tests.kit.children import environment

RUNNER = ["-m", "aioqueue.compat.v1"]


def python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=cwd,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def under_both(tmp_path: Path, source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script that needs no TensorFlow by Python and by the runner: no difference."""
    (tmp_path / "script.py").write_text(source)
    plain = python("script.py", *arguments, cwd=tmp_path)
    done = python(*RUNNER, "script.py", *arguments, cwd=tmp_path)
    assert done.returncode == plain.returncode
    assert done.stdout == plain.stdout
    assert done.stderr == plain.stderr
    return done


def ours(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the runner in a fork of the warm interpreter."""
    return WARM.run("-W", "error", *RUNNER, *arguments, cwd=cwd, environment=environment())


def run(tmp_path: Path, source: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "script.py").write_text(source)
    return ours("script.py", cwd=tmp_path)


class TestScripts:
    @pytest.mark.slow
    def test_all_that_a_script_sees_of_itself(self, tmp_path: Path) -> None:
        (tmp_path / "beside.py").write_text("value = 5")
        done = under_both(
            tmp_path,
            "import sys, __main__, beside, pickle, atexit\n"
            "class Thing: pass\n"
            "print(__name__, __file__, __spec__, sys.argv, sys.path[0], beside.value)\n"
            "print(__main__ is sys.modules['__main__'], __main__.Thing is Thing)\n"
            "print(isinstance(pickle.loads(pickle.dumps(Thing())), Thing))\n"
            "print(__doc__, __package__, __builtins__.len([1]))\n"
            "atexit.register(lambda: print('exit', Thing))\n",
            "--flag",
            "-m",
        )
        assert done.returncode == 0
        assert "['script.py', '--flag', '-m']" in done.stdout

    @pytest.mark.slow
    def test_a_traceback_begins_in_the_script(self, tmp_path: Path) -> None:
        source = (
            "def fail():\n    raise ValueError('here')\n\n"
            "try:\n    fail()\n"
            "except ValueError as error:\n    raise KeyError('there') from error\n"
        )
        done = under_both(tmp_path, source)
        assert done.returncode == 1
        assert "ValueError: here" in done.stderr

    def test_the_exit_status(self, tmp_path: Path) -> None:
        for status in ("3", "'a message'"):
            (tmp_path / "script.py").write_text(f"import sys; sys.exit({status})")
            plain, done = python("script.py", cwd=tmp_path), ours("script.py", cwd=tmp_path)
            assert (done.returncode, done.stderr) == (plain.returncode, plain.stderr)

    @pytest.mark.slow
    def test_the_excepthook_of_a_script_is_called(self, tmp_path: Path) -> None:
        under_both(
            tmp_path,
            "import sys, traceback\n"
            "def hook(kind, value, trace):\n"
            "    print('hook', kind, value, len(traceback.extract_tb(trace)))\n"
            "sys.excepthook = hook\n"
            "raise ValueError('x')\n",
        )

    @pytest.mark.slow
    @pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
    def test_ctrl_c(self, tmp_path: Path) -> None:
        done = under_both(tmp_path, "raise KeyboardInterrupt")
        assert done.returncode == -signal.SIGINT

    @pytest.mark.slow
    def test_other_threads_are_waited_for(self, tmp_path: Path) -> None:
        under_both(
            tmp_path,
            "import threading\n"
            "gate = threading.Event()\n"
            "threading.Thread(target=lambda: (gate.wait(), print('thread'))).start()\n"
            "print('main', flush=True)\n"
            "threading.Thread(target=gate.set).start()\n",
        )

    def test_a_package_beside_it_is_found(self, tmp_path: Path) -> None:
        folder = tmp_path / "scripts"
        folder.mkdir()
        (folder / "helper.py").write_text("import tensorflow as tf; NAME = tf.FIFOQueue.__name__")
        (folder / "script.py").write_text("import helper; print(helper.NAME)")
        done = ours("scripts/script.py", cwd=tmp_path)
        assert done.stdout == "FIFOQueue\n", done.stderr

    def test_a_module_by_name(self, tmp_path: Path) -> None:
        (tmp_path / "job.py").write_text(
            "import sys, tensorflow as tf\nprint(__name__, sys.argv[1:], tf.FIFOQueue.__name__)\n"
            "if len(sys.argv) > 2: raise ValueError('x')\n"
        )
        done = ours("-m", "job", "a", cwd=tmp_path)
        assert done.stdout == "__main__ ['a'] FIFOQueue\n", done.stderr
        done = ours("-m", "job", "a", "b", cwd=tmp_path)
        assert done.returncode == 1
        assert done.stderr.count("File ") == 1


class TestUsage:
    @pytest.mark.parametrize("arguments", [[], ["-m"], ["-x"], ["--verbose", "script.py"]])
    def test_what_it_does_not_know(
        self, arguments: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(arguments) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith("usage: python -m aioqueue.compat.v1 script.py")

    def test_help(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["--help"]) == 0
        printed = capsys.readouterr()
        assert printed.err == ""
        assert "TensorFlow itself is neither needed nor imported" in printed.out

    def test_a_script_that_is_not_there(self, tmp_path: Path) -> None:
        plain = python("missing.py", cwd=tmp_path)
        done = ours("missing.py", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (plain.returncode, plain.stderr)


class TestImports:
    def test_every_way_to_import_it(self, tmp_path: Path) -> None:
        done = run(
            tmp_path,
            "import tensorflow as tf\n"
            "import tensorflow.compat.v1 as v1\n"
            "import tensorflow.train, tensorflow.contrib.training\n"
            "from tensorflow import FIFOQueue, train\n"
            "from tensorflow.compat import v1 as again\n"
            "from tensorflow.contrib.training import bucket\n"
            "from tensorflow.train import Coordinator\n"
            "from tensorflow.python.framework import errors, ops, dtypes\n"
            "from tensorflow.python.ops import data_flow_ops, array_ops\n"
            "from tensorflow.python.training import coordinator, queue_runner_impl\n"
            "from tensorflow.python.client.session import Session\n"
            "from tensorflow.python.platform import gfile, app\n"
            "import aioqueue.compat.v1 as ours\n"
            "assert tf.FIFOQueue is v1.FIFOQueue is again.FIFOQueue is FIFOQueue\n"
            "assert FIFOQueue is ours.FIFOQueue\n"
            "assert data_flow_ops.FIFOQueue is FIFOQueue and Session is ours.Session\n"
            "assert coordinator.Coordinator is tf.train.Coordinator is Coordinator\n"
            "assert tensorflow.train.Coordinator is train.Coordinator\n"
            "assert errors.OutOfRangeError is tf.errors.OutOfRangeError\n"
            "assert bucket is ours.contrib.training.bucket is tf.contrib.training.bucket\n"
            "assert v1.compat.v1.Session is Session and tf.VERSION == tf.__version__ == '1.15.0'\n"
            "names = {}\n"
            "exec('from tensorflow import *', names)\n"
            "assert names['Session'] is Session\n"
            "print('all')\n",
        )
        assert done.stdout == "all\n", done.stderr

    def test_our_own_modules_do_not_stand_for_those_of_tensorflow(self, tmp_path: Path) -> None:
        done = run(
            tmp_path,
            "from tensorflow.python.framework import ops\n"
            "from tensorflow.python.client import session\n"
            "import tensorflow as tf\n"
            "assert ops.convert_to_tensor([1], tf.int32).shape == [1]\n"
            "assert session.Session is tf.Session\n"
            "print(hasattr(tf, 'readers'), hasattr(tf.python_io, 'inputs'))\n",
        )
        assert done.stdout == "False False\n", done.stderr

    def test_modules_that_are_not_there_are_explained(self, tmp_path: Path) -> None:
        done = run(
            tmp_path,
            "for line in ('import tensorflow.keras', 'from tensorflow import keras',\n"
            "             'from tensorflow.keras.layers import Dense',\n"
            "             'from tensorflow.train import AdamOptimizer',\n"
            "             'from tensorflow.python.framework import op_def_library',\n"
            "             'from tensorflow.examples.tutorials.mnist import input_data'):\n"
            "    try:\n"
            "        exec(line)\n"
            "    except ImportError as error:\n"
            "        print(error)\n",
        )
        lines = done.stdout.splitlines()
        assert len(lines) == 6, done.stderr
        assert all("is not in aioqueue.compat.v1" in line for line in lines)
        assert all("belong to your framework" in line for line in lines[:4])

    def test_tensorflow_itself_is_not_imported_even_if_it_is_there(self, tmp_path: Path) -> None:
        package = tmp_path / "tensorflow"
        package.mkdir()
        (package / "__init__.py").write_text("raise SystemExit('the real one')")
        done = run(tmp_path, "import tensorflow as tf; print(tf.FIFOQueue.__module__)")
        assert done.stdout.startswith("aioqueue.compat.v1"), done.stderr

    def test_only_that_process_is_changed(self, tmp_path: Path) -> None:
        """Importing the package gives nobody a TensorFlow that is none."""
        (tmp_path / "script.py").write_text(
            "import sys, aioqueue.compat.v1\n"
            "print(any('TensorFlow' in type(finder).__name__ for finder in sys.meta_path))\n"
        )
        done = WARM.run("script.py", cwd=tmp_path, environment=environment())
        assert done.stdout == "False\n", done.stderr


class TestFlags:
    @pytest.fixture(autouse=True)
    def values(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        """Flags of the test's own, as of a script."""
        monkeypatch.setattr(flags, "FLAGS", flags.FlagValues())
        flags.DEFINE_integer("steps", 10, "how many, 100%")
        flags.DEFINE_string("name", None, "of it")
        flags.DEFINE_float("rate", 0.5, "of it")
        flags.DEFINE_boolean("fast", True, "or slow")
        flags.DEFINE_bool("slow", False, "or fast")
        flags.DEFINE_list("files", "a,b", "of it")
        flags.DEFINE_enum("kind", "one", ["one", "two"], "of it")
        return flags.FLAGS

    @pytest.mark.parametrize(
        ("arguments", "rest", "parsed"),
        [
            ([], [], {}),
            (
                ["--steps=3", "-name", "x", "--rate", "2", "--nofast", "rest"],
                ["rest"],
                {"steps": 3, "name": "x", "rate": 2.0, "fast": False},
            ),
            (
                ["--fast=false", "--files=c", "--kind=two", "--slow"],
                [],
                {"fast": False, "files": ["c"], "kind": "two", "slow": True},
            ),
            (["--steps=0x10", "--unknown=1"], ["--unknown=1"], {"steps": 16}),
        ],
    )
    def test_they_are_parsed(
        self, values: Any, arguments: list[str], rest: list[str], parsed: dict[str, Any]
    ) -> None:
        defaults = {
            "steps": 10, "name": None, "rate": 0.5, "fast": True, "slow": False,
            "files": ["a", "b"], "kind": "one",
        }  # fmt: skip
        assert values(["script.py", *arguments], known_only=True) == ["script.py", *rest]
        assert values.flag_values_dict() == {**defaults, **parsed}

    @pytest.mark.parametrize(
        "argument", ["--steps=x", "--kind=three", "--fast=maybe", "--rate=", "--unknown=1"]
    )
    def test_wrong_ones_are_refused(
        self, values: Any, argument: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as caught:
            values(["script.py", argument])
        assert caught.value.code == 1
        message = capsys.readouterr().err
        assert message.startswith("FATAL Flags parsing error")
        assert argument[2:].split("=")[0] in message

    def test_one_is_reported_with_its_default_and_its_help(self, values: Any) -> None:
        values(["script.py", "--steps=3"])
        values.rate = 0.25
        assert values["steps"] == ("steps", 10, "how many, 100%", 3)
        assert {name: values[name].value for name in values} == values.flag_values_dict()
        assert values["rate"].value == 0.25
        assert values["rate"].default == 0.5
        refused(KeyError, "other", lambda: values["other"])

    def test_one_may_be_given_several_times(self, values: Any) -> None:
        flags.DEFINE_multi_integer("crop", [9, 9], "of it")
        flags.DEFINE_multi_float("scale", 0.5, "of it")
        flags.DEFINE_multi_string("part", None, "of it")
        flags.DEFINE_multi_enum("letter", "a", ["a", "b"], "of it")
        values(["script.py"])
        assert (values.crop, values.scale, values.part, values.letter) == (
            [9, 9],
            [0.5],
            None,
            ["a"],
        )
        values(["script.py", "--crop=5", "--crop=0x7", "--scale", "2", "--part=x", "--letter=b"])
        assert (values.crop, values.scale, values.part, values.letter) == (
            *([5, 7], [2.0], ["x"], ["b"]),
        )
        refused(SystemExit, "", values, ["script.py", "--letter=c"])

    def test_help_tells_all_of_them(self, values: Any, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as caught:
            values(["script.py", "--help"])
        assert caught.value.code == 0
        assert "how many, 100% (default: 10)" in capsys.readouterr().out

    def test_asking_for_one_parses_the_command_line(
        self, values: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "argv", ["script.py", "--steps=7", "rest"])
        assert values.steps == 7
        assert "steps" in values
        assert "other" not in values
        assert list(values) == dir(values)

    def test_they_can_be_set(self, values: Any) -> None:
        values(["script.py"])
        values.steps = 5
        assert values.steps == 5
        with pytest.raises(AttributeError, match="Unknown command line flag 'other'"):
            values.other = 5
        with pytest.raises(AttributeError, match="Unknown command line flag 'other'"):
            _ = values.other

    def test_one_is_defined_once(self) -> None:
        with pytest.raises(flags.DuplicateFlagError, match="The flag 'steps' is defined twice"):
            flags.DEFINE_string("steps", "", "again")

    def test_a_required_one(self, values: Any, capsys: pytest.CaptureFixture[str]) -> None:
        flags.mark_flag_as_required("name")
        refused(SystemExit, "", values, ["script.py"])
        assert "Flag --name must have a value other than None." in capsys.readouterr().err
        assert values(["script.py", "--name=x"]) == ["script.py"]

    def test_app_run_exits_with_what_main_returns(self, values: Any) -> None:
        seen = []

        def body(argv: list[str]) -> int:
            seen.append((argv, flags.FLAGS.steps))
            return 4

        with pytest.raises(SystemExit) as caught:
            app.run(body, ["script.py", "--steps=3", "rest"])
        assert caught.value.code == 4
        assert seen == [(["script.py", "rest"], 3)]
