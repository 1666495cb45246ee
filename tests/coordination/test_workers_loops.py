"""Threads with their own event loop: their imports happen before they start."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

BEGINNING = """
    import sys
    import threading

    elsewhere = set()


    class Onlooker:
        def find_spec(self, name, path=None, target=None):
            if threading.current_thread() is not threading.main_thread():
                elsewhere.add(name)
            return None


    sys.meta_path.insert(0, Onlooker())
    from aioqueue import sync
    from aioqueue.inputs import numbers


    async def same(given):
        return given

"""
PROGRAMS = {
    "a pipeline": """
    for _ in numbers(3).prepare(same):
        pass
    """,
    "a batcher": """
    with sync.Batcher(same) as batcher:
        assert batcher(1) == 1
    """,
}


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_thread_of_a_loop_imports_nothing(program: str) -> None:
    """Otherwise Ctrl-C during an import ends the program with the exit status 1."""
    program_text = textwrap.dedent(BEGINNING + PROGRAMS[program]) + "print(*sorted(elsewhere))"
    done = subprocess.run(
        [sys.executable, "-c", program_text],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    late = [name for name in done.stdout.split() if name.startswith(("anyio", "uvloop", "asyncio"))]
    assert late == []
