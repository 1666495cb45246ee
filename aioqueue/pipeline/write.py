"""`Pipeline.write`: the rows of a pipeline go into files, which are committed one by one.

Each part is committed together with the position of the pipeline behind its last row. A run that
was killed goes on at the last committed part: it makes the rows behind that again, exactly, so none
is lost or written twice. What it had written of a part is removed.

A part has exactly `rows_per_file` rows, so a batch may be cut. Then the position is that before the
batch, with the number of its rows that are committed.

`Writing` decides where files begin and end, and knows the positions. It makes the jobs of the
thread that writes (`WriteThread`). `write` and `awrite` are its loops for threads and for tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from anyio import to_thread

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.base.arguments import checked_count
from aioqueue.base.json_files import DocumentError
from aioqueue.base.public_names import public
from aioqueue.base.tracebacks import SHORTENED, FailureNote, reraise, title_of
from aioqueue.errors import add_note
from aioqueue.items.item import EpochEnd
from aioqueue.pipeline.batches.collation import rows_of
from aioqueue.pipeline.build import length_of
from aioqueue.pipeline.epochs import Epoch, Epochs
from aioqueue.pipeline.fingerprint import options_of
from aioqueue.pipeline.nodes.node import NoPositionError, Taken
from aioqueue.pipeline.nodes.progress import ResumePoint
from aioqueue.pipeline.nodes.rows import EpochRange, LazyRows, value_of
from aioqueue.pipeline.part_folder import PartFolder
from aioqueue.pipeline.progress_bar import ProgressBar
from aioqueue.pipeline.run import AsyncRun, ThreadRun
from aioqueue.pipeline.sink import RowWriter, Sink
from aioqueue.pipeline.stages.base import BasePipeline, gives_batches, refuse_in_loop
from aioqueue.pipeline.stages.shard import rank_of
from aioqueue.pipeline.state.checkpoint import PipelinePositions
from aioqueue.pipeline.write_thread import Job, WriteThread

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


class LeftError(Exception):
    """Nobody wants any more what is written."""


class _WritePoint(NamedTuple):
    """A place in the sequence of rows."""

    point: ResumePoint | None
    """Where the run stands; ``None`` if it has no positions."""
    rows: int = 0
    """How many rows behind that."""


class _Cut(NamedTuple):
    """Rows of a batch that go into one part."""

    begin: int
    end: int
    place: _WritePoint | None
    """Where the run stands behind them, if the part is full then."""


class _Files:
    """Writes rows into parts, and commits these. The thread that writes uses it.

    Args:
        folder: where the parts go.
        writer: writes rows in the format of the sink.
    """

    def __init__(self, folder: PartFolder, writer: RowWriter) -> None:
        self._folder = folder
        self.writer = writer
        self.positions: PipelinePositions | None = None
        """Makes the positions of the run; ``None`` if it has none."""
        self.advance: Callable[[int], object] = lambda count: None
        """Called with each number of rows that were written."""
        self.committed: Callable[[], object] = lambda: None
        """Called after each commit."""
        self._is_open = False
        self._in_part = 0
        self._behind: _WritePoint | None = (
            None  # where the run stands behind the last rows, if known
        )
        self.written: int = 0
        """How many rows were written, to all parts."""

    def write(self, rows: Sequence[Any], place: _WritePoint | None, *, is_full: bool) -> None:
        """Write rows.

        Args:
            rows: the rows.
            place: where the run stands behind them, if a part may end there.
            is_full: whether it ends there.
        """
        if self._is_open and self._behind is not None and not self.writer.accepts(rows):
            self.commit(self._behind)
        self._open()
        self.writer.write(rows, self.written)
        self._behind = place
        self._note(len(rows), place if is_full or self.writer.is_full else None)

    def write_batch(self, batch: Any, cuts: Sequence[_Cut]) -> None:
        for begin, end, place in cuts:
            self._open()
            self.writer.write_batch(batch, begin, end)
            self._note(end - begin, place)

    def commit(self, place: _WritePoint, *, is_finished: bool = False) -> None:
        """Commit the part, if there is one, or that the run is finished."""
        if self._is_open:
            self.writer.finish()
            self._is_open = False
        positions, point = self.positions, place.point
        state = None if positions is None or point is None else positions.behind(point)
        resume_point = {"state": state, "rows": place.rows, "carried": self.writer.carried()}
        self._folder.commit(self._in_part, resume_point, is_finished=is_finished)
        self._in_part = 0
        self.committed()

    def close(self) -> None:
        """Remove what is not committed, and let others write to the folder."""
        self.writer.abandon()
        self._folder.close()

    def _open(self) -> None:
        if not self._is_open:
            self.writer.open(self._folder.temporary)
            self._is_open = True

    def _note(self, count: int, place: _WritePoint | None) -> None:
        self._in_part += count
        self.written += count
        self.advance(count)
        if place is not None:
            self.commit(place)


class Writing:
    """Writes the elements of one run into the files of a sink.

    Args:
        pipeline: the pipeline.
        sink: where the rows go.
        epochs: how many epochs to write.
        existing: what to do with what is in the folder.
        raise_single: whether a single failure is raised as itself.
        what: more that must be the same for a run to go on, in plain JSON types.
        waits: whether to wait for another process that writes to the folder.

    Raises:
        InvalidArgumentError: an argument is wrong.
    """

    is_left: bool = False
    """Whether to give up. Any thread may set it."""

    def __init__(
        self,
        pipeline: BasePipeline[Any],
        sink: Sink,
        epochs: int,
        existing: Existing | Literal["rebuild"],
        raise_single: bool,
        *,
        what: Mapping[str, Any] | None = None,
        waits: bool = False,
    ) -> None:
        if not isinstance(sink, Sink):
            raise InvalidArgumentError(
                f"sink: got {sink!r}; expected what to_parquet(folder) returns, or to_json_lines,"
                " to_tar or to_tfrecord"
            )
        if existing not in ("resume", "replace", "fail", "rebuild"):
            raise InvalidArgumentError(
                f"existing: got {existing!r}; expected 'resume', 'replace' or 'fail'"
            )
        self._pipeline = pipeline
        self._sink: Final = sink
        self._epochs = checked_count(epochs, "epochs", least=1)
        self._existing = existing
        self._raise_single = raise_single
        is_given = sink.batches is not None
        self._is_batched = (
            bool(sink.batches) if is_given else gives_batches(pipeline.source, pipeline.stages)
        )
        self._folder: Final = PartFolder(
            sink.path,
            _stem_of(pipeline),
            sink._suffix,
            {
                "format": sink._format,
                "batches": self._is_batched,
                "epochs": self._epochs,
                "options": options_of(pipeline, is_cache=what is not None),
                **(what or {}),
            },
            sink._carried,
            sink._overwrite,
        )
        self._waits = waits
        self.files: _Files = _Files(self._folder, sink._writer({}))
        self._resumed = 0
        self._in_part = 0  # how many rows the part has, with those that are on their way
        self._to_pass = 0  # rows of the next batch that are committed already
        self._rows: list[Any] = []  # that were taken, and are not handed over
        self._behind = _WritePoint(None)  # where the run stands behind the last batch
        self._positions: PipelinePositions | None = None
        self.run: Epochs[Any] = self._epochs_from(None)

    def begin(self) -> bool:
        """Lock the folder, and find out where to begin. Returns whether anything is to be done.

        Raises:
            InvalidArgumentError: there is something in the folder that does not fit.
            DataLossError: what is in the folder is damaged.
            OSError: the folder cannot be written to.
        """
        was_written = self._folder.lock(wait=self._waits)
        try:
            self._find()
        except (InvalidArgumentError, DataLossError) as error:
            if self._existing != "rebuild":
                raise
            if was_written and isinstance(error, InvalidArgumentError):
                # Each would remove what the other has made, again and again.
                why = str(error).partition("; expected ")[0]
                raise InvalidArgumentError(
                    f"{why}: another process has just written it; expected another folder for each"
                ) from None
            self._replace()
        self._folder.remove_uncommitted()
        self._resumed = self.files.written = sum(part.rows for part in self._folder.manifest.parts)
        return not self._folder.manifest.is_finished

    def check_current(self) -> None:
        """Check that no other process has written something else to the folder since.

        Raises:
            InvalidArgumentError: one has.
            DataLossError: the record of what was written is damaged.
            OSError: it cannot be read.
        """
        self._folder.check_current()

    def is_written(self) -> bool:
        """Whether all is written already. It locks nothing, and changes nothing."""
        try:
            if not self._folder.read() or not self._folder.manifest.is_finished:
                return False
            self._continue()
        except (InvalidArgumentError, DataLossError):
            return False
        return True

    def _find(self) -> None:
        """Find out what is in the folder, and where to begin."""
        folder, path = self._folder, str(self._sink.path)
        if not folder.read():
            foreign = folder.foreign()
            if foreign is not None:
                raise InvalidArgumentError(
                    f"path: got {path!r}, which has {foreign.name!r} without the record of what was"
                    " written; expected a folder without such files"
                )
            self._replace()  # from now on, such files are ours
        elif self._existing == "fail":
            raise InvalidArgumentError(
                f"path: got {path!r}, where something was written before; expected another folder,"
                " or existing='resume' or 'replace'"
            )
        elif self._existing == "replace":
            self._replace()
        else:
            self._continue()

    def _replace(self) -> None:
        self._folder.clear()
        self.files.writer = self._sink._writer({})
        self._to_pass = 0
        self.run = self._epochs_from(None)

    def _continue(self) -> None:
        """Go on where an earlier run has stood.

        Raises:
            InvalidArgumentError: something else was written.
            DataLossError: a part is not as it was written.
        """
        self._folder.check_same()
        self._folder.check_whole()
        resume_point = self._folder.manifest.resume_point
        if not resume_point:  # it was stopped before its first part
            self._replace()
            return
        state, sink = resume_point["state"], self._sink
        if state is None:
            raise InvalidArgumentError(
                f"path: got {str(sink.path)!r}, where something was written that has no"
                " positions, so that nobody can say what is left of it; expected"
                f" {sink._overwrite}, or another folder"
            )
        try:
            self.files.writer = sink._writer(resume_point["carried"])
        except DocumentError as error:
            raise self._folder.damaged(error) from error
        self._to_pass = resume_point["rows"]
        self.run = self._epochs_from(state)  # it checks that it is the same pipeline

    def bar(self, progress: bool | None) -> ProgressBar:
        """Make a progress bar for the rows, which begins at those already written."""
        total = None if self._is_batched else length_of(self.run._pipeline)
        bar = ProgressBar(
            f"writing {self._sink.path.name}",
            "rows",
            None if total is None else total * self._epochs,
            self._resumed,
            progress,
        )
        self.files.advance = bar.add
        return bar

    def start(self) -> WriteThread:
        if self.run._pipeline.source._is_repeatable:
            self._positions = self.files.positions = PipelinePositions(self.run._pipeline)
        self._behind = self._place()
        return WriteThread(self._failed)

    @property
    def room(self) -> int:
        """How many elements may be taken next, at most."""
        return 1 if self._is_batched else max(1, self._missing())

    def _missing(self) -> int:
        """How many rows are missing until they are handed over; the thread may change it."""
        left = self._sink.rows_per_file - self._in_part
        return min(left, self.files.writer.rows_at_once) - len(self._rows)

    def add(self, elements: Sequence[Any]) -> Job | None:
        """Take what the run has given. Returns what is to be done with it, if enough is there.

        Raises:
            InvalidArgumentError: the element should be a batch, and is not.
        """
        self.check_left()
        if self._is_batched:
            (batch,) = elements
            return self._add_batch(batch)
        self._rows += elements
        self.files.writer.shape = self.run._batch_shape
        is_full = self._in_part + len(self._rows) == self._sink.rows_per_file
        if self._missing() > 0 and not is_full:
            return None
        rows, self._rows = self._rows, []
        self._in_part = 0 if is_full else self._in_part + len(rows)
        place = self._place() if is_full or self._sink._ends_by_itself else None
        return partial(self.files.write, rows, place, is_full=is_full)

    def rest(self) -> Job:
        """What is to be done at the end."""
        rows, self._rows, place = self._rows, [], self._place()

        def finish() -> None:
            if rows:
                self.files.write(rows, place, is_full=False)
            self.files.commit(place, is_finished=True)

        return finish

    def result(self) -> Written:
        """Return what was written."""
        parts = self._folder.manifest.parts
        return Written(
            self._folder.paths(),
            sum(part.rows for part in parts),
            sum(part.size for part in parts),
            self._resumed,
        )

    def sizes(self) -> list[int]:
        """How many rows each committed part has."""
        return [part.rows for part in self._folder.manifest.parts]

    def leave(self) -> None:
        """Ask the writing to stop early. Any thread may call it."""
        self.is_left = True
        run = self.run._run
        if run is not None:
            run.request_stop()  # it may wait for a row

    def check_left(self) -> None:
        """Check that the writer was not left; call it once a run has begun, which `leave` may have
        missed.

        Raises:
            LeftError: it was.
        """
        if self.is_left:
            raise LeftError

    def with_location(self, error: BaseException) -> BaseException:
        """Convert a failure of writing to the form in which a run raises it."""
        if self._raise_single or not isinstance(error, Exception):
            return error
        return ExceptionGroup(title_of([error]), [error])

    def note(self, error: BaseException) -> None:
        """Note on a failure of writing where it happened."""
        part = self._folder.path_of(len(self._folder.manifest.parts))
        function = self._sink._function
        note = f"in {function}, while it wrote row {self.files.written} or later into {part}"
        add_note(error, FailureNote(note, f"{function} failed on {part.name}"))

    def _failed(self, error: BaseException) -> None:
        self.note(error)
        run = self.run._run
        if run is not None and not run.is_over:
            run.request_stop(error)  # the loop may wait for a row that takes long

    def _epochs_from(self, state: dict[str, Any] | None) -> Epochs[Any]:
        try:
            return Epochs(
                self._pipeline,
                EpochRange(0, self._epochs),
                state,
                raise_single=self._raise_single,
            )
        except InvalidArgumentError as error:
            add_note(
                error,
                f"{str(self._sink.path)!r} has what another pipeline has written, or this one when"
                f" it was another: use another folder, or {self._sink._overwrite}",
            )
            raise

    def _place(self) -> _WritePoint:
        """Return the position of the run, behind the last row that it has returned."""
        run = self.run
        if self._positions is None:
            return _WritePoint(None)
        try:
            return _WritePoint(run._resume_point if run._run is None else run._run.resume_point())
        except NoPositionError:
            return _WritePoint(None)

    def _add_batch(self, batch: Any) -> Job | None:
        before, self._behind = self._behind, self._place()
        writer = self.files.writer
        shape = self.run._batch_shape
        lists = () if shape is None else shape.found_in(batch)
        rows = None if writer.takes_batches and not lists else list(rows_of(batch, lists))
        begin, self._to_pass = self._to_pass, 0
        end = writer.length_of(batch) if rows is None else len(rows)
        cuts = []
        while begin < end:
            upto = min(end, begin + self._sink.rows_per_file - self._in_part)
            self._in_part += upto - begin
            place = None
            if self._in_part == self._sink.rows_per_file:
                self._in_part = 0
                place = self._behind if upto == end else before._replace(rows=upto)
            cuts.append(_Cut(begin, upto, place))
            begin = upto
        if rows is None:
            return partial(self.files.write_batch, batch, cuts) if cuts else None
        jobs = [
            partial(
                self.files.write,
                rows[one.begin : one.end],
                one.place,
                is_full=one.place is not None,
            )
            for one in cuts
        ]
        return partial(_all, jobs) if jobs else None


def _all(jobs: Sequence[Job]) -> None:
    for job in jobs:
        job()


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
    refuse_in_loop("write")
    with SHORTENED:
        writing = Writing(pipeline, sink, epochs, existing, raise_single)
        try:
            if writing.begin():
                with writing.bar(progress):
                    fill(writing, writing.start())
            return writing.result()
        finally:
            writing.files.close()


def fill(writing: Writing, thread: WriteThread) -> None:
    """Write all of a run, in this thread and the writing thread."""
    try:
        with writing.run as run:
            for epoch in run:
                assert isinstance(epoch._run, ThreadRun)
                writing.check_left()
                while (rows := taken(epoch, writing.room)) is not None:
                    try:
                        job = writing.add(rows)
                    except Exception as error:
                        writing.note(error)
                        reraise(epoch._run.fail(error))
                    del rows
                    if job is not None and not thread.put(job):
                        assert thread.failure is not None
                        reraise(epoch._run.fail(thread.failure))
        thread.put(writing.rest())
        thread.join()
        if thread.failure is not None:
            reraise(writing.with_location(thread.failure))
    finally:
        thread.stop()


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
    with SHORTENED:
        writing = Writing(pipeline, sink, epochs, existing, raise_single)
        try:
            if await to_thread.run_sync(writing.begin):
                with writing.bar(progress):
                    await _awrite(writing, writing.start())
            return writing.result()
        finally:
            writing.files.close()


async def _awrite(writing: Writing, thread: WriteThread) -> None:
    try:
        async with writing.run as run:
            async for epoch in run:
                assert isinstance(epoch._run, AsyncRun)
                while (rows := await _ataken(epoch, writing.room)) is not None:
                    try:
                        job = writing.add(rows)
                    except Exception as error:
                        writing.note(error)
                        reraise(await epoch._run.fail(error))
                    del rows
                    if job is not None and not await thread.aput(job):
                        assert thread.failure is not None
                        reraise(await epoch._run.fail(thread.failure))
        await thread.aput(writing.rest())
        await thread.ajoin()
        if thread.failure is not None:
            reraise(writing.with_location(thread.failure))
    finally:
        await thread.astop()


def taken(epoch: Epoch[Any], n: int) -> list[Any] | None:
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
    """Let monitors see how long the caller waits for the elements."""
    steps = epoch._watch.steps
    return nullcontext() if steps is None else steps.step(epoch._run_lock)


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
