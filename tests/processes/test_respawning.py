"""Whether a worker process that has died is replaced; no process is started here."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from aioqueue.processes.respawning import DeadProcess, RespawnPolicy, how_it_ended, why_not_begun


def dead(*, is_ready: bool = True, has_begun: bool = True, was_of_use: bool = False) -> DeadProcess:
    return SimpleNamespace(is_ready=is_ready, has_begun=has_begun, was_of_use=was_of_use)


class TestReplacement:
    def test_not_after_ten_in_a_row_that_were_useless(self) -> None:
        policy = RespawnPolicy()
        for _ in range(9):
            assert policy.why_not_replaced("w", dead(), -11) is None
        assert policy.why_not_replaced("w", dead(), -9) == (
            "worker process w was killed by SIGKILL (out of memory?) before it had done anything,"
            " as did 9 before it"
        )

    def test_nor_after_ten_that_died_while_they_started(self) -> None:
        policy = RespawnPolicy()
        whys = [policy.why_not_replaced("w", dead(is_ready=False), -15) for _ in range(10)]
        assert whys == [
            *[None] * 9,
            "worker process w was killed by SIGTERM while it started, as did 9 before it",
        ]

    def test_a_useful_process_resets_the_count(self) -> None:
        policy = RespawnPolicy()
        for _ in range(3):
            for _ in range(9):
                assert policy.why_not_replaced("w", dead(), 1) is None
            assert policy.why_not_replaced("w", dead(was_of_use=True), 1) is None

    def test_not_if_it_ended_by_itself_while_it_started(self) -> None:
        process = dead(is_ready=False)
        assert RespawnPolicy().why_not_replaced("w", process, 0) == (
            "worker process w has ended with exit code 0 while it started: its error output says"
            " more"
        )
        process.has_begun = False
        why = RespawnPolicy().why_not_replaced("w", process, 1)
        assert why == (
            f"worker process w has ended with exit code 1 while it started{why_not_begun()}"
        )

    def test_if_it_ended_by_itself_later(self) -> None:
        assert RespawnPolicy().why_not_replaced("w", dead(), 0) is None

    @pytest.mark.parametrize("has_file", [True, False])
    def test_the_reason_names_the_guard_of_the_main_module(
        self, has_file: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        main = ModuleType("__main__")
        if has_file:
            main.__file__ = "program.py"
        monkeypatch.setitem(sys.modules, "__main__", main)
        why = why_not_begun()
        assert why.startswith(": its error output says more")
        assert ('if __name__ == "__main__":' in why) == has_file


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
@pytest.mark.parametrize(
    ("exitcode", "how"),
    [
        (0, "has ended with exit code 0"),
        (3, "has ended with exit code 3"),
        (-1, "was killed by SIGHUP"),
        (-9, "was killed by SIGKILL (out of memory?)"),
        (-11, "was killed by SIGSEGV"),
        (-999, "was killed by signal 999"),
    ],
)
def test_how_it_ended(exitcode: int, how: str) -> None:
    assert how_it_ended(exitcode) == how
