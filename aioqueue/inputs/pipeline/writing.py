"""`Pipeline.write`: the rows of a pipeline go into files, which are committed one by one.

Each part is committed together with the position of the pipeline behind its last row. A run that
was killed goes on at the last committed part: it makes the rows behind that again, exactly, so none
is lost or written twice. What it had written of a part is removed.

A part has exactly `rows_per_file` rows, so a batch may be cut. Then the position is that before the
batch, with the number of its rows that are committed.

`Writing` decides when rows are written, and `write` and `awrite` are its loops for threads and for
tasks. A loop has the files written where it may block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias

from anyio import to_thread

from aioqueue import InvalidArgumentError
from aioqueue.arguments import checked_count
from aioqueue.coordination.classify import add_note
from aioqueue.inputs.core.sink import RowWriter, Sink
from aioqueue.inputs.core.items import EpochEnd
from aioqueue.inputs.core.part_folder import PartFolder
from aioqueue.inputs.core.progress_bar import ProgressBar
from aioqueue.inputs.pipeline.build import length_of
from aioqueue.inputs.pipeline.checkpoint import PipelinePositions
from aioqueue.inputs.pipeline.description import BasePipeline, BaseStage
from aioqueue.inputs.pipeline.epochs import Epoch, Epochs
from aioqueue.inputs.pipeline.flattening import rows_of
from aioqueue.inputs.pipeline.node import (
    EpochRange,
    LazyRows,
    NoPositionError,
    Taken,
    value_of,
)
from aioqueue.inputs.pipeline.progress import ResumePoint
from aioqueue.inputs.pipeline.run import AsyncRun, ThreadRun
from aioqueue.inputs.pipeline.stages import rank_of
from aioqueue.public_names import public
from aioqueue.tracebacks import SHORTENED, FailureNote, title_of
from aioqueue.waiting.caller import in_event_loop

__all__ = ("Existing", "Writing", "Written", "awrite", "write")

Existing: TypeAlias = Literal["resume", "replace", "fail"]


@public("aioqueue.inputs")
class Written(NamedTuple):
    """What `Pipeline.write` has written."""

    paths: tuple[Path, ...]
    """The files, in the order of their rows."""
    rows: int
    """How many rows they have."""
    size: int
    """How many bytes they have."""
    resumed: int
    """How many of the rows an earlier run had written."""


class _Place(NamedTuple):
    """A place in the sequence of rows."""

    point: ResumePoint | None
    """Where the run stands; ``None`` if it has no positions."""
    rows: int
    """How many rows behind that."""


class Writing:
    """Writes the elements of one run into the files of a sink. Use it as a context manager.

    Args:
        pipeline: the pipeline.
        sink: where the rows go.
        epochs: how many epochs to write.
        existing: what to do with what is in the folder.
        progress: whether to show a bar; see `ProgressBar`.

    Raises:
        InvalidArgumentError: an argument is wrong.
    """

    def __init__(
        self,
        pipeline: BasePipeline[Any],
        sink: Sink,
        epochs: int,
        existing: Existing,
        progress: bool | None,
    ) -> None:
        if not isinstance(sink, Sink):
            raise InvalidArgumentError(
                f"sink: got {sink!r}; expected what to_parquet(folder) returns, or to_json_lines,"
                " to_tar or to_tfrecord"
            )
        if existing not in ("resume", "replace", "fail"):
            raise InvalidArgumentError(
                f"existing: got {existing!r}; expected 'resume', 'replace' or 'fail'"
            )
        self._pipeline = pipeline
        self._sink: Final = sink
        self._epochs = checked_count(epochs, "epochs", least=1)
        self._existing = existing
        self._is_batched = (
            _makes_batches(pipeline.source, pipeline.stages)
            if sink.batches is None
            else sink.batches
        )
        self._folder: Final = PartFolder(sink.path, _stem_of(pipeline), sink._suffix, self._what())
        self._progress = progress
        # What is written now.
        self._writer = sink._writer({})
        self._positions: PipelinePositions | None = None
        self._run: Epochs[Any] | None = None
        self._bar = ProgressBar("", "rows", None, 0, False)
        self._is_open = False  # whether a part is
        self._in_part = 0  # how many rows the part at hand has
        self._written = 0  # how many rows were written, to all parts
        self._resumed = 0
        self._to_pass = 0  # rows of the next element that are committed already
        # What was taken and is not written yet.
        self._rows: list[Any] = []
        self._batch: Any = None
        self._begin = 0  # the first row of that batch that is not written
        self._before = self._behind = _Place(None, 0)  # where the last element begins, and ends

    def begin(self) -> bool:
        """Lock the folder, and find out where to begin. Returns whether anything is to be done.

        Raises:
            InvalidArgumentError: there is something in the folder that does not fit.
            DataLossError: what is in the folder is damaged.
            OSError: the folder cannot be written to.
        """
        folder = self._folder
        if not folder.open():
            foreign = folder.foreign()
            if foreign is not None:
                raise InvalidArgumentError(
                    f"path: got {str(self._sink.path)!r}, which has {foreign.name!r} without the"
                    " record of what was written; expected a folder without such files"
                )
            folder.clear()  # from now on such files are ours
        elif self._existing == "fail":
            raise InvalidArgumentError(
                f"path: got {str(self._sink.path)!r}, where something was written before; expected"
                " another folder, or existing='resume' or 'replace'"
            )
        elif self._existing == "replace":
            folder.clear()
        else:
            folder.check_same()
            folder.check_whole()
        folder.remove_uncommitted()
        manifest = folder.manifest
        self._resumed = self._written = sum(part.rows for part in manifest.parts)
        standing = manifest.standing
        if not standing:
            return True
        state = standing["state"]
        if state is None:
            raise InvalidArgumentError(
                f"path: got {str(self._sink.path)!r}, where something was written that has no"
                " positions, so that nobody can say what is left of it; expected"
                " existing='replace', or another folder"
            )
        self._writer = self._sink._writer(standing["carried"])
        self._to_pass = standing["rows"]
        self._run = self._epochs_from(state)  # also checks that it is the same pipeline
        return not manifest.is_finished

    _raise_single = False

    @contextmanager
    def running(self, *, raise_single: bool) -> Iterator[Epochs[Any]]:
        """The epochs to go through, while a bar shows how far they are."""
        run = self._run or self._epochs_from(None)
        run._raise_single = self._raise_single = raise_single
        self._run = run
        if run._pipeline.source._is_repeatable:
            self._positions = PipelinePositions(run._pipeline)
        self._before = self._behind = self._place()
        total = None if self._is_batched else length_of(run._pipeline)
        with ProgressBar(
            f"writing {self._sink.path.name}",
            "rows",
            None if total is None else total * self._epochs,
            self._written,
            self._progress,
        ) as self._bar:
            yield run

    @property
    def room(self) -> int:
        """How many elements may be taken next, at most."""
        if self._is_batched:
            return 1
        left = self._sink.rows_per_file - self._in_part
        return min(left, self._writer.rows_at_once) - len(self._rows)

    def add(self, elements: Sequence[Any]) -> bool:
        """Take what the run has given. Returns whether `work` has something to do.

        Raises:
            InvalidArgumentError: the element should be a batch, and is none.
        """
        if not self._is_batched:
            self._rows += elements
            if self._in_part + len(self._rows) == self._sink.rows_per_file:
                self._behind = self._place()
            return not self.room
        self._before, self._behind = self._behind, self._place()
        (batch,) = elements
        self._batch = batch if self._writer.takes_batches else list(rows_of(batch))
        self._begin, self._to_pass = self._to_pass, 0
        return True

    def work(self) -> None:
        """Write what was taken, and commit the parts that are full.

        Raises:
            InvalidArgumentError: a row does not fit into the format.
            OSError: a file cannot be written.
        """
        if self._rows:
            rows, self._rows = self._rows, []
            self._write(len(rows), rows)
            if self._in_part == self._sink.rows_per_file:
                self._commit(self._behind)
        batch, self._batch = self._batch, None
        end = 0 if batch is None else _length_of(batch, self._writer)
        while self._begin < end:
            upto = min(end, self._begin + self._sink.rows_per_file - self._in_part)
            rows = None if self._writer.takes_batches else batch[self._begin : upto]
            self._write(upto - self._begin, rows, batch)
            if self._in_part == self._sink.rows_per_file:
                is_behind = self._begin == end
                self._commit(self._behind if is_behind else self._before._replace(rows=self._begin))
        self._begin = 0

    def finish(self) -> None:
        """Write and commit the rest.

        Raises:
            InvalidArgumentError: a row does not fit into the format.
            OSError: a file cannot be written.
        """
        self.work()
        self._commit(self._place(), is_finished=True)

    def result(self) -> Written:
        """What is written."""
        parts = self._folder.manifest.parts
        return Written(
            self._folder.paths(),
            sum(part.rows for part in parts),
            sum(part.size for part in parts),
            self._resumed,
        )

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Raise failures of `add`, `work` and `finish` as those of a run, which say where it was.

        Raises:
            ExceptionGroup: the failure; or the failure itself, if the user has asked for that.
        """
        try:
            yield
        except Exception as error:
            part = self._folder.path_of(len(self._folder.manifest.parts))
            note = f"in {self._sink._function}, while it wrote row {self._written} or later into {part}"
            add_note(error, FailureNote(note, f"{self._sink._function} failed on {part.name}"))
            if self._raise_single:
                raise
            raise ExceptionGroup(title_of([error]), [error]) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._writer.abandon()
        self._folder.close()

    def _what(self) -> dict[str, Any]:
        return {
            "format": self._sink._format,
            "batches": self._is_batched,
            "epochs": self._epochs,
        }

    def _epochs_from(self, state: dict[str, Any] | None) -> Epochs[Any]:
        try:
            return Epochs(self._pipeline, EpochRange(0, self._epochs), state)
        except InvalidArgumentError as error:
            add_note(
                error,
                f"{str(self._sink.path)!r} has what another pipeline has written, or this one when"
                " it was another: write into another folder, or with existing='replace'",
            )
            raise

    def _place(self) -> _Place:
        """Where the run stands, behind what it has given last."""
        run = self._run
        if self._positions is None or run is None:
            return _Place(None, 0)
        try:
            return _Place(run._standing if run._run is None else run._run.standing(), 0)
        except NoPositionError:
            return _Place(None, 0)

    def _write(self, count: int, rows: Sequence[Any] | None, batch: Any = None) -> None:
        if not self._is_open:
            self._writer.open(self._folder.temporary)
            self._is_open = True
        if rows is None:
            self._writer.write_batch(batch, self._begin, self._begin + count)
        else:
            self._writer.write(rows, self._written)
        if batch is not None:
            self._begin += count
        self._in_part += count
        self._written += count
        self._bar.add(count)

    def _commit(self, place: _Place, *, is_finished: bool = False) -> None:
        if self._is_open:
            self._writer.finish()
            self._is_open = False
        has_state = self._positions is not None and place.point is not None
        state = self._positions.behind(place.point) if has_state else None
        standing = {"state": state, "rows": place.rows, "carried": self._writer.carried()}
        self._folder.commit(self._in_part, standing, is_finished=is_finished)
        self._in_part = 0


def write(
    pipeline: BasePipeline[Any],
    sink: Sink,
    *,
    epochs: int,
    existing: Existing,
    progress: bool | None,
    raise_single: bool,
) -> Written:
    """Write the elements of a pipeline, in this thread. See `Pipeline.write`."""
    if in_event_loop():
        raise RuntimeError(
            "write would block the event loop that runs in this thread: use `await"
            " pipeline.awrite(...)` here"
        )
    with SHORTENED, Writing(pipeline, sink, epochs, existing, progress) as writing:
        if writing.begin():
            with writing.running(raise_single=raise_single) as run, run:
                for epoch in run:
                    while (rows := _taken(epoch, writing.room)) is not None:
                        with writing.telling():
                            if writing.add(rows):
                                writing.work()
                with writing.telling():
                    writing.finish()
        return writing.result()


async def awrite(
    pipeline: BasePipeline[Any],
    sink: Sink,
    *,
    epochs: int,
    existing: Existing,
    progress: bool | None,
    raise_single: bool,
) -> Written:
    """Write the elements of a pipeline, in this task. See `Pipeline.awrite`."""
    with SHORTENED, Writing(pipeline, sink, epochs, existing, progress) as writing:
        if await to_thread.run_sync(writing.begin):
            with writing.running(raise_single=raise_single) as run:
                async with run:
                    async for epoch in run:
                        while (rows := await _ataken(epoch, writing.room)) is not None:
                            with writing.telling():
                                if writing.add(rows):
                                    await to_thread.run_sync(writing.work)
                    with writing.telling():
                        await to_thread.run_sync(writing.finish)
        return writing.result()


def _taken(epoch: Epoch[Any], n: int) -> list[Any] | None:
    """The next elements of an epoch, up to n; ``None`` at its end.

    One by one, as a loop takes them, would cost more than to write them.
    """
    run = epoch._run
    assert isinstance(run, ThreadRun)
    with _measured(epoch):
        taken = run.take(n)
    return _values_of(epoch, taken)


async def _ataken(epoch: Epoch[Any], n: int) -> list[Any] | None:
    run = epoch._run
    assert isinstance(run, AsyncRun)
    with _measured(epoch):
        taken = await run.take(n)
    return _values_of(epoch, taken)


def _measured(epoch: Epoch[Any]) -> AbstractContextManager[None]:
    """Lets monitors see how long the elements are waited for."""
    steps = epoch._watch.steps
    return nullcontext() if steps is None else steps.step(epoch._turns)


def _values_of(epoch: Epoch[Any], taken: Taken) -> list[Any] | None:
    if isinstance(taken, EpochEnd):
        epoch._end(taken)
        return None
    return taken.values if isinstance(taken, LazyRows) else list(map(value_of, taken))


def _stem_of(pipeline: BasePipeline[Any]) -> str:
    """What the names of the parts begin with: each rank writes files of its own.

    Raises:
        InvalidArgumentError: ranks would write some rows twice, or leave some out.
    """
    rank = rank_of(pipeline.stages)
    if rank.ranks == 1:
        return "part"
    if rank.uneven != "allow":
        raise InvalidArgumentError(
            f"uneven: got {rank.uneven!r} in shard(...), with which ranks have equally many rows,"
            " so that some are written twice or not at all; expected uneven='allow'"
        )
    return f"part-{rank.rank}-of-{rank.ranks}"


def _makes_batches(source: Any, stages: Sequence[BaseStage]) -> bool:
    """Whether the elements are batches, as far as the stages and the source tell."""
    for stage in reversed(stages):
        found = stage.makes_batches()
        if found is not None:
            return found
    return bool(source._gives_batches)


def _length_of(batch: Any, writer: RowWriter) -> int:
    return writer.length_of(batch) if writer.takes_batches else len(batch)
