"""``python -m aioqueue inspect module:pipeline``: what a pipeline yields, how fast, and its limit.

It imports the pipeline, runs it, and prints its stages, the spec of its elements, some of them, the
rates of some seconds and the verdict of a `Monitor`.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.machinery
import importlib.util
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from aioqueue.base.display_text import (
    count,
    duration,
    on_one_line,
    print_to,
    sentence,
    share,
    without_secrets,
    workers,
)
from aioqueue.base.tracebacks import shorten
from aioqueue.errors import AioQueueError, with_article
from aioqueue.items.value_text import format_value
from aioqueue.pipeline.array_spec import ArraySpec, spec_of_all
from aioqueue.pipeline.run_methods import RunMethods
from aioqueue.telemetry.metrics.intervals import Interval

_DESCRIPTION: Final = """\
Runs a pipeline, and shows its stages, the spec of its elements, the first of them, the rates of
some seconds, and what limits it.

TARGET is module:name or path/to/file.py:name. The name is that of a Pipeline, of a source or
reader, or of a function without arguments that returns one. The module is imported, so a script
should train below `if __name__ == "__main__"` only.

The pipeline runs as in your program: it calls your functions, and starts its workers. Skipped items
are not written to quarantine files of prepare(). The exit status is 0, or 1 if the pipeline cannot
be imported or has failed, or 2 if the command line is wrong.
"""

_LONGEST: Final = 86_400.0  # seconds
_WIDEST: Final = 100
_FEWEST_SAMPLED: Final = 2
"""The least number of elements to find their spec from."""
_STUCK: Final = 10.0
"""Seconds without any progress after which the log explains why."""


class CannotInspectError(AioQueueError):
    """There is no pipeline to inspect; the message says why."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``inspect TARGET`` to the commands of a program."""
    parser = commands.add_parser(
        "inspect",
        help="show what a pipeline yields, how fast, and what limits it",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", metavar="TARGET", help="module:name, or file.py:name")
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=10.0,
        metavar="SECONDS",
        help="how long to measure (default: 10; 0 does not measure)",
    )
    parser.add_argument(
        "--examples",
        type=_count,
        default=2,
        metavar="COUNT",
        help="how many of the first elements to show (default: 2)",
    )
    parser.set_defaults(do=lambda given: _run(given, parser.prog))


def _run(given: argparse.Namespace, program: str) -> int:
    """Inspect; return the exit status.

    Raises:
        OSError: standard output cannot be written.
    """
    try:
        return _inspect(given, program)
    except _OutputError as error:
        assert error.__cause__ is not None
        raise error.__cause__ from None


def _inspect(given: argparse.Namespace, program: str) -> int:
    try:
        inspected = _Inspection(load(given.target), given.examples, given.seconds)
        inspected.run(_print)
        _flush()
    except CannotInspectError as error:
        _flush()
        print_to(sys.stderr, f"{program}: {error}")
        return 1
    except KeyboardInterrupt:
        print_to(sys.stderr, f"\n{program}: stopped")
        return 130
    return 0


class _OutputError(Exception):
    """Standard output cannot be written: the cause says why. It is no failure of the pipeline."""


def _print(text: str) -> None:
    try:
        print_to(sys.stdout, text)
    except OSError as error:
        raise _OutputError from error


def _flush() -> None:
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        raise _OutputError from error


def load(target: str) -> RunMethods[Any]:
    """Import the pipeline or source that a command line names.

    Args:
        target: ``module:name`` or ``path/to/file.py:name``.

    Raises:
        CannotInspectError: there is no such thing, or it is something else.
    """
    where, _, name = target.rpartition(":")
    if not where and target.endswith(".py"):
        where, name = target, ""
    elif not where:
        where, name = name, ""
    module = _import_target(where)
    if not name:
        raise CannotInspectError(
            f"got {target!r}; expected {where}:NAME{_describe_pipelines(module, ', such as')}"
        )
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise CannotInspectError(
                f"{where} has no {name!r}{_describe_pipelines(module, '; it has')}"
            ) from None
    if callable(found) and not isinstance(found, type | RunMethods):
        found = _call_explained(found, f"{name}() of {where} failed")
    if not isinstance(found, RunMethods):
        raise CannotInspectError(
            f"{target}: got {with_article(type(found).__name__)}; expected a Pipeline, a source or"
            " reader, or a function without arguments that returns one"
        )
    return found


def _describe_pipelines(module: Any, before: str) -> str:
    """Return the names of the pipelines and sources in a module, for a message."""
    names = [name for name, value in vars(module).items() if isinstance(value, RunMethods)]
    return f"{before} {', '.join(names[:8])}" if names else ""


def _import_target(where: str) -> Any:
    path = Path(where)
    if path.suffix == ".py" or len(path.parts) > 1:
        if not path.is_file():
            raise CannotInspectError(f"there is no file {where!r}")
        return _call_explained(lambda: _import_file(path.resolve()), f"{where} cannot be imported")
    if where.startswith("."):
        raise CannotInspectError(f"got the module {where!r}; expected its full name")
    with suppress(ImportError, ValueError):
        if importlib.util.find_spec(where) is not None:
            return _call_explained(
                lambda: importlib.import_module(where), f"{where} cannot be imported"
            )
    hint = f" (there is a file: try {where}.py:NAME)" if Path(f"{where}.py").is_file() else ""
    raise CannotInspectError(f"there is no module {where!r}{hint}")


def _import_file(path: Path) -> Any:
    """Import a file as its folder's module, so that worker processes find its functions."""
    name = path.stem
    sys.path.insert(0, str(path.parent))
    if name in sys.modules or not name.isidentifier():
        name = f"_inspected_{name}"  # a script may have the name of a library
    # Whatever the suffix is, as `python FILE` does.
    loader = importlib.machinery.SourceFileLoader(name, str(path))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    return module


def _call_explained(call: Callable[[], Any], what: str) -> Any:
    """Call what the user has written.

    Raises:
        CannotInspectError: it raised an exception, whose traceback is in the message.
    """
    try:
        return call()
    except (Exception, SystemExit) as error:
        raise CannotInspectError(f"{what}:\n{_traceback(error)}") from None


def _traceback(error: BaseException) -> str:
    """Return a traceback as Python prints it, without the frames of this module and of imports."""
    shorten(error)
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in (
        __file__,
        "<frozen importlib._bootstrap>",
        "<frozen importlib._bootstrap_external>",
        importlib.__file__,
    ):
        frames = frames.tb_next
    lines = traceback.format_exception(type(error), error, frames)
    return without_secrets("".join(lines)).rstrip("\n")


class _Inspection:
    """A run of a pipeline that is shown.

    Args:
        target: the pipeline or source.
        examples: the number of elements to show.
        seconds: how long to measure.
    """

    def __init__(self, target: RunMethods[Any], examples: int, seconds: float) -> None:
        self._pipeline: Any = target._pipeline()
        self._examples = examples
        self._seconds = seconds
        made = [stage.makes_batches() for stage in self._pipeline.stages]
        self._unit = "batches" if any(made) else "elements"

    def run(self, write: Callable[[str], object]) -> None:
        """Run the pipeline, and write what it shows, part by part.

        Raises:
            CannotInspectError: the pipeline has failed.
        """
        write(str(self._pipeline))
        pipeline = self._pipeline._without_files()
        monitor = pipeline.monitor()
        epochs = pipeline.epochs(
            1 if _can_run_once(pipeline) else None, watchdog=_STUCK, raise_single=True
        )
        try:
            begun = iter(next(epochs))
            self._show(begun, write)
            if self._seconds:
                rest = (element for epoch in epochs for element in epoch)
                self._measure(epochs, chain(begun, rest), monitor, write)
            _flush()  # the end of the run waits for functions that have not returned
        except (CannotInspectError, _OutputError):
            raise
        except Exception as error:
            raise CannotInspectError(f"the pipeline has failed:\n{_traceback(error)}") from None
        finally:
            monitor.close()
            with suppress(Exception):  # what fails while it stops was not asked for
                epochs.close()

    def _show(self, epoch: Iterator[Any], write: Callable[[str], object]) -> None:
        """Show the spec of the elements, and some of them.

        Raises:
            CannotInspectError: the epoch is empty.
        """
        first: list[Any] = []
        try:
            first.extend(islice(epoch, min(max(_FEWEST_SAMPLED, self._examples), sys.maxsize)))
        finally:
            if first:
                self._show_elements(first, write)
        if not first:
            raise CannotInspectError("the first epoch is empty: there is nothing to show")

    def _show_elements(self, first: list[Any], write: Callable[[str], object]) -> None:
        write(f"\nelement spec ({self._unit})")
        spec = spec_of_all(first, self._pipeline.stages)
        for line in _columns([(path, _spec(leaf)) for path, leaf in _leaves(spec)]):
            write(f"  {line}")
        shown = first[: self._examples]
        if shown:
            write(f"\nfirst {self._unit}")
        for number, element in enumerate(shown):
            rows = [(path, _value(leaf)) for path, leaf in _leaves(element)]
            for at, line in enumerate(_columns(rows)):
                write(f"  {number if not at else ' ' * len(str(number))}  {line}")

    def _measure(
        self, epochs: Any, elements: Iterator[Any], monitor: Any, write: Callable[[str], object]
    ) -> None:
        """Measure for some seconds, and show the rates and the verdict."""
        found: list[Any] = []

        def end() -> None:
            # Before the run ends: what ends it is not part of the rates.
            found.extend((monitor.snapshot(), monitor.verdict(self._seconds)))
            with suppress(Exception):
                epochs.close()

        before = monitor.snapshot()
        timer = threading.Timer(self._seconds, end)
        timer.daemon = True
        timer.start()
        try:
            for _ in elements:
                pass
        except RuntimeError:
            if not found:
                raise
        finally:
            timer.cancel()
        if not found:
            found.extend((monitor.snapshot(), monitor.verdict(self._seconds)))
        after, verdict = found[:2]
        interval = Interval.between(before, after)
        seconds = after.seconds - before.seconds
        write(f"\nrates over {seconds:.1f} s, with nothing done to the {self._unit}")
        rows = [(self._unit, f"{count(interval.step.rate)} per second")]
        for stage in interval.stages:
            served_by = workers(len(stage.now.workers), stage.now.where)
            mean = stage.service.mean
            each = "" if not mean else f", {duration(mean)} each"
            rows.append(
                (
                    stage.now.name,
                    f"{count(stage.rate)} items per second, {served_by},"
                    f" busy {share(stage.busy)}{each}",
                )
            )
        functions = interval.busiest_functions()
        rows += [(str(one.now), f"busy {share(one.busy)}") for one in functions]
        if skipped := epochs.quarantine:
            rows.append(("skipped", f"{len(skipped):,}; the first: {skipped[0].error}"))
        for line in _columns(rows):
            write(f"  {line}")
        write(f"\nverdict\n  {sentence(str(verdict))}")


def _can_run_once(pipeline: Any) -> bool:
    from aioqueue.pipeline.stages.chain import sources_of

    return any(source._is_once for source in sources_of(pipeline))


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the parts of an element or a spec that have no parts themselves, with their paths."""
    if isinstance(value, ArraySpec):
        yield path, value
    elif isinstance(value, Mapping) and value:
        for key, one in value.items():
            name = str(key) if isinstance(key, str) else f"[{key!r}]"
            dot = "." if path and isinstance(key, str) else ""
            yield from _leaves(one, f"{path}{dot}{name}")
    elif isinstance(value, tuple) and value:
        fields = getattr(value, "_fields", None)
        for at, one in enumerate(value):
            name = f"[{at}]" if fields is None else f"{'.' if path else ''}{fields[at]}"
            yield from _leaves(one, f"{path}{name}")
    else:
        yield path, value


def _spec(leaf: Any) -> str:
    if isinstance(leaf, ArraySpec):
        sizes = ", ".join("?" if size is None else str(size) for size in leaf.shape)
        comma = "," if len(leaf.shape) == 1 else ""
        return f"{leaf.dtype} ({sizes}{comma})" if leaf.shape else f"{leaf.dtype}, a scalar"
    if isinstance(leaf, list):
        kinds = sorted({_spec(one) for one in leaf})
        return f"list of {' or '.join(kinds)}" if kinds else "list"
    return leaf.__name__ if isinstance(leaf, type) else str(leaf)


def _value(leaf: Any) -> str:
    if isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject:
        text = np.array2string(leaf, threshold=6, edgeitems=2, precision=4, separator=" ")
    else:
        text = format_value(leaf)
    return " ".join(text.split())


def _columns(rows: list[tuple[str, str]]) -> list[str]:
    """Return rows of two columns as lines that fit a screen."""
    width = max((len(on_one_line(name)) for name, _ in rows), default=0)
    lines = [f"{on_one_line(name):<{width}}  {on_one_line(text)}".rstrip() for name, text in rows]
    if not width:
        lines = [line.lstrip() for line in lines]
    return [line if len(line) <= _WIDEST else f"{line[: _WIDEST - 3]}..." for line in lines]


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _LONGEST:
        raise argparse.ArgumentTypeError(f"got {text!r}; expected a number of seconds >= 0")
    return seconds


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"got {text!r}; expected a number >= 0")
    return int(text)
