"""A cache notices each change that may change its examples, and no other: see `changes`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.fingerprints.changes import changed, harmless, keys_of, refused, sampled

pytest.importorskip("cloudpickle")


def described(key: Any) -> str:
    """A key as text, in which 1 is not True."""
    return json.dumps(key, sort_keys=True)


def check(old: Mapping[str, Any], again: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Check that programs are distinguished that differ, and no others."""
    are_changed = [one.name for one in changed() if one.name in old]
    unknown = {name: old[name] for name in are_changed if len(old[name]) == 1}
    assert not unknown, "a program was refused"
    stale = [name for name in are_changed if described(old[name]) == described(new[name])]
    assert not stale, "a change was not noticed"
    others = [one.name for one in harmless() if one.name in old]
    falsely = [name for name in others if described(old[name]) != described(new[name])]
    falsely += [name for name in old if described(old[name]) != described(again[name])]
    assert not falsely, "a change was noticed where there is none"
    for program, what, cure in refused():
        if program.name in old:
            (message,) = old[program.name]
            assert what in message, program.name
            assert cure in message, program.name
            assert "key=" in message, program.name


@pytest.mark.parametrize("seed", range(2))
def test_some_changes_are_noticed(seed: int, tmp_path: Path) -> None:
    programs = [*sampled(30, seed), *list(harmless())[seed::4]]
    programs += [one for one, _, _ in refused()][seed::16]
    keys = []
    for number, version in enumerate(("old", "old", "new")):
        (tmp_path / str(number)).mkdir()
        keys.append(keys_of(programs, tmp_path / str(number), version))
    check(*keys)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_all_changes_are_noticed_whatever_the_seed_of_hashes(tmp_path: Path) -> None:
    def keys(number: int, version: str) -> Any:
        folder = tmp_path / str(number)
        folder.mkdir()
        command = [sys.executable, "-m", "tests.fingerprints.changes", str(folder), version]
        env = {**os.environ, "PYTHONHASHSEED": str(number)}
        run = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout)

    with ThreadPoolExecutor(2) as pool:
        versions = ("old", "old", "new", "old")
        old, again, new, more = pool.map(keys, range(4), versions)
    assert len(old) > 3000
    check(old, again, new)
    check(again, more, new)
