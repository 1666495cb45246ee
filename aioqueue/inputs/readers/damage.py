"""What a reader does with damaged files: it raises, or leaves out the rest and lists the file."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.documents import MAX_BYTES, DocumentError, parsed
from aioqueue.inputs.core.items import Item, Quarantined
from aioqueue.inputs.prepare.quarantine import QuarantineFile

__all__ = ("DamagedFiles", "OnDamage", "QuarantinePath")

OnDamage: TypeAlias = Literal["stop", "skip"]
"""What happens at a damaged file."""

QuarantinePath: TypeAlias = str | PathLike[str] | None

_log: Final = logging.getLogger("aioqueue")


class DamagedFiles:
    """Lists the damaged files that a reader leaves out, each damage once. Thread-safe.

    A file is met again in each epoch, and by a run that resumes within it. So a damage that the
    list or the quarantine file already has is not added again.

    Args:
        on_error: ``"stop"`` or ``"skip"``.
        quarantine: the file that lists them too; ``None`` for none.
        reader: the name of the reader, for the log.

    Raises:
        InvalidArgumentError: an argument is wrong, or the file cannot be written to.
    """

    def __init__(self, on_error: Any, quarantine: Any, reader: str) -> None:
        if on_error not in ("stop", "skip"):
            raise InvalidArgumentError(f"on_error: got {on_error!r}; expected 'stop' or 'skip'")
        if quarantine is not None and on_error == "stop":
            raise InvalidArgumentError(
                "quarantine: given with on_error='stop', which skips nothing; expected"
                " on_error='skip', too"
            )
        self.are_skipped: bool = on_error == "skip"
        self._reader = reader
        self._lock = threading.Lock()
        self._records: list[Quarantined] = []
        self._known: set[tuple[str, int]] = set()
        self._file = None if quarantine is None else QuarantineFile(quarantine)
        self._in_file: set[tuple[str, int]] | None = None

    def add(self, error: DataLossError, epoch: int, index: int, seed: int) -> None:
        """List a damaged file.

        Args:
            error: the damage.
            epoch: the epoch of the file's path.
            index: the index that the first record behind the sound ones would have.
            seed: the seed of the reader.

        Raises:
            OSError: the quarantine file cannot be read or written.
        """
        damage = (error.path, error.offset)
        with self._lock:
            if damage in self._known:
                return
            self._known.add(damage)
            item = Item(0, error.path, epoch, index)
            record = replace(Quarantined.of(item, error, 1, seed), offset=error.offset)
            self._records.append(record)
            if self._file is not None and damage not in self._listed():
                self._file.add(record)
        _log.warning("%s leaves out the rest of a damaged file: %s", self._reader, error)

    def records(self) -> list[Quarantined]:
        """Return the files that were left out so far."""
        with self._lock:
            return list(self._records)

    def _listed(self) -> set[tuple[str, int]]:
        """Return the damage that the quarantine file had when the first one was met."""
        if self._in_file is None:
            assert self._file is not None
            self._in_file = set(_damage_in(self._file.path))
        return self._in_file


def _damage_in(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the paths and offsets that a quarantine file lists; other lines are passed over."""
    with path.open("rb") as file:
        for text in iter(partial(file.readline, MAX_BYTES + 1), b""):
            with suppress(DocumentError, KeyError, TypeError):
                fields = parsed(text)
                if isinstance(fields["item"], str) and isinstance(fields["offset"], int):
                    yield fields["item"], fields["offset"]
