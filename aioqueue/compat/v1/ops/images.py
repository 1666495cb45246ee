"""Pictures to arrays: `decode_jpeg`, `decode_png` and the like, by Pillow, an extra.

PNG, BMP and GIF give TensorFlow's arrays exactly. JPEG may differ by a few grey levels where
Pillow's decoder rounds differently.
"""

from __future__ import annotations

import importlib
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import OpBuilder, Pure, invalid

__all__ = ("decode_bmp", "decode_gif", "decode_image", "decode_jpeg", "decode_png", "is_jpeg")

_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
_JPEG = b"\xff\xd8\xff"


def _pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "decoding pictures needs Pillow: pip install 'aioqueue[images]'", name="PIL"
        ) from error


def decode_jpeg(
    contents: Any,
    channels: int = 0,
    ratio: int = 1,
    fancy_upscaling: bool = True,
    try_recover_truncated: bool = False,
    acceptable_fraction: float = 1,
    dct_method: str = "",
    name: str | None = None,
) -> Tensor:
    """The pixels of a JPEG file.

    Args:
        contents: the file's contents, one string.
        channels: 1 for grey, 3 for colours, 0 for what the file has.
        ratio: 1, 2, 4 or 8: how much smaller to make the picture.
        fancy_upscaling: accepted; Pillow's decoder does it.
        try_recover_truncated: accepted; a file that is cut off is an error.
        acceptable_fraction: accepted, as it belongs to that.
        dct_method: accepted; Pillow's decoder has one.
        name: name of the op.

    Returns:
        uint8 ``[height, width, channels]``.

    Raises:
        ValueError: `channels` or `ratio` is none of these.
        InvalidArgumentError: when it runs: it is no picture.
    """
    if ratio not in (1, 2, 4, 8):
        raise ValueError(f"ratio: got {ratio!r}; expected 1, 2, 4 or 8")
    return _decoded("DecodeJpeg", contents, channels, (0, 1, 3), dtypes.uint8, name, ratio)


def decode_png(
    contents: Any, channels: int = 0, dtype: Any = dtypes.uint8, name: str | None = None
) -> Tensor:
    """The pixels of a PNG file.

    Args:
        contents: the file's contents, one string.
        channels: 1 for grey, 2 for grey with alpha, 3 for colours, 4 for colours with alpha, 0 for
            what the file has.
        dtype: uint8 or uint16.
        name: name of the op.

    Returns:
        ``[height, width, channels]``.

    Raises:
        ValueError: `channels` or `dtype` is none of these.
        InvalidArgumentError: when it runs: it is no picture.
    """
    return _decoded("DecodePng", contents, channels, (0, 1, 2, 3, 4), dtype, name)


def decode_bmp(contents: Any, channels: int = 0, name: str | None = None) -> Tensor:
    """The pixels of a BMP file, uint8 ``[height, width, channels]``; see `decode_png`."""
    return _decoded("DecodeBmp", contents, channels, (0, 1, 3, 4), dtypes.uint8, name)


def decode_gif(contents: Any, name: str | None = None) -> Tensor:
    """The pictures of a GIF file, uint8 ``[pictures, height, width, 3]``."""
    _pillow()

    def frames(contents: bytes) -> NDArray[Any]:
        picture = _opened(contents)
        rows = []
        for index in range(getattr(picture, "n_frames", 1)):
            picture.seek(index)
            rows.append(np.asarray(picture.convert("RGB")))
        return np.stack(rows)

    with OpBuilder("DecodeGif", name) as op:
        op.rank(op.tensor(contents, "contents", dtypes.string), 0)
        return op.output(dtypes.uint8, (None, None, None, 3), Pure(frames))


def decode_image(
    contents: Any,
    channels: int | None = None,
    dtype: Any = dtypes.uint8,
    name: str | None = None,
    expand_animations: bool = True,
) -> Tensor:
    """The pixels of a JPEG, PNG, BMP or GIF file.

    Args:
        contents: the file's contents, one string.
        channels: 1 for grey, 3 for colours, 4 for colours with alpha, 0 for what the file has.
        dtype: uint8, or float32 for numbers from 0 to 1.
        name: name of the op.
        expand_animations: whether a GIF gives all of its pictures, and so one dimension more.

    Returns:
        ``[height, width, channels]``; the static shape is not known if it may be a GIF's.
    """
    wanted = dtypes.as_dtype(dtype)
    if wanted.name not in ("uint8", "float32"):
        raise ValueError(f"dtype: got {wanted!r}; expected uint8 or float32")
    _check_channels(channels or 0, (0, 1, 3, 4))
    _pillow()

    def pixels(contents: bytes) -> NDArray[Any]:
        picture = _opened(contents)
        if expand_animations and picture.format == "GIF":
            rows = []
            for index in range(getattr(picture, "n_frames", 1)):
                picture.seek(index)
                rows.append(_array(picture, channels or 3))
            made = np.stack(rows)
        else:
            made = _array(picture, channels or 0)
        return made if wanted == dtypes.uint8 else made.astype(np.float32) / np.float32(255)

    with OpBuilder("DecodeImage", name, "decode_image") as op:
        op.rank(op.tensor(contents, "contents", dtypes.string), 0)
        shape = None if expand_animations else (None, None, channels or None)
        return op.output(wanted, shape, Pure(pixels))


def is_jpeg(contents: Any, name: str | None = None) -> Tensor:
    """Whether a string begins as JPEG files do."""
    with OpBuilder("IsJpeg", name, "is_jpeg") as op:
        op.rank(op.tensor(contents, "contents", dtypes.string), 0)
        return op.output(dtypes.bool, (), Pure(lambda one: np.bool_(one.startswith(_JPEG))))


def _check_channels(channels: int, allowed: tuple[int, ...]) -> None:
    if channels not in allowed:
        raise ValueError(f"channels: got {channels!r}; expected one of {allowed}")


def _decoded(
    op_type: str,
    contents: Any,
    channels: int | None,
    allowed: tuple[int, ...],
    dtype: Any,
    name: str | None,
    ratio: int = 1,
) -> Tensor:
    wanted: DType = dtypes.as_dtype(dtype)
    if wanted.name not in ("uint8", "uint16"):
        raise ValueError(f"dtype: got {wanted!r}; expected uint8 or uint16")
    count = channels or 0
    _check_channels(count, allowed)
    _pillow()

    def pixels(contents: bytes) -> NDArray[Any]:
        picture = _opened(contents)
        if ratio > 1:
            size = (-(-picture.width // ratio), -(-picture.height // ratio))
            picture.draft(picture.mode, size)
        made = _array(picture, count)
        if made.dtype == wanted.numpy:
            return made
        if wanted == dtypes.uint16:
            return made.astype(np.uint16) * np.uint16(257)
        return (made >> 8).astype(np.uint8)

    with OpBuilder(op_type, name) as op:
        op.rank(op.tensor(contents, "contents", dtypes.string), 0)
        return op.output(wanted, (None, None, count or None), Pure(pixels))


def _opened(contents: bytes) -> Any:
    try:
        picture = _pillow().open(io.BytesIO(contents))
    except OSError as error:
        raise invalid("Unknown image file format. One of JPEG, PNG, GIF, BMP required.") from error
    try:
        picture.load()
    except (OSError, SyntaxError) as error:  # which of them depends on the format
        kind, size = picture.format, len(contents)
        raise invalid(f"Invalid {kind} data, data size {size}: {error}") from error
    return picture


def _array(picture: Any, channels: int) -> NDArray[Any]:
    """The pixels as ``[height, width, channels]``."""
    if picture.mode.startswith("I"):  # 16 bits of grey
        grey = np.asarray(picture).astype(np.uint16)[..., None]
        return np.repeat(grey, channels, axis=-1) if channels == 3 else grey
    if picture.mode == "P":  # a palette has the colours that it has
        picture = picture.convert("RGBA" if "transparency" in picture.info else "RGB")
    if picture.mode not in _MODES.values():
        picture = picture.convert("L" if picture.mode == "1" else "RGB")
    wanted = _MODES.get(channels, picture.mode)
    pixels = np.asarray(picture if picture.mode == wanted else picture.convert(wanted))
    return pixels if pixels.ndim == 3 else pixels[..., None]
