"""How long the training step waits, beside a progress bar: for tqdm and for rich."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aioqueue.telemetry.intervals import latest
from aioqueue.telemetry.table import rich
from aioqueue.telemetry.watched import Watched
from aioqueue.telemetry.words import share

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

__all__ = ("Waits", "waits_column")


class Waits:
    """``waits 3 %``: the share of the last seconds in which the training step waited for data.

    It is read when it is printed. As the ``postfix`` of a tqdm it is read whenever the bar is
    drawn, and costs nothing in between.

    Args:
        watched: the run.
        seconds: how many seconds are the last ones.
    """

    def __init__(self, watched: Watched, seconds: float = 5.0) -> None:
        self._watched = watched
        self._seconds = seconds

    def __str__(self) -> str:
        interval = latest(self._watched.history, self._watched.snapshot(), self._seconds)
        return f"waits {share(interval.step.waits)}"

    def __radd__(self, before: Any) -> Any:
        # tqdm puts ", " before what it prints, whatever that is.
        return f"{before}{self}" if isinstance(before, str) else NotImplemented


def waits_column(watched: Watched, seconds: float = 5.0) -> ProgressColumn:
    """The same as a column for `rich.progress.Progress`.

    Args:
        watched: the run.
        seconds: how many seconds are the last ones.

    Raises:
        ImportError: rich is not installed.
    """
    rich()
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

    waits = Waits(watched, seconds)

    class WaitsColumn(ProgressColumn):
        """Shows how long the training step waits."""

        max_refresh = 0.5

        def render(self, task: Task) -> Text:
            return Text(str(waits), style="progress.data.speed")

    return WaitsColumn()
