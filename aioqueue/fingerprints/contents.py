"""What tells the items of a source from others: in a position, which is small.

Up to 64 MiB all that the items hold counts. Of more, samples do: of an array, pieces that are
spread evenly; of other sequences, items that are. Paths count from the folder that all have in
common, which may be moved. Code has no place here: a run may go on after you have mended it.
"""

from __future__ import annotations

import sys
from array import array as machine_values
from collections import deque
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import PurePath
from typing import Any, Final

import numpy as np

from aioqueue.fingerprints.values import TooLargeError, digest_of_value, is_tensor
from aioqueue.items.positions import relative

MOST_BYTES: Final = 2**26
"""How many bytes are looked at, about: 64 MiB."""
_MOST_SAMPLES: Final = 1024
_PIECE: Final = 2**16
_MOST_COLUMNS: Final = 64
"""Of longer items, no component is looked at as a path."""
_SIZE: Final = 8
_LONGEST: Final = 4096
"""Longer text is no path."""


def digest_of_items(sequence: Any) -> str | None:
    """A digest of the items of a sequence in memory.

    Args:
        sequence: of items: a list, a tuple or an array.

    Returns:
        16 hexadecimal digits. ``None`` if there are no items; if taking one may do more than look
        it up; or if they hold objects that cannot be compared.
    """
    sequence = _plain(sequence)
    if type(sequence) in (np.ndarray, np.memmap):
        if sequence.ndim and not sequence.dtype.hasobject and sequence.dtype.kind not in "UT":
            return digest_of_arrays([sequence])
        sequence = sequence.tolist() if sequence.ndim else ()
    if type(sequence) not in (list, tuple) or not len(sequence):
        return None
    try:
        found = digest_of_value(_moved(sequence), most=MOST_BYTES)
    except TooLargeError:
        places = _places(len(sequence))
        samples = [_sample(one) for one in _moved([sequence[place] for place in places])]
        found = digest_of_value([len(sequence), samples])
    return None if found is None else found.hex()[:16]


def _plain(sequence: Any) -> Any:
    """Return the items in an array, a list or a tuple, where indexing has no side effects."""
    cls = type(sequence)
    if cls is deque:
        return list(sequence)
    if cls is machine_values:
        return np.asarray(sequence)
    if is_tensor(sequence) and type(sequence) is sys.modules["torch"].Tensor:
        plain = sequence.detach().resolve_conj().resolve_neg().cpu()
        if sequence.dtype is sys.modules["torch"].bfloat16:
            plain = plain.view(sys.modules["torch"].int16)
        return None if sequence.is_quantized else plain.numpy()
    for base in (list, tuple):
        if isinstance(sequence, base) and cls.__getitem__ is base.__getitem__:
            return base(sequence)
    return sequence


def digest_of_arrays(arrays: Sequence[Any], names: Sequence[Any] | None = None) -> str | None:
    """A digest of arrays with the same number of rows: of their names, dtypes, shapes and bytes.

    Returns:
        16 hexadecimal digits; ``None`` if they hold objects that cannot be compared.
    """
    digest = blake2b(repr(names).encode(), digest_size=_SIZE)
    share = MOST_BYTES // max(1, len(arrays))
    total = sum(one.nbytes for one in arrays)
    for one in arrays:
        digest.update(f"{one.dtype.str} {one.dtype} {one.shape}".encode())
        if one.dtype.hasobject or one.dtype.kind == "T":
            found: Any = digest_of_items(one.ravel().tolist())
            if found is None and one.size:
                return None
            digest.update(str(found).encode())
        elif total <= MOST_BYTES:
            digest.update(digest_of_value(one) or b"")
        else:
            for piece in _pieces(one, share):
                digest.update(piece)
    return digest.hexdigest()


def _pieces(array: Any, share: int) -> Iterator[Any]:
    """Yield bytes of an array in evenly spaced pieces, including the first and the last."""
    if array.flags.c_contiguous:
        flat = np.asarray(array).reshape(-1).view(np.uint8)
        count = max(2, share // _PIECE)
        last = max(0, len(flat) - _PIECE)
        for begin in dict.fromkeys(last * at // (count - 1) for at in range(count)):
            yield flat[begin : begin + _PIECE]
    elif len(array):
        row = array[0].nbytes
        if row > share and array.ndim > 1:
            for at in _places(len(array), max(2, share // 2**20)):
                yield from _pieces(array[at], 2**20)
        else:
            for at in _places(len(array), max(2, share // max(1, row))):
                yield np.ascontiguousarray(array[at]).tobytes()


def _places(count: int, most: int = _MOST_SAMPLES) -> Sequence[int]:
    """Return evenly spaced positions of items, including the first and the last."""
    last = count - 1
    return list(dict.fromkeys(last * at // max(1, most - 1) for at in range(most)))


def _sample(item: Any) -> Any:
    """Return the part of an item that counts, if there is too much data to read all of it."""
    if isinstance(item, str | bytes) and len(item) > _PIECE:
        half = _PIECE // 2
        return [len(item), item[:half], item[-half:]]
    if type(item) in (np.ndarray, np.memmap) and item.nbytes > _PIECE:
        return [str(item.dtype), item.shape, _digest_of_pieces(item)]
    if type(item) in (list, tuple):
        return [len(item), *(_sample(one) for one in item[:64])]
    if type(item) is dict:
        return [len(item), *([key, _sample(item[key])] for key in list(item)[:64])]
    return item


def _digest_of_pieces(array: Any) -> Any:
    if array.dtype.hasobject or array.dtype.kind == "T":
        return digest_of_items(array.ravel().tolist()[:64])
    digest = blake2b(digest_size=_SIZE)
    for piece in _pieces(array, 2 * _PIECE):
        digest.update(piece)
    return digest.hexdigest()


def _moved(items: Sequence[Any]) -> list[Any]:
    """The same items with paths and text relative to the folder that all have in common.

    Of pairs such as (path, label), and of dicts, each component has a folder of its own.
    """
    first = items[0]
    if type(first) in (tuple, list) and 0 < len(first) <= _MOST_COLUMNS:
        if all(type(one) is type(first) and len(one) == len(first) for one in items):
            columns = [_moved_column([one[at] for one in items]) for at in range(len(first))]
            return list(map(type(first), zip(*columns, strict=True)))
    elif type(first) is dict and first:
        keys = list(first)
        if all(type(one) is dict and list(one) == keys for one in items):
            columns = [_moved_column([one[key] for one in items]) for key in keys]
            return [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)]
    return _moved_column(list(items))


def _moved_column(column: list[Any]) -> list[Any]:
    at = [number for number, one in enumerate(column) if isinstance(one, str | PurePath)]
    if at and all(len(str(column[number])) <= _LONGEST for number in at):
        names = relative([str(column[number]) for number in at])
        for number, name in zip(at, names, strict=True):
            column[number] = name
    elif column and all(type(one) is bytes and len(one) <= _LONGEST for one in column):
        return list(relative([one.decode("latin-1") for one in column]))
    return column
