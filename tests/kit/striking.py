"""A signal handler that raises, at each place of a call in turn where Python may run one.

Those places are few: where a function written in Python begins, when a call has returned, and where
a loop goes round (see `aioqueue.system.locks`). So a call can be struck at every one of them,
exactly once each, where signals at random moments would hit the few that matter hardly ever.
"""

from __future__ import annotations

import opcode
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import aioqueue

PACKAGE = str(Path(aioqueue.__file__).parent)
CALLS = ("CALL", "CALL_FUNCTION_EX", "CALL_KW")


class InjectedError(BaseException):
    """What the handler raises."""


class Striker:
    """Raises at one place of what it traces.

    Args:
        place: how many places are passed by first.
    """

    def __init__(self, place: int) -> None:
        self.left = place
        self.last: dict[FrameType, str] = {}
        self.was_injected = False

    def run(self, call: Callable[[], Any]) -> bool:
        """Make a call; return whether it has that many interruptible places."""
        before = sys.gettrace()
        try:
            sys.settrace(self.enter)
            call()
        except InjectedError:
            pass
        finally:
            sys.settrace(before)
        return self.was_injected

    def enter(self, frame: FrameType, event: str, arg: object) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace = self.step  # first: since CPython 3.13, opcodes of a frame without are not
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self.inject()
        return self.step

    def step(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode":
            last = self.last.get(frame, "")
            self.last[frame] = opcode.opname[frame.f_code.co_code[frame.f_lasti]]
            if last in CALLS or last.startswith("JUMP_BACKWARD"):
                self.inject()
        elif event in ("return", "exception"):  # of a call that raises, no handler runs behind
            self.last.pop(frame, None)
        return self.step

    def inject(self) -> None:
        self.left -= 1
        if self.left == -1:
            self.was_injected = True
            raise InjectedError


def interrupted_everywhere(case: Callable[[], tuple[Callable[[], Any], Callable[[], None]]]) -> int:
    """Strike a call at each of its places, each time in a fresh case.

    Args:
        case: makes what is to be struck, and what is to be checked afterwards.

    Returns:
        How many places there are.
    """
    place = 0
    while True:
        call, check = case()
        if not Striker(place).run(call):
            return place
        check()
        place += 1
