"""Patterns of files, beside what TensorFlow 2.21 finds: which files, and how it spells them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import aioqueue.compat.v1 as tf

FILES = (
    *("a1.txt", "a2.txt", ".hid", "b[1].txt", "s/b.txt", "s/.h/x", "s/t/u.txt", "z.d/q"),
    *("a\\b", "sp ace.txt", "s/t.txt", "é1.txt"),
)

FOUND = {
    "a*.txt": ["./a1.txt", "./a2.txt"], "./a*.txt": ["./a1.txt", "./a2.txt"], "a1.txt": ["a1.txt"],
    "./a1.txt": ["./a1.txt"], "s/*.txt": ["s/b.txt", "s/t.txt"],
    "*/b.txt": ["./link/b.txt", "./s/b.txt"], "s/../a*.txt": ["s/../a1.txt", "s/../a2.txt"],
    "?1.txt": ["./a1.txt", "./é1.txt"], "a[12].txt": ["./a1.txt", "./a2.txt"],
    "a[!1].txt": ["./a2.txt"], "a[^1].txt": ["./a2.txt"], "b[[]1].txt": ["./b[1].txt"],
    "b\\[1\\].txt": ["./b[1].txt"], "s//*.txt": [],
    "./s/*": ["./s/.h", "./s/b.txt", "./s/t", "./s/t.txt"],
    "././a*.txt": ["././a1.txt", "././a2.txt"],
    "*/*/*": ["./link/.h/x", "./link/t/u.txt", "./s/.h/x", "./s/t/u.txt"],
    "s/*/u.txt": ["s/t/u.txt"], "s/./*.txt": ["s/./b.txt", "s/./t.txt"], "s/": ["s/"], "s": ["s"],
    "": [], "missing": [], "missing*": [], "missing/*": [], ".": ["."], "..": [".."],
    ".*": ["./.hid"], "s/.*": ["s/.h"], "*.d/*": ["./z.d/q"],
    "**/*.txt": ["./link/b.txt", "./link/t.txt", "./s/b.txt", "./s/t.txt"],
    "s/**": ["s/.h", "s/b.txt", "s/t", "s/t.txt"],
    "link/*": ["link/.h", "link/b.txt", "link/t", "link/t.txt"], "li*/b.txt": ["./link/b.txt"],
    "dang*": ["./dangling"], "dangling": [], "{a1,a2}.txt": [], "a{1,2}.txt": [],
    "a[1-2].txt": ["./a1.txt", "./a2.txt"], "a[.txt": [], "a].txt": [], "a\\\\b": ["./a\\b"],
    "sp*": ["./sp ace.txt"], "D/a*.txt": ["D/a1.txt", "D/a2.txt"], "D//a*.txt": [],
    "D/./a*.txt": ["D/./a1.txt", "D/./a2.txt"], "D/s/../a*.txt": ["D/s/../a1.txt", "D/s/../a2.txt"],
    "D/a1.txt": ["D/a1.txt"], "D/": ["D/"], "D": ["D"],
    "file://D/a*.txt": ["file://D/a1.txt", "file://D/a2.txt"],
    "file://D/a1.txt": ["file://D/a1.txt"], "./": ["./"], "é*": ["./é1.txt"],
    "s/t/../*.txt": ["s/t/../b.txt", "s/t/../t.txt"], "*/../a1.txt": [],
    "s/*t*": ["s/b.txt", "s/t", "s/t.txt"], "[!a]*.txt": ["./b[1].txt", "./sp ace.txt", "./é1.txt"],
    "*.txt": ["./a1.txt", "./a2.txt", "./b[1].txt", "./sp ace.txt", "./é1.txt"],
}  # fmt: skip
"""What TensorFlow finds, in order; D is the folder itself."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files, in what is the current folder."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x\n")
    (tmp_path / "link").symlink_to("s")
    (tmp_path / "dangling").symlink_to("nowhere")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("pattern", FOUND)
def test_what_is_found(folder: Path, sess: Any, pattern: str) -> None:
    expected = [one.replace("D", str(folder)) for one in FOUND[pattern]]
    asked = pattern.replace("D", str(folder))
    assert tf.gfile.Glob(asked) == sorted(expected)
    as_bytes = [os.fsencode(one) for one in expected]
    assert sess.run(tf.matching_files(asked)).tolist() == sorted(as_bytes)


def test_several_patterns(folder: Path, sess: Any) -> None:
    found = sess.run(tf.matching_files(["a*.txt", "a1.txt", "./a1*"])).tolist()
    assert found == [b"./a1.txt", b"./a1.txt", b"./a2.txt", b"a1.txt"]
    assert tf.gfile.Glob(["s/*.txt", "a1.txt"]) == ["s/b.txt", "s/t.txt", "a1.txt"]


def test_keys_of_readers_are_spelled_as_they_are_found(folder: Path, sess: Any) -> None:
    names = tf.train.match_filenames_once("a*.txt")
    files = tf.train.string_input_producer(names, num_epochs=1, shuffle=False)
    key, _ = tf.TextLineReader().read(files)
    listed = tf.data.Dataset.list_files("a*.txt", shuffle=False)
    following = listed.make_one_shot_iterator().get_next()
    sess.run(tf.local_variables_initializer())
    coord = tf.train.Coordinator()
    threads = tf.train.start_queue_runners(sess, coord)
    assert sess.run([key, following]) == [b"./a1.txt:1", b"./a1.txt"]
    coord.request_stop()
    coord.join(threads)


def test_folders_that_cannot_be_read_are_passed_over(folder: Path, sess: Any) -> None:
    assert tf.gfile.Glob("a1.txt/*") == []
    assert tf.gfile.Glob("*/*/*/*") == []
