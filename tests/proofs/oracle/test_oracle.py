"""A share of the random programs; all of them: ``python -m proofs.oracle --programs 2000``."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from proofs.oracle import comparing, kinds
from proofs.oracle.comparing import compare, shrunk
from proofs.oracle.libraries import MISSING, ours
from proofs.oracle.program import Program

PER_KIND = 4
SEED = 1

needs_tensorflow = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@needs_tensorflow
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_programs_do_the_same(kind: str) -> None:
    for program in kinds.programs(PER_KIND, SEED, [kind]):
        verdict = compare(program)
        if verdict.difference is not None:
            pytest.fail(str(shrunk(verdict.difference)))


def test_programs_are_always_the_same() -> None:
    names = list(kinds.KINDS)
    once, again = (list(kinds.programs(40, 7, names)) for _ in range(2))
    assert once == again
    assert len({program.lines for program in once}) > 35


class Altered:
    """A library of which one class is another one."""

    def __init__(self, library: Any, **changed: Any) -> None:
        self._library = library
        self.__dict__.update(changed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)


def test_a_difference_is_found_shrunk_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    # Ours, and ours with queues that are too big: this needs no TensorFlow.
    def bigger(capacity: int, *args: Any, **kwargs: Any) -> Any:
        return ours().FIFOQueue(capacity + 1, *args, **kwargs)

    monkeypatch.setattr(comparing, "theirs", lambda: Altered(ours(), FIFOQueue=bigger))
    lines = (
        "q = tf.FIFOQueue(1, [tf.int32], [[]])",
        "size = q.size()",
        "take = q.dequeue()",
        "put = q.enqueue(5)",
        "session()",
        "here(size)",
        "go(put)",
        "here(size)",
        "go(put)",
        "go(take)",
    )
    verdict = compare(Program("made by hand", 1, lines))
    assert verdict.difference is not None
    assert verdict.difference.line == 8
    least = shrunk(verdict.difference)
    assert least.program.lines == (lines[0], lines[3], lines[4], lines[6], lines[8])
    assert "it blocks" in str(least)
    # What is shown runs by itself: the first put ends, and says so; the second never does.
    script = least.program.script()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    first = script.splitlines().index("go(put)") + 1
    assert done.stdout == f"[{first}] None\n", done.stderr
