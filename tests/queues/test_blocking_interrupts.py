"""Ctrl-C again and again, at random moments of blocking calls in the main thread.

Python may raise between any two of its steps, so one call cannot be all or nothing there (see
`docs/cancellation.md`). What must hold: the queue stays usable, nobody is left asleep, and the
order is kept.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
INTERRUPTS = 1500

HEAD = f"""
import json, random, signal, threading
from aioqueue import QueueClosedError, sync

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
rng = random.Random(1)
queue = sync.FIFOQueue(5)

def again_and_again(step):
    for _ in range({INTERRUPTS}):
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-5 + rng.random() * 8e-4)
            while True:
                step()
        except KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, 0)
"""

ENQUEUE = """
numbers, received = iter(range(10**9)), []
thread = threading.Thread(target=lambda: received.extend(queue))
thread.start()
again_and_again(lambda: queue.enqueue(next(numbers)))
queue.close()
thread.join()
print(json.dumps({"in order": received == sorted(received), "some": len(received) > 0}))
"""

DEQUEUE = """
received = []

def produce():
    try:
        for number in range(10**9):
            queue.enqueue(number)
    except QueueClosedError:
        pass

thread = threading.Thread(target=produce)
thread.start()
again_and_again(lambda: received.append(queue.dequeue()))
queue.close(cancel_pending_enqueues=True)
thread.join()
received += queue
print(json.dumps({"in order": received == sorted(received), "some": len(received) > 0}))
"""


def outcome(program: str) -> dict[str, Any]:
    ran = subprocess.run(
        [sys.executable, "-c", HEAD + program],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=50,
    )
    assert ran.returncode == 0, ran.stderr
    reported: dict[str, Any] = json.loads(ran.stdout)
    return reported


needs_timer = pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="this system has no interval timer to interrupt with"
)


@pytest.mark.slow
@needs_timer
def test_a_producer_that_is_interrupted() -> None:
    assert outcome(ENQUEUE) == {"in order": True, "some": True}


@needs_timer
def test_a_consumer_that_is_interrupted() -> None:
    assert outcome(DEQUEUE) == {"in order": True, "some": True}
