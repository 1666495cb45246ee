"""What users of a `RolloutQueue` get: rollouts, groups and batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, Self, TypeAlias, TypeVar

from aioqueue.base.arguments import checked_count
from aioqueue.base.hints import hint_attributes
from aioqueue.base.public_names import public
from aioqueue.errors import InvalidArgumentError, counted
from aioqueue.items.value_text import short_value
from aioqueue.worlds.current import current_waker

if TYPE_CHECKING:
    from aioqueue.rl.machine import RolloutCall
    from aioqueue.worlds.scopes import Gate

P = TypeVar("P")
R = TypeVar("R")


class Reports(Protocol):
    """What rollouts and batches report to their queue.

    Attributes:
        publication_over: open while no weights are published.
    """

    publication_over: Gate

    @property
    def version(self) -> int:
        """How many steps the published weights contain."""

    def freeze(self, call: RolloutCall) -> None:
        """Report that a rollout does not grow old."""

    def parks(self, call: RolloutCall) -> bool:
        """Report that a call is at a safe point; return whether it waits there."""

    def unpark(self, call: RolloutCall) -> None:
        """Report that it no longer waits."""


class StepReports(Protocol):
    """What batches report to their queue, which may be in another process."""

    def part_done(self, step: Step, part: Part) -> None:
        """Report that a part of a step, or the whole, was trained."""

    def give_back(self, step: Step) -> None:
        """Report that a step was not trained."""

    def sent_step(self, step: Step) -> object:
        """Return what becomes the step in another process, as part of a pickled batch; ``None`` if
        the queue is not shared."""


Part: TypeAlias = tuple[tuple[int, int], ...]
"""A part of a batch: the index of the part, and how many there are, for each `Batch.split`."""


@hint_attributes("a Rollout")
@public("aioqueue.rl")
class Rollout(Generic[R]):
    """One sample for a prompt: one call of your ``generate`` function, and later its result.

    Attributes:
        ordinal: the place of the prompt in the source, from 0; in an evaluation, the place among
            its prompts.
        index: the number of the rollout in its group, from 0.
        attempt: 1, and one more after each failure.
        version: how many steps the weights contained when this attempt began.
        result: what your function has returned; ``None`` until then.
    """

    __slots__ = (
        "_call",
        "_core",
        "_seed",
        "_spans",
        "attempt",
        "index",
        "ordinal",
        "result",
        "version",
    )

    ordinal: int
    index: int
    attempt: int
    version: int
    result: R

    def __init__(self, core: Reports, call: RolloutCall, seed: int) -> None:
        self._core: Reports | None = core
        self._call: RolloutCall | None = call
        self._seed = seed
        self._spans: list[tuple[int, int]] | None = None
        evaluation = call.group.payload.evaluation
        self.ordinal = call.group.ordinal if evaluation is None else evaluation.number
        self.index = call.index
        self.attempt = call.attempt
        self.version = call.version
        self.result = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        again = f", attempt {self.attempt}" if self.attempt > 1 else ""
        which = f"{self.index} of prompt {self.ordinal}{again}"
        return f"<aioqueue.rl.Rollout {which}, version {self.version}>"

    @property
    def seed(self) -> int:
        """A seed for its sampling: ``0 <= seed < 2**63``.

        It depends on the queue's seed, the ordinal and the index alone: not on the attempt, the
        worker or the time.
        """
        text = f"{self._seed}/{self.ordinal}/{self.index}".encode()
        return int.from_bytes(blake2b(text, digest_size=8).digest(), "big") >> 1

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """What `mark` has noted: ``(version, n_tokens)``, in order; empty if it was not called."""
        return () if self._spans is None else tuple(self._spans)

    def mark(self, n_tokens: int, *, version: int | None = None) -> None:
        """Note that so many tokens more were generated, with the weights that are published now.

        Call it after each part of a sample that may go on across publications. A loss with
        importance weights needs to know which weights have generated which token.

        Args:
            n_tokens: how many tokens were generated since the last call.
            version: how many steps the weights that generated them contained, for a client whose
                engine reports that; ``None`` takes the version that is published now. While weights
                are published, that is still the version before.

        Raises:
            InvalidArgumentError: one of them is not an int >= 0.
        """
        n = checked_count(n_tokens, "n_tokens")
        if version is not None:
            version = checked_count(version, "version")
        else:
            version = self.version if self._core is None else self._core.version
        spans = self._spans
        if spans is None:
            spans = self._spans = []
        if spans and spans[-1][0] == version:
            spans[-1] = (version, spans[-1][1] + n)
        else:
            spans.append((version, n))

    def frozen(self) -> None:
        """Note that this sample is of weights that are never published, those of a reference say.

        It does not grow old: ``max_staleness`` and the staleness of its group leave it out.
        """
        if self._core is not None and self._call is not None:
            self._core.freeze(self._call)

    async def safe_point(self) -> None:
        """Let a publication take place here, between two turns of an agent say.

        While weights are published, the call waits for the end of that. A publication with
        ``drain="safe"`` waits until each rollout in flight is at such a point, or has ended. If a
        publication waits for the ends of rollouts (``drain=True``), the call returns at once.

        Cancellation:
            A cancelled call has changed nothing.
        """
        core, call = self._core, self._call
        if core is None or call is None or not core.parks(call):
            return
        try:
            await core.publication_over.wait(current_waker())
        finally:
            core.unpark(call)

    def _end(self) -> None:
        """Forget the call: what is left is the result."""
        self._core = self._call = None

    def __getstate__(self) -> tuple[Any, ...]:
        return (
            *(self.ordinal, self.index, self.attempt, self.version),
            *(self.result, self._seed, self._spans),
        )

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.ordinal, self.index, self.attempt, self.version = state[:4]
        self.result, self._seed, self._spans = state[4:]
        self._core = self._call = None


class ThreadRollout(Rollout[R]):
    """The same for a plain function, which runs on a thread."""

    __slots__ = ()

    def safe_point(self) -> None:  # type: ignore[override]
        """Let a publication take place here: see `Rollout.safe_point`. It blocks the thread."""
        core, call = self._core, self._call
        if core is None or call is None or not core.parks(call):
            return
        try:
            core.publication_over.wait_blocking()
        finally:
            core.unpark(call)


@hint_attributes("a Group")
@public("aioqueue.rl")
class Group(Generic[P, R]):
    """All rollouts of one prompt: what is accepted, and trained, as a whole.

    Attributes:
        prompt: the prompt.
        ordinal: its place in the source, from 0.
        rollouts: in the order of their indices. With ``on_error="partial"``, those that have failed
            are missing.
        version: how many steps the weights contained when the first of its rollouts started.
        staleness: the number of the step that trains it, minus the version; before it is in a
            batch, what that would be in the next one. Frozen rollouts are left out.
        info: yours: ``accept`` may put rewards and advantages here.
    """

    __slots__ = ("info", "ordinal", "prompt", "rollouts", "staleness", "version")

    def __init__(
        self,
        prompt: P,
        ordinal: int,
        rollouts: tuple[Rollout[R], ...],
        version: int,
        staleness: int,
    ) -> None:
        self.prompt: P = prompt
        self.ordinal: int = ordinal
        self.rollouts: tuple[Rollout[R], ...] = rollouts
        self.version: int = version
        self.staleness: int = staleness
        self.info: dict[str, Any] = {}

    def __repr__(self) -> str:
        return (
            f"<aioqueue.rl.Group {self.ordinal} of {short_value(self.prompt)},"
            f" {counted(len(self.rollouts), 'rollout')}, staleness {self.staleness}>"
        )


class Step:
    """A step that a trainer has, and may have split.

    Attributes:
        core: the queue.
        number: the number of the step.
        grant: distinguishes it from all steps that were handed out, also of the same number.
    """

    __slots__ = ("_ended", "core", "grant", "number")

    def __init__(self, core: StepReports, number: int, grant: int) -> None:
        self.core: StepReports = core
        self.number: int = number
        self.grant: int = grant
        self._ended: set[Part] = set()

    def end_part(self, part: Part) -> bool:
        """Note that a part is done; return whether all are. Called under the lock.

        A batch that was split is done when its parts are. A part may be in several processes, and
        any of them may report it.
        """
        self._ended.add(part)
        while part:
            whole, (_, parts) = part[:-1], part[-1]
            if any((*whole, (index, parts)) not in self._ended for index in range(parts)):
                return False
            part = whole
            self._ended.add(part)
        return True


@hint_attributes("a Batch")
@public("aioqueue.rl")
class Batch(Generic[P, R]):
    """The groups of one step.

    Attributes:
        step: the number of the step, from 0.
        version: how many steps the published weights contained when it was handed out.
        groups: what to train on. With ``on_refused="shorten"`` there may be fewer than
            ``batch_size``, and so at the end of the prompts.
    """

    __slots__ = ("_part", "_step", "groups", "step", "version")

    def __init__(
        self,
        held: Step | None,
        step: int,
        version: int,
        groups: Sequence[Group[P, R]],
        part: Part = (),
    ) -> None:
        self._step = held
        self._part = part
        self.step: int = step
        self.version: int = version
        self.groups: tuple[Group[P, R], ...] = tuple(groups)

    def __repr__(self) -> str:
        ages = f", staleness {min(self.staleness)} to {max(self.staleness)}" if self.groups else ""
        return (
            f"<aioqueue.rl.Batch of step {self.step}, {counted(len(self.groups), 'group')}{ages}>"
        )

    def __len__(self) -> int:
        return len(self.groups)

    def __iter__(self) -> Iterator[Group[P, R]]:
        return iter(self.groups)

    @property
    def staleness(self) -> tuple[int, ...]:
        """The staleness of each group, in order."""
        return tuple(group.staleness for group in self.groups)

    def done(self) -> None:
        """Say that the trainer has finished with this step: its slots are free again.

        You need it with ``auto_done=False`` or `RolloutQueue.get`, unless you publish each step. A
        second call does nothing, and so does one after `give_back`. Any thread may call it.
        """
        step, self._step = self._step, None
        if step is not None:
            step.core.part_done(step, self._part)

    def give_back(self) -> None:
        """Say that this step was not trained: its groups are ready again, and nothing is lost.

        Nothing is generated again. The groups of the newest step are ready, and may come in another
        batch. An older step is the next batch, as it was. A second call does nothing, and so does
        one after `done`. Any thread may call it.
        """
        step, self._step = self._step, None
        if step is not None:
            step.core.give_back(step)

    def split(self, ranks: int) -> list[Self]:
        """Split the batch among the ranks of a trainer, as equally as its groups allow.

        The step is done when all parts are. A part that was sent to another process says so there,
        by its `done`, if the queue is shared (`RolloutQueue.share`). Otherwise it says nothing
        there: the rank with the queue ends the step.

        Args:
            ranks: how many parts. Those of one batch differ by at most one group, the first are
                larger, and with fewer groups than ranks the last are empty.

        Raises:
            InvalidArgumentError: it is not an int >= 1.
        """
        ranks = checked_count(ranks, "ranks", least=1)
        each, more = divmod(len(self.groups), ranks)
        parts, begin = [], 0
        step, self._step = self._step, None
        for rank in range(ranks):
            end = begin + each + (rank < more)
            groups = self.groups[begin:end]
            part = (*self._part, (rank, ranks))
            parts.append(type(self)(step, self.step, self.version, groups, part))
            begin = end
        return parts

    def __getstate__(self) -> tuple[Any, ...]:
        held = self._step
        sent = None if held is None else held.core.sent_step(held)
        return (self.step, self.version, self.groups, self._part, sent)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.step, self.version, self.groups, self._part, self._step = state


class Publication(NamedTuple):
    """What `RolloutQueue.publishing` gives to its block.

    Attributes:
        version: how many steps the new weights contain; the version after the block.
        before: the version before it.
    """

    version: int
    before: int


def checked_steps(steps: Any, version: int, given_out: int) -> int:
    """Return the number of steps that are in the weights which are published.

    Raises:
        InvalidArgumentError: it cannot be.
    """
    number = checked_count(steps, "steps")
    if not version <= number <= given_out:
        raise InvalidArgumentError(
            f"steps: got {number}; expected {version}, which the published weights contain, to"
            f" {given_out}, the number of steps that were handed out"
        )
    return number
