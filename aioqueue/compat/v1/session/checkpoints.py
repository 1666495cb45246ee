"""Files of checkpoints: the arrays, and the file ``checkpoint`` that says which one is the latest.

A checkpoint ``model.ckpt-3`` is one file, ``model.ckpt-3.npz``, with an array for each variable.
Strings are two: ``<name>:lengths``, which has the shape, and ``<name>:bytes``. Each file is written
beside its place and moved there, so that it is whole at any moment.
"""

from __future__ import annotations

import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from glob import escape, glob
from typing import IO, Any

import numpy as np

from aioqueue.compat.v1 import logging
from aioqueue.compat.v1.errors import DataLossError
from aioqueue.compat.v1.session.bundles import is_bundle, read_bundle

__all__ = (
    "CheckpointState",
    "checkpoint_exists",
    "get_checkpoint_state",
    "latest_checkpoint",
    "read_checkpoint",
    "remove_checkpoint",
    "write_checkpoint",
    "write_state",
)

ENDING = ".npz"
STATE = "checkpoint"
_LINE = re.compile(r'\s*(\w+)\s*:\s*(?:"((?:[^"\\]|\\.)*)"|[-+.\w]+)\s*')


@dataclass
class CheckpointState:
    """What the file ``checkpoint`` says."""

    model_checkpoint_path: str = ""
    all_model_checkpoint_paths: list[str] = field(default_factory=list)


def checkpoint_exists(checkpoint_prefix: str) -> bool:
    """Whether there is a checkpoint of this name, written here or by TensorFlow."""
    prefix = os.fspath(checkpoint_prefix)
    return os.path.isfile(prefix + ENDING) or is_bundle(prefix)


def latest_checkpoint(checkpoint_dir: str, latest_filename: str | None = None) -> str | None:
    """The latest checkpoint in a folder; None if the folder has no checkpoint."""
    state = get_checkpoint_state(checkpoint_dir, latest_filename)
    if state is None or not state.model_checkpoint_path:
        return None
    if checkpoint_exists(state.model_checkpoint_path):
        return state.model_checkpoint_path
    logging.error("Couldn't match files for checkpoint %s", state.model_checkpoint_path)
    return None


def get_checkpoint_state(
    checkpoint_dir: str, latest_filename: str | None = None
) -> CheckpointState | None:
    """The contents of the file ``checkpoint`` of a folder; None if it is missing or damaged."""
    path = os.path.join(checkpoint_dir, latest_filename or STATE)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            logging.warning("%s: Checkpoint ignored: %s", path, error)
        return None
    state = CheckpointState()
    for line in filter(str.strip, text.splitlines()):
        found = _LINE.fullmatch(line)
        if found is None:
            logging.warning("%s: Checkpoint ignored: %r is not a field", path, line)
            return None
        if found[2] is None:
            continue  # a time
        named = os.path.join(checkpoint_dir, _unescaped(found[2]))
        if found[1] == "model_checkpoint_path":
            state.model_checkpoint_path = named
        elif found[1] == "all_model_checkpoint_paths":
            state.all_model_checkpoint_paths.append(named)
    if not state.model_checkpoint_path:
        raise ValueError(f"Invalid checkpoint state loaded from {checkpoint_dir}")
    return state


def write_state(
    save_dir: str, latest: str, paths: Sequence[str], latest_filename: str | None, relative: bool
) -> None:
    """Write the file ``checkpoint``."""
    every = [*paths, *([] if latest in paths else [latest])]
    if relative or not os.path.isabs(save_dir):
        latest, *every = (
            os.path.relpath(os.path.abspath(one), os.path.abspath(save_dir))
            for one in (latest, *every)
        )
    lines = [f'model_checkpoint_path: "{_escaped(latest)}"\n']
    lines += [f'all_model_checkpoint_paths: "{_escaped(one)}"\n' for one in every]
    _replace(
        os.path.join(save_dir, latest_filename or STATE),
        lambda file: file.write("".join(lines).encode()),
    )


def write_checkpoint(prefix: str, values: Mapping[str, Any]) -> None:
    """Write the arrays of a checkpoint."""

    def write(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            for name, array in _as_arrays(values):
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)

    _replace(prefix + ENDING, write)


def read_checkpoint(prefix: str) -> dict[str, Any]:
    """The values of a checkpoint, written here or by TensorFlow, by the names of variables."""
    path = prefix + ENDING
    if not os.path.isfile(path):
        return read_bundle(prefix)
    found: dict[str, Any] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                with archive.open(name) as member:
                    array = np.lib.format.read_array(member, allow_pickle=False)
                found[name.removesuffix(".npy")] = array[()]
        for name in [one for one in found if one.endswith(":lengths")]:
            plain = name.removesuffix(":lengths")
            found[plain] = _as_strings(found.pop(name), found.pop(f"{plain}:bytes"))
    except (zipfile.BadZipFile, ValueError, EOFError, KeyError) as error:
        raise DataLossError(None, None, f"{path}: damaged, or no checkpoint: {error}") from error
    return found


def remove_checkpoint(prefix: str) -> None:
    """Remove the files of a checkpoint, written here or by TensorFlow."""
    paths = [prefix + ending for ending in (ENDING, ".index", ".meta")]
    for path in (*paths, *glob(f"{escape(prefix)}.data-?????-of-?????")):
        if os.path.isfile(path):
            os.remove(path)


def _as_arrays(values: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for name, value in values.items():
        if not isinstance(value, bytes) and np.asarray(value).dtype != object:
            yield name, np.asarray(value)
            continue
        strings = np.empty((), object)
        strings[()] = value
        strings = strings if isinstance(value, bytes) else np.asarray(value)
        lengths = [len(one) for one in strings.ravel().tolist()]
        yield f"{name}:lengths", np.array(lengths, np.int64).reshape(strings.shape)
        yield f"{name}:bytes", np.frombuffer(b"".join(strings.ravel().tolist()), np.uint8)


def _as_strings(lengths: Any, data: Any) -> Any:
    sizes, whole = np.ravel(lengths).tolist(), data.tobytes()
    strings, place = np.empty(len(sizes), object), 0
    for number, size in enumerate(sizes):
        strings[number] = whole[place : place + size]
        place += size
    return strings.reshape(np.shape(lengths))[()]


def _replace(path: str, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file beside its place, see it onto the disk, and move it there."""
    folder, name = os.path.split(path)
    number, beside = tempfile.mkstemp(prefix=f".{name}.", dir=folder or ".")
    try:
        with os.fdopen(number, "w+b") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(beside, 0o644)
        os.replace(beside, path)
    except BaseException:
        os.remove(beside)
        raise


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _unescaped(text: str) -> str:
    """Text as protobuf writes it: bytes that are not ASCII may be octal numbers."""
    if "\\" not in text:
        return text
    plain = text.encode().decode("latin-1").encode("unicode_escape").replace(b"\\\\", b"\\")
    return plain.decode("unicode_escape").encode("latin-1").decode()
