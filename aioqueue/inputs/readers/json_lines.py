"""`read_json_lines`: files with a JSON value on each line, also called JSONL or NDJSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import IO, Any, Final

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.inputs.readers.damage import OnDamage, QuarantinePath
from aioqueue.inputs.readers.files import MAX_LINE_BYTES, StorageOptions, checked_limit
from aioqueue.inputs.readers.reader import Mark, Paths, Reader, Records
from aioqueue.inputs.readers.text_lines import AHEAD, LineBlock, blocks_of, decoder_of

__all__ = ("read_json_lines",)

_parse: Final[Callable[[str], Any]] = json.JSONDecoder().decode


def read_json_lines(
    paths: Paths,
    *,
    encoding: str = "utf-8",
    max_line_bytes: int | None = MAX_LINE_BYTES,
    compression: str | None = "infer",
    storage_options: StorageOptions = None,
    seed: int | None = None,
    on_error: OnDamage = "stop",
    quarantine: QuarantinePath = None,
) -> Reader[Any]:
    """Read files that have a JSON value on each line (JSON lines, JSONL, NDJSON).

    Every line that is not blank is a record: usually an object, which becomes a dict. Python's
    `json` parses the lines. Keys are ``path:number``, with the line's number from 1.

    Args:
        paths: one path or URL, a source of paths such as `files`, or any iterable of paths.
        encoding: the encoding of the files, as for `read_lines`. ``"utf-8-sig"`` also accepts a
            byte order mark.
        max_line_bytes: as for `read_lines`.
        compression: as for `read_lines`.
        storage_options: as for `read_lines`.
        seed: as for `read_lines`.
        on_error: as for `read_lines`.
        quarantine: as for `read_lines`.

    Returns:
        A reader of dicts, lists, strings, numbers, bools and ``None``. Iterating over it raises
        `DataLossError`, with the line's number in the message, if a line is not one JSON value;
        and `OSError` if a file cannot be read.

    Raises:
        InvalidArgumentError: any argument is not as described.
    """
    if encoding is None:
        raise InvalidArgumentError("encoding: got None; expected the encoding of the files")
    decoder = decoder_of(encoding, "strict")
    most = checked_limit(max_line_bytes, "max_line_bytes")

    def cut(stream: IO[bytes], path: str, mark: Mark) -> Iterator[Records[Any]]:
        for block in blocks_of(stream, path, decoder, mark, most):
            yield from _runs(block, path)

    return Reader(
        "read_json_lines",
        paths,
        cut,
        ahead=AHEAD,
        compression=compression,
        storage_options=storage_options,
        seed=seed,
        on_error=on_error,
        quarantine=quarantine,
    )


def _runs(block: LineBlock, path: str) -> Iterator[Records[Any]]:
    """Yield the values of a block of lines; before a line that is not JSON, those before it."""
    numbers: list[int] = []
    values: list[Any] = []
    failure: DataLossError | None = None
    for number, line in enumerate(block.lines, block.first):
        if not line or line.isspace():
            continue
        try:
            values.append(_parse(line))
        except (ValueError, RecursionError) as error:
            failure = _damaged(path, block, number, error)
            break
        numbers.append(number)
    if values:
        yield Records(numbers, values, block.mark)
    if failure is not None:
        raise failure


def _damaged(path: str, block: LineBlock, number: int, error: Exception) -> DataLossError:
    if block.lines[number - block.first].startswith("\ufeff"):
        why = 'it begins with a byte order mark (pass encoding="utf-8-sig")'
    elif isinstance(error, json.JSONDecodeError):
        why = f"{error.msg} at column {error.colno}"
    elif isinstance(error, RecursionError):
        why = "nested too deeply"
    else:  # an int with more digits than Python converts
        why = str(error)
    fault = f"not a JSON value: {why}"
    found = DataLossError(
        f"{path}: line {number}: {fault}", path=path, offset=block.offset_of(number), fault=fault
    )
    found.__cause__ = error
    return found
