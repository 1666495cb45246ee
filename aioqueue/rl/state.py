"""The state of a run, a document of plain JSON types, and the results that are stored with it."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from aioqueue import InvalidArgumentError
from aioqueue.base.arguments import is_int
from aioqueue.items.positions import bounded, digest_of
from aioqueue.rl.machine import Stored
from aioqueue.rl.rollout import Group

_FORMAT: Final = "aioqueue.rollouts"
_VERSION: Final = 1
_FIELDS: Final = frozenset(
    (
        *("seed", "ordinal", "position", "machine", "results"),
        *("format", "version", "checksum"),
    )
)


def sealed_state(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with its version and a checksum."""
    state = {"format": _FORMAT, "version": _VERSION, **content}
    return {**state, "checksum": digest_of(state)}


def checked_state(state: Any) -> Mapping[str, Any]:
    """Return the content of a state.

    Raises:
        InvalidArgumentError: it is something else, or damaged.
    """
    if not isinstance(state, Mapping) or state.get("format") != _FORMAT:
        raise InvalidArgumentError(
            f"state: got {bounded(state)}; expected a dict that RolloutQueue.state_dict() has made"
        )
    if state.get("version") != _VERSION:
        raise InvalidArgumentError(
            f"state: got one of version {state.get('version')!r}; expected version {_VERSION}"
        )
    content = {key: value for key, value in state.items() if key != "checksum"}
    try:
        digest = digest_of(content)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"state: expected plain JSON types ({error})") from error
    if digest != state.get("checksum") or set(state) != _FIELDS:
        raise InvalidArgumentError(
            f"state: its checksum is {state.get('checksum')!r}; expected {digest!r}, which its"
            " content has: it was changed or damaged"
        )
    return content


def checked_seed(theirs: Any, ours: int, *, was_drawn: bool) -> int:
    """Return the seed that a resumed run has.

    Raises:
        InvalidArgumentError: the user has chosen another one.
    """
    if is_int(theirs) and (was_drawn or theirs == ours):
        return int(theirs)
    raise InvalidArgumentError(f"state: it has seed {theirs!r}; expected {ours}, the queue's seed")


class ResultFolder:
    """Stores groups that are ready, one file each.

    A file is there as a whole or not at all. Files of groups that are neither in the last state nor
    in the one before are deleted. If a file of an older state is missing, its group is generated
    again.

    Args:
        folder: the folder; it is made at the first state.
    """

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder
        self._before: set[str] = set()
        self._last: set[str] = set()

    def store(self, groups: Iterable[tuple[Stored, Group[Any, Any]]]) -> list[str]:
        """Store groups; return the names of their files."""
        self.folder.mkdir(parents=True, exist_ok=True)
        names = []
        for stored, group in groups:
            name = f"group-{group.ordinal}-{stored.version}.pickle"
            path = self.folder / name
            names.append(name)
            if name in self._last and path.exists():
                continue
            temporary = path.with_suffix(f".{os.getpid()}.tmp")
            try:
                with temporary.open("wb") as file:
                    pickle.dump((stored.version, stored.weight, _packed(group)), file, -1)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
        for name in (self._before | self._last) - self._last - set(names):
            with suppress(OSError):
                (self.folder / name).unlink()
        self._before, self._last = self._last, set(names)
        return sorted(names)

    def load(self, names: Iterable[str]) -> dict[int, tuple[Stored, Group[Any, Any]]]:
        """Load what is there of the files with these names.

        Raises:
            InvalidArgumentError: a name is not one of this class.
            Exception: a file is damaged.
        """
        found = {}
        for name in names:
            if Path(name).name != name or not name.startswith("group-"):
                raise InvalidArgumentError(f"state: got the file {name!r}; expected a name")
            with suppress(FileNotFoundError), (self.folder / name).open("rb") as file:
                version, weight, packed = pickle.load(file)
                group = _unpacked(packed)
                found[group.ordinal] = (Stored(version, weight), group)
                self._last.add(name)
        return found


def _packed(group: Group[Any, Any]) -> tuple[Any, ...]:
    """Return the parts of a group. Its prompt comes from the source again."""
    return (group.ordinal, group.rollouts, group.version, group.info)


def _unpacked(parts: tuple[Any, ...]) -> Group[Any, Any]:
    ordinal, rollouts, version, info = parts
    group: Group[Any, Any] = Group(None, ordinal, rollouts, version, 0)
    group.info = info
    return group
