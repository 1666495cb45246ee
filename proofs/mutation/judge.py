"""Collects all tests once, and then judges mutants, each in a fork of its own.

Run by `proofs.mutation` as ``python -m proofs.mutation.judge REQUESTS ANSWERS ARGUMENT ...``, in a
copy of the tree: a mutant is also written there, for the processes that tests start. The first two
arguments are open files, by number, where both sides send one line of JSON at a time; the others
are those of pytest.
"""

from __future__ import annotations

import builtins
import faulthandler
import gc
import importlib
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from proofs.mutation.mutants import PROBE, Source, codes

__all__ = ("Judge",)

KILLED, SURVIVED = 1, 0
DONE_SECONDS = 0.005


def functions_of_heap() -> dict[tuple[str, str, int], list[FunctionType]]:
    """Find all functions that there are, by file, qualified name and line."""
    gc.unfreeze()  # what the tests' own conftest has frozen would be left out
    gc.collect()
    found: dict[tuple[str, str, int], list[FunctionType]] = {}
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType):
            code = thing.__code__
            key = (code.co_filename, code.co_qualname, code.co_firstlineno)
            found.setdefault(key, []).append(thing)
    return found


class Judge:
    """A plugin for pytest, in the place of its loop over the tests.

    Args:
        requests: what to do, line by line.
        answers: where to say what came of it.
    """

    def __init__(self, requests: int, answers: int) -> None:
        self._requests = requests
        self._answers = answers
        self._failed = False
        self._nowhere = open(os.devnull, "wb")  # noqa: SIM115 - for as long as the process lives
        self._items: dict[str, pytest.Item] = {}
        self._sources: dict[str, Source] = {}
        self._probed: dict[str, CodeType] = {}
        self._functions: dict[tuple[str, str, int], list[FunctionType]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Answer requests until there are no more."""
        if session.testsfailed:
            raise session.Interrupted("some tests could not be collected")
        self._items = {item.nodeid: item for item in session.items}
        with open(self._requests) as requests:
            for line in requests:
                answer = self._answered(json.loads(line))
                os.write(self._answers, json.dumps(answer).encode() + b"\n")
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what fails."""
        self._failed |= report.failed

    def _answered(self, request: dict[str, Any]) -> Any:
        if request["do"] == "collect":
            self._find_functions(request["paths"])
            return None
        if request["do"] == "names":
            return list(self._items)
        if request["do"] == "map":
            path = Path(request["answer"])
            self._probe(request["paths"])
            if self._in_fork(lambda: self._map(request, path), request["limit"]) is None:
                raise TimeoutError(f"the tests took longer than {request['limit']} s to map")
            return json.loads(path.read_text())
        source = self._source(request["path"])
        mutant = source.mutants[request["mutant"]]
        code, text = source.mutated(mutant)
        before = Path(source.path).read_bytes()
        began = time.monotonic()
        try:
            Path(source.path).write_text(text)
            killer = self._killer(source, code, request["tests"], Path(request["answer"]))
        finally:
            Path(source.path).write_bytes(before)
        outcome = "killed" if killer else "survived"
        return {"outcome": outcome, "by": killer, "seconds": time.monotonic() - began}

    def _killer(self, source: Source, code: CodeType, tests: dict[str, float], answer: Path) -> str:
        """The first test that fails, or hangs, each time; empty if there is none."""
        while tests:
            killer = self._first_to_fail(source, code, tests, answer)
            alone = {killer: tests[killer]} if killer else {}
            if not alone or self._first_to_fail(source, code, alone, answer):
                return killer
            names = list(tests)
            tests = {name: tests[name] for name in names[names.index(killer) + 1 :]}
        return ""

    def _first_to_fail(
        self, source: Source, code: CodeType, tests: dict[str, float], answer: Path
    ) -> str:
        answer.write_text("")
        limit = sum(tests.values())
        status = self._in_fork(lambda: self._run(source, code, tests, answer), limit)
        return "" if status == SURVIVED else answer.read_text()

    def _source(self, path: str) -> Source:
        if path not in self._sources:
            full = str(Path(path).resolve())
            self._sources[path] = Source(Path(path).read_text(), path, full)
        return self._sources[path]

    def _find_functions(self, paths: list[str]) -> None:
        for path in paths:  # some are imported late
            name = path.removesuffix(".py").removesuffix("/__init__")
            importlib.import_module(name.replace("/", "."))
        self._functions = functions_of_heap()
        gc.freeze()

    def _exchange(self, source: Source, code: CodeType) -> None:
        """Let all functions of a source run other code."""
        for (name, line), new in codes(code).items():
            if new != source.codes.get((name, line)):
                for function in self._functions.get((source.path, name, line), []):
                    function.__code__ = new

    def _in_fork(self, call: Any, limit: float) -> int | None:
        """The exit status of a call in a fork; none, if it took longer than the limit."""
        pid = os.fork()
        if not pid:
            status = KILLED
            try:
                os.setsid()
                status = call()
            except BaseException as error:
                print(repr(error), file=sys.__stderr__)
            finally:
                os._exit(status)
        deadline, status_of_child = time.monotonic() + limit, None
        while time.monotonic() < deadline:
            ended, raw = os.waitpid(pid, os.WNOHANG)
            if ended:
                status_of_child = os.waitstatus_to_exitcode(raw)
                break
            time.sleep(DONE_SECONDS)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        if status_of_child is None:
            os.waitpid(pid, 0)
        return status_of_child

    def _run(self, source: Source, code: CodeType, tests: dict[str, float], answer: Path) -> int:
        """Run tests, each with its limit in seconds, until the first that fails or hangs."""
        self._exchange(source, code)
        items = [self._items[name] for name in tests]
        for item, following in zip(items, [*items[1:], None], strict=True):
            answer.write_text(item.nodeid)  # should it never come back
            faulthandler.dump_traceback_later(tests[item.nodeid], exit=True, file=self._nowhere)
            self._run_one(item, following)
            if self._failed:
                return KILLED
        answer.write_text("")
        return SURVIVED

    def _run_one(self, item: pytest.Item, following: pytest.Item | None) -> None:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    def _probe(self, paths: list[str]) -> None:
        """Compile all sources with a probe at each statement, once."""
        first = 0
        for path in paths if not self._probed else ():
            source = self._source(path)
            self._probed[path] = source.probed(first)
            first += len(source.statements)

    def _map(self, request: dict[str, Any], answer: Path) -> int:
        """Note which test reaches which statement, how long it takes, and whether it fails."""
        for path, code in self._probed.items():
            self._exchange(self._source(path), code)
        noted = bytearray(sum(len(self._source(path).statements) for path in self._probed))
        setattr(builtins, PROBE, noted)
        result: dict[str, Any] = {}
        items = [self._items[name] for name in request["tests"]]
        for item, following in zip(items, [*items[1:], None], strict=True):
            noted[:] = bytes(len(noted))
            self._failed = False
            began = time.monotonic()
            self._run_one(item, following)
            result[item.nodeid] = {
                "seconds": time.monotonic() - began,
                "failed": self._failed,
                "reached": [number for number, value in enumerate(noted) if value],
            }
        answer.write_text(json.dumps(result))
        return SURVIVED


if __name__ == "__main__":
    requests, answers, *arguments = sys.argv[1:]
    sys.exit(pytest.main(arguments, plugins=[Judge(int(requests), int(answers))]))
