"""An actor, its node or its result is lost at each call and reply in turn.

The executor is the library's own, and so is what runs in the actors; these are threads here, and
no cluster is needed. What is made is what threads make, digest by digest, in the same order.

The long form loses two in a run, at all pairs of moments::

    python -m tests.workers.ray.test_ray_every_call
"""

from __future__ import annotations

import itertools
import os
import pickle
import queue
import threading
import traceback
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aioqueue import WorkerDiedError, sync
from aioqueue.inputs import numbers, prepare
from aioqueue.workers.executors import ray, ray_actor

COUNT, LIMIT = 12, 3
"""How many items there are, and how many are in flight: so there are four chunks at least."""


class ActorError(Exception):
    """An actor is dead, in the words of Ray's errors."""


class ObjectError(Exception):
    """The result of an actor is lost, and the actor lives."""


class TaskError(Exception):
    """A call has failed, in Ray's form: in colours, with the whole traceback."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"\x1b[36mray::prepare()\x1b[39m\nFile actors.py, line 1\n{cause!r}")
        self.cause = cause


LOSSES: Mapping[str, Exception] = {
    "actor": ActorError("its worker process has died"),
    "node": ActorError("its node has died"),
    "object": ObjectError("lost"),
}


class Cluster:
    """A place for actors.

    Args:
        losses_at: what is lost at which moment; the first one is 1.

    Attributes:
        moments: how many there have been.
        losses: how many of them were losses.
        is_connected: whether this program is, to it.
        session: by which connection.
        is_silent: whether it answers nothing.
    """

    def __init__(self, losses_at: Mapping[int, Exception]) -> None:
        self._losses_at = losses_at
        self._lock = threading.Lock()
        self.moments = self.losses = 0
        self.is_connected = True
        self.session = 0
        self.is_silent = False
        self.actors: list[Actor] = []
        self.cloudpickle = pickle

    def loss_now(self) -> Exception | None:
        """Count a call or reply; return what is lost at this moment, if anything."""
        with self._lock:
            self.moments += 1
            loss = self._losses_at.get(self.moments)
            self.losses += loss is not None
            return loss

    # What the executor asks of Ray.

    def put(self, value: bytes) -> bytes:
        """Put a value into the object store."""
        return value

    def options(self, **_: Any) -> Cluster:
        """Take the options of an actor."""
        return self

    def remote(self, payload: bytes) -> Actor:
        """Start an actor."""
        self.actors.append(Actor(self, ray_actor.ItemActor(payload)))
        return self.actors[-1]

    def kill(self, actor: Actor) -> None:
        """End an actor."""
        actor.die(LOSSES["actor"])


class Actor:
    """An actor in a thread, and Ray's handle of it."""

    def __init__(self, cluster: Cluster, made: ray_actor.ItemActor) -> None:
        self._cluster, self._made = cluster, made
        self._calls: queue.SimpleQueue[tuple[str, tuple[Any, ...], Future[Any]] | None] = (
            queue.SimpleQueue()
        )
        self._lock = threading.Lock()
        self._unanswered: list[Future[Any]] = []
        self._death: Exception | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=partial(self._call, method))

    def _call(self, method: str, *arguments: Any) -> Any:
        future: Future[Any] = Future()
        loss = self._cluster.loss_now()
        if loss is not None:
            self._lose(loss, future)
        with self._lock:
            if self._death is not None and not future.done():
                future.set_exception(self._death)
            self._unanswered.append(future)
        self._calls.put((method, arguments, future))
        return SimpleNamespace(future=lambda: future)

    def _lose(self, loss: Exception, future: Future[Any]) -> None:
        if isinstance(loss, ActorError):
            self.die(loss)
        self._answer(future, None, loss)

    def die(self, death: Exception) -> None:
        """End, and answer no call any more."""
        with self._lock:
            self._death = self._death or death
            unanswered, self._unanswered = self._unanswered, []
        for future in unanswered:
            self._answer(future, None, death)
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            method, arguments, future = call
            answer = getattr(self._made, method)(*arguments)
            loss = self._cluster.loss_now()
            if loss is not None:
                self._lose(loss, future)
            else:
                try:
                    self._answer(future, pickle.loads(pickle.dumps(answer)), None)
                except Exception as error:
                    self._answer(future, None, TaskError(error))

    def _answer(self, future: Future[Any], answer: Any, error: Exception | None) -> None:
        with self._lock:
            if future.done() or self._cluster.is_silent:
                return
            if future in self._unanswered:
                self._unanswered.remove(future)
            if error is None:
                future.set_result(answer)
            else:
                future.set_exception(error)


def noise(number: int, rng: np.random.Generator) -> tuple[int, bytes]:
    return number, rng.bytes(8)


def made(where: Any, *, ordered: bool) -> list[Any]:
    """Return all results."""
    into = sync.FIFOQueue(4)
    with sync.Coordinator() as coord:
        source = numbers(COUNT, epochs=1, seed=5)
        options: Any = {"ordered": ordered, "workers": 2, "max_in_flight": LIMIT}
        coord.start(prepare(source, noise, into=into, where=where, **options))
        return list(into.batches(1))
    raise AssertionError("unreachable")


@contextmanager
def in_place_of_ray(cluster: Cluster) -> Iterator[None]:
    """Actors are threads here, until the end of the block."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name, stand_in in (
            ("required_ray", lambda: cluster),
            ("connected", lambda: cluster if cluster.is_connected else None),
            ("remote_class", lambda: cluster),
            ("session_of", lambda cluster: cluster.session),
            ("is_loss", lambda error: isinstance(error, ActorError | ObjectError)),
            ("is_own_death", lambda error: error is LOSSES["actor"]),
        ):
            monkeypatch.setattr(ray, name, stand_in)
        monkeypatch.setattr(ray_actor, "_cloudpickle", lambda: pickle)
        yield
    for actor in cluster.actors:
        actor.thread.join()


def run(losses_at: Mapping[int, Exception], *, ordered: bool = True) -> tuple[list[Any], Cluster]:
    """Return the results of actors with these losses."""
    cluster = Cluster(losses_at)
    with in_place_of_ray(cluster):
        found = made("ray", ordered=ordered)
    return found, cluster


def each_moment(loss: str, *, ordered: bool) -> Iterator[tuple[list[Any], int]]:
    """Yield the results and the number of losses, for a loss at each moment of a run."""
    for moment in itertools.count(1):
        found, cluster = run({moment: LOSSES[loss]}, ordered=ordered)
        yield found, cluster.losses
        if not cluster.losses:
            return


@pytest.mark.parametrize(
    ("loss", "ordered"), [("actor", True), ("actor", False), ("node", True), ("object", False)]
)
def test_each_item_arrives_once_whatever_is_lost_when(loss: str, ordered: bool) -> None:
    local = made("thread", ordered=True)
    losses = 0
    for found, lost in each_moment(loss, ordered=ordered):
        assert (found if ordered else sorted(found)) == local
        losses += lost
    assert losses >= 10  # else there was nothing to lose


def locked(number: int) -> Any:
    return threading.Lock() if number == 5 else number


def test_the_error_for_a_result_that_cannot_be_sent_names_the_queue() -> None:
    into = sync.FIFOQueue(4, name="images")
    with (
        in_place_of_ray(Cluster({})),
        pytest.raises(ExceptionGroup) as caught,
        sync.Coordinator() as coord,
    ):
        source = numbers(COUNT, epochs=1)
        coord.start(prepare(source, locked, into=into, where="ray", workers=1))
        for _ in into.batches(1):
            pass
    (error,) = caught.value.exceptions
    assert isinstance(error, TypeError)
    assert "got 'locked' for 'images', whose result cannot be pickled" in str(error)
    assert "while preparing item 5 (epoch 0, index 5)" in error.__notes__
    assert "\x1b" not in "".join(traceback.format_exception(error))


class CutOff(Cluster):
    """A cluster whose connection ends at a moment, at which all actors die."""

    def loss_now(self) -> Exception | None:
        loss = super().loss_now()
        if loss is not None:
            self.end()
        return loss

    def end(self) -> None:
        """End the connection."""
        self.is_connected = False
        for actor in list(self.actors):
            actor.die(LOSSES["actor"])


class Renewed(CutOff):
    """One to which there is another connection from a moment on: what was asked by the one before
    is not answered."""

    def loss_now(self) -> Exception | None:
        if Cluster.loss_now(self) is not None:
            self.session, self.is_silent = 1, True
        return None


@pytest.mark.parametrize("kind", [CutOff, Renewed])
def test_a_connection_that_ends_at_any_moment_raises_an_error(
    kind: type[CutOff], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "_CONNECTION_SECONDS", 0.01)
    for moment in itertools.count(1):
        cluster = kind({moment: LOSSES["actor"]})
        with in_place_of_ray(cluster):
            reported: tuple[BaseException, ...] = ()
            try:
                found = made("ray", ordered=True)
            except ExceptionGroup as group:
                reported = group.exceptions
            finally:
                cluster.end()
        if not cluster.losses:
            assert found == made("thread", ordered=True)
            return
        assert [type(error) for error in reported] == [WorkerDiedError] * len(reported), reported
        assert all("ray.shutdown() was called" in str(error) for error in reported)
        assert reported or len(found) == COUNT  # all of it had come


asked, begun, may_end = threading.Event(), threading.Event(), threading.Event()


def held(number: int) -> int:
    begun.set()
    may_end.wait()
    return number


class BeginsWhenAsked(Actor):
    """An actor that begins once `doing` is called, and answers that when it has an item."""

    def _call(self, method: str, *arguments: Any) -> Any:
        if method != "doing":
            return super()._call(method, *arguments)
        asked.set()
        begun.wait()
        future: Future[Any] = Future()
        future.set_result(self._made.doing())
        return SimpleNamespace(future=lambda: future)


class LateItemActor(ray_actor.ItemActor):
    def place(self) -> str:
        asked.wait()
        return super().place()


class LateCluster(Cluster):
    def remote(self, payload: bytes) -> Actor:
        self.actors.append(BeginsWhenAsked(self, LateItemActor(payload)))
        return self.actors[-1]


def test_an_actor_that_begins_while_it_is_explained_is_named_by_its_place() -> None:
    for event in (asked, begun, may_end):
        event.clear()
    cluster = LateCluster({})
    with in_place_of_ray(cluster), sync.Coordinator() as coord:
        into = sync.FIFOQueue(4)
        coord.start(prepare(numbers(1, epochs=1), held, into=into, where="ray", workers=1))
        while not asked.is_set():
            explanation = str(coord.explain())
        may_end.set()
        assert list(into.batches(1))
    assert "may_end.wait()" in explanation
    assert f"Ray actor (pid {os.getpid()} on " in explanation


if __name__ == "__main__":
    local, runs = made("thread", ordered=True), 0
    for first in itertools.count(1):
        for second in itertools.count(first + 1):
            for one, other in itertools.product(LOSSES.values(), repeat=2):
                found, cluster = run({first: one, second: other})
                assert found == local, (first, second, one, other)
                runs += 1
            if cluster.losses < 2:
                break
        if cluster.losses < 1:
            break
    print(f"{runs:,} runs with two losses: all the same as on threads")
