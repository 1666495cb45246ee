"""The table of a run below the cell of a notebook, made anew while the cell runs.

What the cell prints stands beside it, as always. It is shown as HTML, which every notebook has, and
as plain text for who reads the file without one.
"""

from __future__ import annotations

import io
import logging
import sys
import threading
from typing import Any, Final

from aioqueue.telemetry.table import RunTable, rich

__all__ = ("InNotebook", "is_in_notebook")

_log: Final = logging.getLogger("aioqueue")

_COLUMNS: Final = 100

_HTML: Final = (
    '<pre style="white-space:pre;line-height:1.3;font-family:ui-monospace,Menlo,Consolas,'
    '\'DejaVu Sans Mono\',monospace"><code style="font-family:inherit">{code}</code></pre>'
)


def is_in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    if "ipykernel" not in sys.modules:
        return False
    from IPython import get_ipython

    return get_ipython() is not None  # else somebody has only imported it


class InNotebook:
    """Shows a table while a block runs, and leaves it as it was at the end.

    Args:
        table: what is shown.
        every: seconds between two of them.
    """

    def __init__(self, table: RunTable, every: float) -> None:
        self._table = table
        self._every = every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="aioqueue-live", daemon=True)

    def __enter__(self) -> None:
        from IPython.display import display

        self._shown: Any = display(self._drawn(), raw=True, display_id=True)  # type: ignore[no-untyped-call]
        self._thread.start()

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        self._thread.join()
        self._draw()

    def _run(self) -> None:
        try:
            while not self._over.wait(self._every):
                self._draw()
        except Exception:
            _log.exception("the table of a run is not kept up to date any more")

    def _draw(self) -> None:
        self._shown.update(self._drawn(), raw=True)

    def _drawn(self) -> dict[str, str]:
        """The table of now, as what a notebook can show."""
        console = rich().console.Console(
            file=io.StringIO(), record=True, width=_COLUMNS, force_jupyter=False
        )
        console.print(self._table)
        text = console.export_text(clear=False)
        return {
            "text/plain": text,
            "text/html": console.export_html(inline_styles=True, code_format=_HTML),
        }
