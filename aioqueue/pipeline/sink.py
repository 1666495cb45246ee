"""What a sink is: where a pipeline's rows go.

Users make one with `to_parquet` and the functions beside it, which are in `aioqueue.sinks`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from aioqueue import InvalidArgumentError
from aioqueue.base.arguments import checked_count, checked_flag
from aioqueue.base.display_text import without_secrets
from aioqueue.base.json_files import Schema
from aioqueue.base.public_names import public
from aioqueue.items.declared_kinds import KindRegistry


class RowWriter(ABC):
    """Writes rows into one file after another. One thread at a time uses it."""

    rows_at_once: int = 64
    """About how many rows to hand over at a time. It may change."""

    shape: Any = None
    """What is known of the rows, if these are batches: a `BatchShape`."""

    takes_batches: bool = False
    """Whether it has a `write_batch`; else it gets the rows of batches."""

    is_full: bool = False
    """Whether the file should end here. Only writers of sinks with ``_ends_by_itself`` say so."""

    def accepts(self, rows: Sequence[Any]) -> bool:
        """Return whether rows fit into the file. If not, the same writer begins the next file."""
        return True

    @abstractmethod
    def open(self, path: Path) -> None:
        """Create a file, which gets the next rows."""

    @abstractmethod
    def write(self, rows: Sequence[Any], first: int) -> None:
        """Write rows.

        Args:
            rows: as the pipeline has made them.
            first: how many rows were written before, to all files.

        Raises:
            InvalidArgumentError: a row does not fit into the format.
        """

    def write_batch(self, batch: Any, begin: int, end: int) -> None:
        """Write some rows of a batch."""
        raise NotImplementedError

    def length_of(self, batch: Any) -> int:
        """How many rows a batch has, for `write_batch`.

        Raises:
            InvalidArgumentError: it is no batch.
        """
        raise NotImplementedError

    @abstractmethod
    def finish(self) -> None:
        """Complete the file, and close it."""

    @abstractmethod
    def abandon(self) -> None:
        """Close the file, if one is open, whatever is in it. It raises nothing."""

    def carried(self) -> dict[str, Any]:
        """What a later run needs to continue in the same way, in plain JSON types."""
        return {}


SINKS: Final = KindRegistry(
    "sink",
    ("_function", "_format", "_extra", "_page", "_read_by"),
    ("aioqueue.sinks",),
)
"""The sinks of the package. `SINKS.kinds()` lists them."""


@public("aioqueue.inputs")
class Sink(ABC):
    """Where `Pipeline.write` writes the rows of a pipeline: a folder of files of one format.

    `to_parquet`, `to_json_lines`, `to_tar` and `to_tfrecord` make it.

    Args:
        path: a local folder.
        rows_per_file: how many rows a file has, >= 1.
        batches: whether the elements are batches; ``None`` to go by the stages of the pipeline.

    Attributes:
        path: the folder.
        rows_per_file: how many rows a file has.
        batches: whether the elements are batches, as far as you have said it.
    """

    _function: ClassVar[str] = "Sink"
    """The function that makes it."""

    _format: ClassVar[str] = "files"
    """The format of the files in words. A run that continues compares it."""

    _extra: ClassVar[str | None] = None
    """The extra that it needs; ``None`` if it needs none."""

    _page: ClassVar[str] = "howto/writing.md"
    """The page of the docs that describes it."""

    _read_by: ClassVar[str | None] = None
    """The function that reads its files."""

    _overwrite: ClassVar[str] = "existing='replace'"
    """The argument by which a user has all written anew."""

    _carried: ClassVar[Schema] = Schema({})
    """What its writers have `carried`."""

    _ends_by_itself: ClassVar[bool] = False
    """Whether the writer says where a file ends, and not the number of its rows."""

    def __init_subclass__(cls, *, is_kind: bool = True, **options: Any) -> None:
        super().__init_subclass__(**options)
        if is_kind:
            SINKS.add(cls, Sink)

    def __init__(
        self, path: str | os.PathLike[str], rows_per_file: int, batches: bool | None
    ) -> None:
        self.path: Final[Path] = _checked_folder(path)
        self.rows_per_file: Final[int] = checked_count(rows_per_file, "rows_per_file", least=1)
        self.batches: Final[bool | None] = (
            None if batches is None else checked_flag(batches, "batches")
        )

    def __repr__(self) -> str:
        return f"<aioqueue.inputs.{self._function}({str(self.path)!r})>"

    @property
    @abstractmethod
    def _suffix(self) -> str:
        """The suffix of the names of its files, including the dot."""

    @abstractmethod
    def _writer(self, carried: dict[str, Any]) -> RowWriter:
        """What writes the rows of one run.

        Args:
            carried: what the writer of an earlier run has `carried`; empty for a new one.

        Raises:
            DocumentError: no writer has carried that.
        """


def _checked_folder(path: Any) -> Path:
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(name, str) or not name or "://" in name:
        given = without_secrets(repr(path))
        raise InvalidArgumentError(
            f"path: got {given}; expected a local folder: to rename a file is one step there, which"
            " most other stores do not have"
        )
    return Path(name)
