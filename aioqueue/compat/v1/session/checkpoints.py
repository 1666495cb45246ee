"""Files of checkpoints: those of this package, those of TensorFlow, and which one is the latest.

A checkpoint ``model.ckpt-3`` is one file, ``model.ckpt-3.npz``, with an array for each variable.
Strings are two: ``<name>:lengths``, which has the shape, and ``<name>:bytes``. Each file is written
beside its place and moved there, so that it is whole at any moment.

TensorFlow's second format is a table, LevelDB's, of messages that say where a tensor's bytes lie:
https://github.com/google/leveldb/blob/main/doc/table_format.md.
"""

from __future__ import annotations

import importlib.util
import os
import re
import struct
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from glob import escape, glob
from typing import IO, Any

import numpy as np

from aioqueue.compat.v1 import logging
from aioqueue.compat.v1.core.dtypes import DType, as_dtype
from aioqueue.compat.v1.errors import DataLossError, UnimplementedError
from aioqueue.compat.v1.ops.serializing import FIXED32, fields, read_number

__all__ = (
    "CheckpointState", "checkpoint_exists", "checkpoints_iterator", "get_checkpoint_mtimes",
    "get_checkpoint_state", "latest_checkpoint", "remove_checkpoint", "update_checkpoint_state",
)  # fmt: skip

ENDING = ".npz"
STATE = "checkpoint"
_FIELD = re.compile(r'\s*(\w+)\s*:\s*(?:"((?:[^"\\\n]|\\.)*)"|[-+.\w]+)\s*')
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|.)")
_END = 22  # the size of the record at the end of a zip file without a comment
_LOOK_SECS = 1.0
"""How often `checkpoints_iterator` samples a folder: nothing reports files of other programs."""


@dataclass
class CheckpointState:
    """What the file ``checkpoint`` says."""

    model_checkpoint_path: str = ""
    all_model_checkpoint_paths: list[str] = field(default_factory=list)


def checkpoint_exists(checkpoint_prefix: str) -> bool:
    """Whether there is a checkpoint of this name, written here or by TensorFlow."""
    return _index_of(os.fspath(checkpoint_prefix)) is not None


def get_checkpoint_mtimes(checkpoint_prefixes: Iterable[str]) -> list[float]:
    """When checkpoints were written, of those that exist."""
    paths = map(_index_of, checkpoint_prefixes)
    return [os.path.getmtime(path) for path in paths if path is not None]


def _index_of(prefix: str) -> str | None:
    paths = (prefix + ENDING, prefix + ".index")
    return next((path for path in paths if os.path.isfile(path)), None)


def latest_checkpoint(checkpoint_dir: str, latest_filename: str | None = None) -> str | None:
    """The latest checkpoint in a folder; None if the folder has no checkpoint."""
    state = get_checkpoint_state(checkpoint_dir, latest_filename)
    if state is None:
        return None
    if checkpoint_exists(state.model_checkpoint_path):
        return state.model_checkpoint_path
    logging.error("Couldn't match files for checkpoint %s", state.model_checkpoint_path)
    return None


def checkpoints_iterator(
    checkpoint_dir: str,
    min_interval_secs: float = 0,
    timeout: float | None = None,
    timeout_fn: Callable[[], object] | None = None,
) -> Iterator[str]:
    """The latest checkpoints of a folder, each as soon as it is noticed."""
    latest: str | None = None
    while True:
        found = _other_checkpoint(checkpoint_dir, latest, timeout)
        if found is not None:
            latest, next_time = found, time.monotonic() + min_interval_secs
            yield found
            if (left := next_time - time.monotonic()) > 0:
                time.sleep(left)
        elif timeout_fn is None:
            logging.info("Timed-out waiting for a checkpoint (without timeout_fn).")
            return
        if timeout_fn is not None and timeout_fn():
            logging.info("Done. No new checkpoints will be generated.")
            return


def _other_checkpoint(folder: str, known: str | None, timeout: float | None) -> str | None:
    deadline = None if timeout is None else time.monotonic() + timeout
    while (found := latest_checkpoint(folder)) in (None, known):
        if deadline is not None and time.monotonic() + _LOOK_SECS > deadline:
            return None
        time.sleep(_LOOK_SECS)
    return found


def get_checkpoint_state(
    checkpoint_dir: str, latest_filename: str | None = None
) -> CheckpointState | None:
    """The contents of the file ``checkpoint`` of a folder; None if it is missing or damaged."""
    path = os.path.join(checkpoint_dir, latest_filename or STATE)
    state = CheckpointState()
    try:
        with open(path, encoding="utf-8") as file:
            for name, text in _fields_of_text(file.read()):
                named = os.path.join(checkpoint_dir, text)
                if name == "model_checkpoint_path":
                    state.model_checkpoint_path = named
                elif name == "all_model_checkpoint_paths":
                    state.all_model_checkpoint_paths.append(named)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        logging.warning("%s: Checkpoint ignored: %s", path, error)
        return None
    if not state.model_checkpoint_path:
        raise ValueError(f"Invalid checkpoint state loaded from {checkpoint_dir}")
    return state


def _fields_of_text(text: str) -> Iterator[tuple[str, str]]:
    """The fields of a message in protobuf's text format that are strings."""
    place = 0
    while place < len(text.rstrip()):
        found = _FIELD.match(text, place)
        if found is None:
            raise ValueError(f"{text[place:].splitlines()[0]!r} is not a field")
        if found[2] is not None:  # the others are times
            yield found[1], _ESCAPE.sub(_unescaped, found[2].encode()).decode()
        place = found.end()


def _unescaped(found: re.Match[bytes]) -> bytes:
    code = found[1]
    return bytes([int(code, 8) & 255]) if code.isdigit() else {b"n": b"\n"}.get(code, code)


def update_checkpoint_state(
    save_dir: str,
    model_checkpoint_path: str,
    all_model_checkpoint_paths: Sequence[str] | None = None,
    latest_filename: str | None = None,
    all_model_checkpoint_timestamps: Sequence[float] | None = None,
    last_preserved_timestamp: float | None = None,
) -> None:
    """Write the file ``checkpoint`` of a folder."""
    write_state(
        save_dir,
        model_checkpoint_path,
        all_model_checkpoint_paths or (),
        latest_filename,
        times=all_model_checkpoint_timestamps or (),
        preserved=last_preserved_timestamp,
    )


def write_state(
    save_dir: str,
    latest: str,
    paths: Sequence[str],
    latest_filename: str | None,
    *,
    relative: bool = False,
    times: Sequence[float] = (),
    preserved: float | None = None,
) -> None:
    every = [*paths] if paths and paths[-1] == latest else [*paths, latest]
    if times and len(times) != len(every):
        raise ValueError(
            "Checkpoint timestamps, if provided, must match checkpoint paths (got paths"
            f" {every} and timestamps {times})"
        )
    path = os.path.join(save_dir, latest_filename or STATE)
    if path == latest:
        raise RuntimeError(
            f"Save path '{latest}' conflicts with path used for checkpoint state.  Please use a"
            " different save path."
        )
    is_relative = not os.path.isabs(save_dir)
    latest, *every = (
        os.path.relpath(one, save_dir) if (relative if os.path.isabs(one) else is_relative) else one
        for one in (latest, *every)
    )
    lines = [f'model_checkpoint_path: "{_escaped(latest)}"\n']
    lines += [f'all_model_checkpoint_paths: "{_escaped(one)}"\n' for one in every]
    lines += [f"all_model_checkpoint_timestamps: {float(one)}\n" for one in times]
    if preserved is not None:
        lines.append(f"last_preserved_timestamp: {float(preserved)}\n")
    _replace(path, lambda file: file.write("".join(lines).encode()))


def write_checkpoint(prefix: str, values: Mapping[str, Any]) -> None:
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
    with open(path, "rb") as file:
        # Whatever zipfile and NumPy raise of bytes that nobody has written means damage.
        try:
            with zipfile.ZipFile(file) as archive:
                # An entry may have swallowed the next one, as its comment; the end has their count.
                file.seek(-_END, os.SEEK_END)
                (count,) = struct.unpack_from("<H", file.read(_END), 10)
                if count not in (len(archive.infolist()), 0xFFFF):
                    raise ValueError("its directory is another one")
                for member in archive.infolist():
                    if member.compress_type != zipfile.ZIP_STORED:
                        raise ValueError(f"{member.filename} is compressed")
                # Checksums come first: a damaged shape must not ask for all memory.
                if (damaged := archive.testzip()) is not None:
                    raise ValueError(f"the checksum of {damaged} is another one")
                for name in archive.namelist():
                    with archive.open(name) as member_file:
                        array = np.lib.format.read_array(member_file, allow_pickle=False)
                        if member_file.read(1):
                            raise ValueError(f"{name} is longer than its shape")
                    found[name.removesuffix(".npy")] = array[()]
            for name in [one for one in found if one.endswith(":lengths")]:
                plain = name.removesuffix(":lengths")
                found[plain] = _as_strings(found.pop(name), found.pop(f"{plain}:bytes"))
        except MemoryError:
            raise
        except Exception as error:
            message = f"{path}: damaged, or no checkpoint: {error}"
            raise DataLossError(None, None, message) from error
    return found


def remove_checkpoint(
    checkpoint_prefix: str, checkpoint_format_version: int = 2, meta_graph_suffix: str = "meta"
) -> None:
    """Remove the files of a checkpoint, written here or by TensorFlow."""
    endings = (ENDING, ".index", f".{meta_graph_suffix}")
    data = glob(f"{escape(checkpoint_prefix)}.data-?????-of-?????")
    for path in (*(checkpoint_prefix + ending for ending in endings), *data):
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
    sizes, whole, place = np.ravel(lengths).tolist(), data.tobytes(), 0
    if min(sizes, default=0) < 0 or sum(sizes) != len(whole):
        raise ValueError("the lengths of its strings do not add up")
    strings = np.empty(len(sizes), object)
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


# What TensorFlow has written.

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_TRAILER = 5  # behind each block: how it is compressed, and its checksum

Fields = dict[int, list[Any]]


@dataclass(frozen=True, slots=True)
class _Entry:
    dtype: DType
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int


def read_bundle(prefix: str) -> dict[str, Any]:
    """The tensors of a checkpoint by name; checksums need the extra ``tfrecord``."""
    path = f"{prefix}.index"
    with open(path, "rb") as file:
        table = file.read()
    try:
        rows = dict(_rows(table))
        shards = int(_fields(rows.pop(b"")).get(1, [1])[0])
        entries = {key.decode(): _entry(key.decode(), _fields(row)) for key, row in rows.items()}
    except (IndexError, KeyError, ValueError, TypeError, OverflowError, struct.error) as error:
        raise _damaged(path, error) from error
    found: dict[str, Any] = {}
    for shard in range(shards):
        path = f"{prefix}.data-{shard:05d}-of-{shards:05d}"
        with open(path, "rb") as file:
            there = os.fstat(file.fileno()).st_size
            for name, entry in entries.items():
                if entry.shard == shard:
                    if entry.offset + entry.size > there:
                        raise _damaged(path, f"{name}: the file ends before it does")
                    file.seek(entry.offset)
                    found[name] = _tensor(path, name, entry, file.read(entry.size))
    return found


def _damaged(path: str, why: object) -> DataLossError:
    return DataLossError(None, None, f"{path}: damaged, or no checkpoint of TensorFlow: {why}")


def _tensor(path: str, name: str, entry: _Entry, data: bytes) -> Any:
    try:
        if entry.dtype.name == "string":
            return _strings(entry, data)
        _verify(data, entry.checksum)
        numbers = np.frombuffer(data, np.dtype(entry.dtype.as_numpy_dtype).newbyteorder("<"))
        return numbers.astype(entry.dtype.as_numpy_dtype).reshape(entry.shape)[()]
    except (IndexError, ValueError, struct.error) as error:
        raise _damaged(path, f"{name}: {error}") from error


def _strings(entry: _Entry, data: bytes) -> Any:
    """Strings: their lengths, the checksum of these, and their bytes."""
    count, place = int(np.prod(entry.shape, dtype=np.int64)), 0
    lengths: list[int] = []
    for _ in range(count):
        length, place = read_number(data, place)
        lengths.append(length)
    widths = ["I" if length < 2**32 else "Q" for length in lengths]
    packed = struct.pack(f"<{''.join(widths)}", *lengths)
    checksum = data[place : place + 4]
    _verify(packed, *struct.unpack("<I", checksum))
    place += 4
    _verify(packed + data[place - 4 :], entry.checksum)
    strings = np.empty(count, object)
    for number, length in enumerate(lengths):
        strings[number] = data[place : place + length]
        place += length
    if place != len(data):
        raise ValueError("the lengths of its strings do not add up")
    return strings.reshape(entry.shape)[()]


def _verify(data: bytes, checksum: int) -> None:
    if importlib.util.find_spec("google_crc32c") is None:
        return
    from google_crc32c import value

    plain = value(data)
    if ((plain >> 15 | plain << 17) + 0xA282EAD8) & 0xFFFFFFFF != checksum:
        raise ValueError("the checksum is another one")


# The table.


def _rows(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    footer = table[-_FOOTER:]
    if len(footer) < _FOOTER or struct.unpack_from("<Q", footer, _FOOTER - 8)[0] != _MAGIC:
        raise ValueError("it does not end as a table does")
    place = 0
    for _ in range(2):  # the index of other data comes first
        _, place = read_number(footer, place)
    for _, handle in _block(table, footer[place:]):
        yield from _block(table, handle)


def _block(table: bytes, handle: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of one block; keys leave out what they share with the one before."""
    start, place = read_number(handle, 0)
    size, _ = read_number(handle, place)
    block = table[start : start + size]
    compression, checksum = struct.unpack_from("<BI", table, start + size)
    _verify(table[start : start + size + _TRAILER - 4], checksum)
    if compression:
        raise UnimplementedError(None, None, "The index of the checkpoint is compressed.")
    (restarts,) = struct.unpack_from("<I", block, size - 4)
    end, place, key = size - 4 - 4 * restarts, 0, b""
    while place < end:
        shared, place = read_number(block, place)
        own, place = read_number(block, place)
        length, place = read_number(block, place)
        key = key[:shared] + block[place : place + own]
        place += own
        yield key, block[place : place + length]
        place += length


def _fields(message: bytes) -> Fields:
    """The fields of a message by number, each with all its values."""
    found: Fields = {}
    for number, kind, value in fields(message):
        found.setdefault(number, []).append(
            int.from_bytes(value, "little") if kind == FIXED32 else value
        )
    return found


def _entry(name: str, given: Fields) -> _Entry:
    if 7 in given:
        raise UnimplementedError(None, None, f"{name} is kept in slices, which are not read.")
    try:
        dtype = as_dtype(int(given[1][0]))
    except TypeError:
        message = f"{name} has the type number {given[1][0]}, which is not read."
        raise UnimplementedError(None, None, message) from None
    dims = _fields(given.get(2, [b""])[0]).get(2, [])
    shape = tuple(int(_fields(dim).get(1, [0])[0]) for dim in dims)
    shard, offset, size, checksum = (int(given.get(key, [0])[0]) for key in (3, 4, 5, 6))
    return _Entry(dtype, shape, shard, offset, size, checksum)
