"""What the world does to a queue: threads that die, processes that fork or exit, memory that ends.

Each of them while others wait. Nothing is lost, nothing comes twice, and nobody waits for ever.
"""

from __future__ import annotations

import asyncio
import copy
import ctypes
import gc
import itertools
import pickle
import subprocess
import sys
import textwrap
import threading
import types
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aioqueue import QueueClosedError, QueueFull, sync
from aioqueue.core.storage import blocks, columns, padded, shelf
from tests.kit.children import complaints
from tests.kit.worlds import PATIENCE, AsyncioWorld, Kind, World, spin_until

ROOT = Path(__file__).parents[2]


def run_python(program: str, *, expect: int = 0) -> str:
    """Run a program in a process of its own; what it printed. Nothing may come on stderr."""
    ran = subprocess.run(
        [sys.executable, "-X", "dev", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=50,
    )
    assert (ran.returncode, complaints(ran.stderr)) == (expect, "")
    return ran.stdout


class Killed(BaseException):
    """What a thread is killed with."""


class Victim(threading.Thread):
    """A thread in a blocking call, which can be killed there."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.call = call
        self.got: Any = None
        self.died = False
        self.ready = threading.Event()
        self.start()
        self.ready.wait(PATIENCE)

    def run(self) -> None:
        try:
            self.ready.set()
            self.got = self.call()
        except Killed:
            self.died = True

    def kill(self) -> None:
        """Raise in it when it runs again: a sleeping thread is not interrupted."""
        assert self.ident is not None
        changed = ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(self.ident), ctypes.py_object(Killed)
        )
        assert changed == 1


class TestAThreadThatDies:
    def test_in_a_dequeue(self) -> None:
        """It is killed while it sleeps, and dies when it is woken, with its element."""
        queue = sync.FIFOQueue(4)
        victim = Victim(queue.dequeue)
        spin_until(lambda: queue.statistics().waiting_dequeues == 1)
        victim.kill()
        queue.enqueue("precious")
        victim.join(PATIENCE)
        assert victim.died or victim.got == "precious"
        assert victim.got == "precious" or queue.dequeue(timeout=PATIENCE) == "precious"
        assert queue.statistics().waiting_dequeues == 0

    def test_in_a_batch(self, kind: Kind) -> None:
        queue = kind.make(AsyncioWorld(), 8).sync
        victim = Victim(lambda: queue.dequeue_many(3))
        spin_until(lambda: queue.statistics().waiting_dequeues == 1)
        victim.kill()
        for number in range(3):
            queue.enqueue(kind.element(number))
        victim.join(PATIENCE)
        queue.close()
        rest = [kind.number(element) for element in queue]
        assert sorted(rest) == ([] if victim.got is not None else [0, 1, 2])

    def test_in_an_enqueue(self) -> None:
        queue = sync.FIFOQueue(1)
        queue.enqueue(0)
        victim = Victim(lambda: queue.enqueue(1))
        spin_until(lambda: queue.statistics().waiting_enqueues == 1)
        victim.kill()
        assert queue.dequeue() == 0
        victim.join(PATIENCE)
        queue.close()
        assert queue.statistics().waiting_enqueues == 0
        assert len(list(queue)) <= 1  # it was in already when the thread was woken, or never

    def test_again_and_again(self) -> None:
        """Threads are killed at any step of their calls: no one hangs, and nothing comes twice."""
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        gc.disable()  # in a finalizer that it calls, Python would swallow what is to kill
        try:
            queue = sync.FIFOQueue(2)
            seen: Counter[int] = Counter()

            def consume() -> None:
                while True:
                    seen.update([queue.dequeue()])

            victims = []
            for number in range(300):
                victim = Victim(consume)
                queue.enqueue(number, timeout=PATIENCE)
                victim.kill()
                victims.append(victim)
            more = itertools.count(300)
            for victim in victims:
                while victim.is_alive():
                    with suppress(QueueFull):
                        queue.enqueue_nowait(next(more))  # only one that wakes can die
                    victim.join(0.001)
            assert max(seen.values()) == 1
            assert all(victim.died for victim in victims)
            assert queue.statistics().waiting_dequeues == 0
            queue.close()
            seen.update(queue)
            assert max(seen.values()) == 1
        finally:
            gc.enable()
            sys.setswitchinterval(before)


class TestForks:
    PREAMBLE = """
    import os, sys, threading, warnings
    from aioqueue import sync
    warnings.simplefilter("ignore", DeprecationWarning)  # of threads and forks

    def forked(child):
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            try:
                child()
            finally:
                sys.stdout.flush()
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    """

    @pytest.mark.slow
    def test_while_others_wait(self) -> None:
        """The child is refused at once, whatever it tries; the parent goes on as if nothing was."""
        out = run_python(
            textwrap.dedent(self.PREAMBLE)
            + textwrap.dedent("""
            queue = sync.FIFOQueue(2, name="images")
            got = []
            consumers = [
                threading.Thread(target=lambda: got.append(queue.dequeue())) for _ in range(5)
            ]
            for consumer in consumers:
                consumer.start()
            while queue.statistics().waiting_dequeues < 5:
                pass

            def child():
                print(queue)
                for call in (lambda: queue.enqueue(1), queue.dequeue, queue.dequeue_nowait,
                             lambda: queue.dequeue_many(2), lambda: queue.enqueue_many([1]),
                             queue.close, queue.size, queue.statistics):
                    try:
                        call()
                    except RuntimeError as error:
                        assert "'images' belongs to the parent process" in str(error)
                        continue
                    print("not refused")
                own = sync.FIFOQueue(2)
                own.enqueue("a queue of its own works")
                print(own.dequeue())

            forked(child)
            queue.enqueue_many(range(5))
            for consumer in consumers:
                consumer.join()
            print(sorted(got))
            """)
        )
        assert out.splitlines() == [
            "<aioqueue.sync.FIFOQueue 'images' of another process>",
            "a queue of its own works",
            "[0, 1, 2, 3, 4]",
        ]

    @pytest.mark.slow
    def test_in_the_middle_of_others_moves(self) -> None:
        """Whatever the other threads hold at the moment of the fork."""
        out = run_python(
            textwrap.dedent(self.PREAMBLE)
            + textwrap.dedent("""
            sys.setswitchinterval(1e-6)
            queue = sync.FIFOQueue(3)
            seen = []

            def produce():
                for number in range(20_000):
                    queue.enqueue(number)
                queue.close()

            def child():
                try:
                    queue.dequeue()
                except RuntimeError:
                    return
                print("not refused")

            producer = threading.Thread(target=produce)
            consumer = threading.Thread(target=lambda: seen.extend(queue))
            producer.start()
            consumer.start()
            forks = 0
            while producer.is_alive() and forks < 40:
                forked(child)
                forks += 1
            producer.join()
            consumer.join()
            print(seen == list(range(20_000)), forks > 0)
            """)
        )
        assert out.split() == ["True", "True"]


class TestExit:
    @pytest.mark.slow
    def test_with_workers_blocked(self) -> None:
        """Workers of a coordinator are daemons: a script that forgets to stop them still ends."""
        out = run_python("""
        from aioqueue import sync
        full, empty = sync.FIFOQueue(1), sync.FIFOQueue(1)
        coord = sync.Coordinator()
        coord.start(sync.QueueRunner(full, [lambda: full.enqueue(1)] * 3))
        coord.start(sync.QueueRunner(empty, [lambda: empty.enqueue(empty.dequeue())] * 3))
        while full.statistics().waiting_enqueues < 3 or empty.statistics().waiting_dequeues < 3:
            pass
        print("left")
        """)
        assert out == "left\n"

    @pytest.mark.slow
    def test_with_tasks_blocked(self) -> None:
        """`asyncio.run` cancels them when main returns."""
        out = run_python("""
        import asyncio, aioqueue
        queue = aioqueue.FIFOQueue(1)

        async def main():
            tasks = [asyncio.create_task(queue.dequeue()) for _ in range(5)]
            while queue.statistics().waiting_dequeues < 5:
                await asyncio.sleep(0)
            print("left")

        asyncio.run(main())
        print(queue.statistics().waiting_dequeues)
        """)
        assert out.split() == ["left", "0"]

    @pytest.mark.slow
    def test_with_an_exception(self) -> None:
        """Out of a `with` block: the workers are stopped, and the failure is what is seen."""
        ran = subprocess.run(
            [
                sys.executable,
                "-c",
                "from aioqueue import sync\n"
                "queue = sync.FIFOQueue(1)\n"
                "with sync.Coordinator() as coord:\n"
                "    coord.start(sync.QueueRunner(queue, [lambda: queue.enqueue(1)] * 3))\n"
                "    raise OSError('disk on fire')\n",
            ],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            timeout=50,
        )
        assert ran.returncode == 1
        assert "OSError: disk on fire" in ran.stderr
        assert "the block of the coordinator failed: OSError: disk on fire" in ran.stderr


class NoMemory:
    """Stands in for NumPy in a module, and lets the n-th allocation fail."""

    def __init__(self, fails_at: int) -> None:
        self.left = fails_at

    def __getattr__(self, name: str) -> Any:
        there = getattr(np, name)
        if name not in {"empty", "concatenate", "zeros", "stack"}:
            return there

        def allocate(*args: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise MemoryError("no room for an array")
            return there(*args, **options)

        return allocate


@pytest.mark.parametrize("fails_at", [1, 2, 3])
@pytest.mark.parametrize("waits", [False, True])
async def test_memory_ends_in_a_batch(
    world: World, kind: Kind, monkeypatch: pytest.MonkeyPatch, fails_at: int, waits: bool
) -> None:
    """The call that copies raises it, and everything is still there for the next one."""
    queue = kind.make(world, 8)
    taking = None
    for number in range(4 if waits else 6):
        await queue.enqueue(kind.element(number))
    if waits:
        taking = await world.begin(queue.dequeue_many, 6)
    with monkeypatch.context() as patched:
        for module in (blocks, columns, padded, shelf):
            patched.setattr(module, "np", NoMemory(fails_at), raising=False)
        putting_failed = failed = False
        try:
            if waits:
                await queue.enqueue_many(kind.batch([4, 5]))
        except MemoryError:
            putting_failed = True
        try:
            if taking is None:
                await queue.dequeue_many(6)
            elif not putting_failed:
                await taking.result()
        except MemoryError:
            failed = True
    if putting_failed:
        assert taking is not None
        assert queue.statistics().enqueued == 4
        await queue.enqueue_many(kind.batch([4, 5]))
        await taking.result()
    rest = await kind.drain(queue)
    assert sorted(rest) == (list(range(6)) if failed else [])


class Evil:
    """An object whose conversion to an array does what it should not."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self.act = act

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return np.asarray(self.act(), dtype)


class TestConversions:
    async def test_that_raises(self, world: World) -> None:
        queue = world.fifo(4, "float32", (2,))

        def fail() -> None:
            raise OSError("cannot read")

        with pytest.raises(Exception, match="cannot read"):
            await queue.enqueue(Evil(fail))
        with pytest.raises(Exception, match="cannot read"):
            await queue.enqueue_many(Evil(fail))
        assert queue.statistics().enqueued == 0
        await queue.enqueue([1, 2])
        assert (await queue.dequeue()).tolist() == [1, 2]

    async def test_that_calls_the_queue(self, world: World) -> None:
        """It is converted before the queue is entered, so that is no different from any call."""
        queue = world.fifo(4, "float32", (2,))

        def use() -> list[int]:
            queue.enqueue_nowait([1, 2])
            return [3, 4]

        await queue.enqueue(Evil(use))
        assert (await queue.dequeue_many(2)).tolist() == [[1, 2], [3, 4]]

    async def test_that_closes_the_queue(self, world: World) -> None:
        queue = world.fifo(4, "float32", (2,))

        def close() -> list[int]:
            queue.close()
            return [3, 4]

        with pytest.raises(QueueClosedError):
            await queue.enqueue(Evil(close))
        assert queue.size() == 0


class TestMutation:
    async def test_of_what_was_put_in(self, world: World, kind: Kind) -> None:
        """A producer may reuse its arrays after the call has returned."""
        queue = kind.make(world)
        batch = kind.batch([1, 2, 3])
        await queue.enqueue_many(batch)
        for column in batch if isinstance(batch, tuple) else (batch,):
            column[:] = -1
        assert sorted(await kind.drain(queue)) == [1, 2, 3]

    async def test_of_what_came_out(self, world: World) -> None:
        queue = world.fifo(4, "float32", (2,))
        await queue.enqueue_many([[1, 2], [3, 4]])
        first = await queue.dequeue()
        first[:] = -1
        assert (await queue.dequeue()).tolist() == [3, 4]


@pytest.mark.parametrize("face", ["aio", "sync"])
@pytest.mark.parametrize("how", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_queue_stays_where_it_is(face: str, how: Callable[[Any], Any]) -> None:
    queue = getattr(sync.FIFOQueue(1, name="images"), face)
    with pytest.raises(TypeError, match=r"'images' cannot be pickled or copied"):
        how(queue)


def test_trio_is_being_imported_by_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module is in ``sys.modules`` before it has anything in it."""
    monkeypatch.setitem(sys.modules, "trio", types.ModuleType("trio"))
    queue = sync.FIFOQueue(1)
    with pytest.raises(TimeoutError):
        queue.dequeue(timeout=0)

    async def both() -> None:
        await queue.aio.enqueue(1)
        assert await queue.aio.dequeue() == 1
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(queue.aio.dequeue())
            group.create_task(queue.aio.enqueue(2))
        assert waiting.result() == 2

    asyncio.run(both())
    with pytest.raises(ExceptionGroup, match="failed: OSError"), sync.Coordinator() as coord:
        coord.request_stop(OSError("a failure"))
