"""Files to pictures and back: `decode_jpeg`, `encode_png` and the like, by libraries, an extra.

All but PNG files that are written are TensorFlow's to the last bit: those have its pixels in other
bytes.
"""

from __future__ import annotations

import importlib
import io
import struct
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import as_bytes
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import INDICES, OpBuilder, Pure, array, invalid, one_text
from aioqueue.compat.v1.ops.images import jpeg, png
from aioqueue.compat.v1.ops.images.libraries import MAX_PIXELS, check_pixels, pillow, too_large
from aioqueue.compat.v1.ops.static import constant_value

__all__ = (
    "decode_and_crop_jpeg",
    "decode_bmp",
    "decode_gif",
    "decode_image",
    "decode_jpeg",
    "decode_png",
    "encode_jpeg",
    "encode_png",
    "extract_jpeg_shape",
    "is_jpeg",
)

_MODES: Final = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
_TRANSFORMS: Final = {"": True, "INTEGER_FAST": True, "INTEGER_ACCURATE": False}
"""Names of the inverse transforms, and whether each is the fast one, which is the default."""
_NOT_ONE: Final = "`contents` must be scalar but got shape"
_FORMATS: Final = {"": 0, "default": 0, "grayscale": 1, "rgb": 3}
"""Names of formats to encode, and how many channels each has; 0 for what the picture has."""


def decode_jpeg(
    contents: Any,
    channels: int = 0,
    ratio: int = 1,
    fancy_upscaling: bool = True,
    try_recover_truncated: bool = False,
    acceptable_fraction: float = 1,
    dct_method: str = "",
    name: str | None = None,
    *,
    max_pixels: int | None = MAX_PIXELS,
) -> Tensor:
    """The pixels of a JPEG file.

    The same bits as TensorFlow's while `simplejpeg` is installed, except for what is missing in a
    file that is cut off, and for pictures of less than eight pixels a side that are scaled down.
    Else Pillow decodes, with the accurate transform.

    Args:
        contents: the file's contents, one string.
        channels: 1 for grey, 3 for colours, 0 for what the file has.
        ratio: 1, 2, 4 or 8: how much smaller to make the picture while it is decoded.
        fancy_upscaling: whether to interpolate between colours that are kept for several pixels.
        try_recover_truncated: whether to give what there is of a file that is cut off.
        acceptable_fraction: accepted, and without effect: a file that is cut off is an error
            unless `try_recover_truncated`.
        dct_method: ``"INTEGER_FAST"``, the default, or ``"INTEGER_ACCURATE"``.
        name: name of the op.
        max_pixels: the largest picture to decode, which TensorFlow has not; ``None`` for any.

    Returns:
        uint8 ``[height, width, channels]``.

    Raises:
        ValueError: `channels`, `ratio` or `dct_method` is not one of these.
        InvalidArgumentError: when it runs: it is no picture, is too large, or is cut off.
    """
    decode = _decoding(
        channels, ratio, fancy_upscaling, try_recover_truncated, dct_method, max_pixels
    )
    return _decoded(
        "DecodeJpeg", contents, channels, (0, 1, 3), dtypes.uint8, name, max_pixels, decode
    )


def decode_and_crop_jpeg(
    contents: Any,
    crop_window: Any,
    channels: int = 0,
    ratio: int = 1,
    fancy_upscaling: bool = True,
    try_recover_truncated: bool = False,
    acceptable_fraction: float = 1,
    dct_method: str = "",
    name: str | None = None,
    *,
    max_pixels: int | None = MAX_PIXELS,
) -> Tensor:
    """A part of the picture in a JPEG file.

    The first and the last column may differ from TensorFlow's by a few levels where a file keeps
    colours for several pixels: it does not look beyond the window there.

    Args:
        contents: as for `decode_jpeg`, and so is what is not listed here.
        crop_window: int32: the first row and column, and how many of them.
        ratio: see `decode_jpeg`; the window is of the smaller picture.

    Raises:
        ValueError: an argument has a value that is not allowed.
        InvalidArgumentError: when it runs: it is no picture, or the window is not within it.
    """
    decode = _decoding(
        channels, ratio, fancy_upscaling, try_recover_truncated, dct_method, max_pixels
    )

    def part(contents: Any, window: Any) -> NDArray[Any]:
        contents = one_text(contents, _NOT_ONE)
        pixels = decode(contents)
        top, left, height, width = window.tolist()
        rows, columns = pixels.shape[:2]
        if not (
            0 <= top <= top + height <= rows
            and 0 <= left <= left + width <= columns
            and height * width
        ):
            raise invalid(
                f"Invalid JPEG data or crop window, data size {len(contents)}: the window"
                f" {window.tolist()} is not within {rows} rows and {columns} columns"
            )
        return pixels[top : top + height, left : left + width].copy()

    with OpBuilder("DecodeAndCropJpeg", name) as op:
        op.rank(op.tensor(contents, "contents", dtypes.string), 0)
        window = op.tensor(crop_window, "crop_window", dtypes.int32)
        if op.rank(window, 1) not in ((4,), (None,)):
            raise op.refuse("Dimension must be 4")
        known = constant_value(window)
        size = (None, None) if known is None else tuple(known[2:].tolist())
        return op.output(dtypes.uint8, (*size, channels or None), Pure(part))


def _decoding(
    channels: int,
    ratio: int,
    fancy_upscaling: bool,
    recover: bool,
    dct_method: str,
    max_pixels: int | None,
) -> jpeg.Decoding:
    _check_channels(channels or 0, (0, 1, 3))
    if ratio not in (1, 2, 4, 8):
        raise ValueError(f"ratio: got {ratio!r}; expected 1, 2, 4 or 8")
    if dct_method not in _TRANSFORMS:
        raise ValueError(
            f"dct_method: got {dct_method!r}; expected 'INTEGER_FAST' or 'INTEGER_ACCURATE'"
        )
    pillow()
    fast = _TRANSFORMS[dct_method]
    return jpeg.Decoding(channels or 0, ratio, fancy_upscaling, fast, recover, max_pixels)


def extract_jpeg_shape(
    contents: Any, output_type: Any = dtypes.int32, name: str | None = None
) -> Tensor:
    """Height, width and number of channels of a JPEG file, without decoding it.

    Args:
        contents: the file's contents, one string.
        output_type: int32 or int64.
        name: name of the op.

    Raises:
        InvalidArgumentError: when it runs: it is no JPEG file.
    """
    wanted = dtypes.as_dtype(output_type)
    if wanted.name not in INDICES:
        raise TypeError(f"output_type: got {wanted!r}; expected int32 or int64")

    def sizes(contents: Any) -> NDArray[Any]:
        header = jpeg.header_of(one_text(contents, "contents must be scalar, got shape "))
        return np.array([header.height, header.width, header.channels], wanted.numpy)

    with OpBuilder("ExtractJpegShape", name) as op:
        op.rank(op.tensor(contents, "contents", dtypes.string), 0)
        return op.output(wanted, (3,), Pure(sizes))


def encode_jpeg(
    image: Any,
    format: str = "",
    quality: int = 95,
    progressive: bool = False,
    optimize_size: bool = False,
    chroma_downsampling: bool = True,
    density_unit: str = "in",
    x_density: int = 300,
    y_density: int = 300,
    xmp_metadata: str = "",
    name: str | None = None,
) -> Tensor:
    """The JPEG file of a picture, one string: TensorFlow's bytes.

    Args:
        image: uint8 ``[height, width, channels]``, with 1 or 3 channels.
        format: ``"grayscale"`` or ``"rgb"`` if it must have that many channels.
        quality: from 0 to 100.
        progressive: whether the picture comes coarsely first.
        optimize_size: whether to spend time on a smaller file.
        chroma_downsampling: whether colours are kept for every fourth pixel only.
        density_unit: ``"in"`` or ``"cm"``.
        x_density: pixels per unit.
        y_density: pixels per unit.
        xmp_metadata: text to keep in the file.
        name: name of the op.

    Raises:
        ValueError: an argument has a value that is not allowed.
        InvalidArgumentError: when it runs: there is another number of channels.
    """
    if format not in _FORMATS:
        raise ValueError(f"format: got {format!r}; expected '', 'grayscale' or 'rgb'")
    if density_unit not in ("in", "cm"):
        raise ValueError(f"density_unit: got {density_unit!r}; expected 'in' or 'cm'")
    if not 0 <= quality <= 100:
        raise ValueError(f"quality: got {quality!r}; expected 0 to 100")
    pillow()
    encode = jpeg.Encoding(
        quality,
        progressive,
        optimize_size,
        chroma_downsampling,
        density_unit,
        x_density,
        y_density,
        as_bytes(xmp_metadata),
    )
    channels = _FORMATS[format]

    def file(pixels: Any) -> bytes:
        found = pixels.shape[2]
        if found not in ((channels,) if channels else (1, 3)):
            raise invalid(f"image must have {channels or '1 or 3'} channels, but has {found}")
        return encode(pixels)

    with OpBuilder("EncodeJpeg", name) as op:
        op.rank(op.tensor(image, "image", dtypes.uint8), 3)
        return op.output(dtypes.string, (), Pure(file))


def encode_png(image: Any, compression: int = -1, name: str | None = None) -> Tensor:
    """The PNG file of a picture, one string: TensorFlow's pixels, in bytes of its own.

    Args:
        image: uint8 or uint16 ``[height, width, channels]``, with 1 to 4 channels.
        compression: from 0, none, to 9, the best; -1 for zlib's own choice.
        name: name of the op.

    Raises:
        ValueError: `compression` is not one of these.
        InvalidArgumentError: when it runs: there is another number of channels.
    """
    if not -1 <= compression <= 9:
        raise ValueError(f"compression: got {compression!r}; expected -1 to 9")

    def file(pixels: Any) -> bytes:
        if pixels.shape[2] not in _MODES:
            raise invalid(f"image must have 1, 2, 3, or 4 channels, but has {pixels.shape[2]}")
        if not pixels.size:
            raise invalid(f"image must not be empty, but has shape {list(pixels.shape)}")
        return png.encode(pixels, compression)

    with OpBuilder("EncodePng", name) as op:
        op.rank(op.tensor(image, "image", None, frozenset(("uint8", "uint16"))), 3)
        return op.output(dtypes.string, (), Pure(file))


def decode_png(
    contents: Any,
    channels: int = 0,
    dtype: Any = dtypes.uint8,
    name: str | None = None,
    *,
    max_pixels: int | None = MAX_PIXELS,
) -> Tensor:
    """The pixels of a PNG file.

    Args:
        contents: the file's contents, one string.
        channels: 1 for grey, 2 for grey with alpha, 3 for colours, 4 for colours with alpha, 0 for
            what the file has.
        dtype: uint8 or uint16.
        name: name of the op.
        max_pixels: as for `decode_jpeg`.

    Returns:
        ``[height, width, channels]``.

    Raises:
        ValueError: `channels` or `dtype` is not one of these.
        InvalidArgumentError: when it runs: it is no picture.
    """
    return _decoded("DecodePng", contents, channels, (0, 1, 2, 3, 4), dtype, name, max_pixels)


def decode_bmp(
    contents: Any,
    channels: int = 0,
    name: str | None = None,
    *,
    max_pixels: int | None = MAX_PIXELS,
) -> Tensor:
    """The pixels of a BMP file, uint8 ``[height, width, channels]``; see `decode_png`."""
    return _decoded("DecodeBmp", contents, channels, (0, 1, 3, 4), dtypes.uint8, name, max_pixels)


def decode_gif(
    contents: Any, name: str | None = None, *, max_pixels: int | None = MAX_PIXELS
) -> Tensor:
    """The pictures of a GIF file, uint8 ``[pictures, height, width, 3]``; see `decode_png`."""
    pillow()

    def frames(contents: Any) -> NDArray[Any]:
        picture = _opened(one_text(contents, _NOT_ONE), max_pixels)
        return _stacked(picture, max_pixels, lambda frame: np.asarray(frame.convert("RGB")))

    with OpBuilder("DecodeGif", name) as op:
        op.rank(op.tensor(contents, "contents", dtypes.string), 0)
        return op.output(dtypes.uint8, (None, None, None, 3), Pure(frames))


def decode_image(
    contents: Any,
    channels: int | None = None,
    dtype: Any = dtypes.uint8,
    name: str | None = None,
    expand_animations: bool = True,
    *,
    max_pixels: int | None = MAX_PIXELS,
) -> Tensor:
    """The pixels of a JPEG, PNG, BMP or GIF file.

    Args:
        contents: the file's contents, one string.
        channels: 1 for grey, 3 for colours, 4 for colours with alpha, 0 for what the file has.
        dtype: uint8, or float32 for numbers from 0 to 1.
        name: name of the op.
        expand_animations: whether a GIF gives all of its pictures, and so one dimension more.
        max_pixels: as for `decode_jpeg`; of a GIF, those of all its pictures.

    Returns:
        ``[height, width, channels]``; the static shape is not known if it may be a GIF's.
    """
    wanted = dtypes.as_dtype(dtype)
    if wanted.name not in ("uint8", "float32"):
        raise ValueError(f"dtype: got {wanted!r}; expected uint8 or float32")
    _check_channels(channels or 0, (0, 1, 3, 4))
    pillow()

    def pixels(contents: Any) -> NDArray[Any]:
        contents = one_text(contents, _NOT_ONE)
        is_jpeg = contents.startswith(jpeg.SIGNATURE)
        picture = None if is_jpeg else _opened(contents, max_pixels)
        if picture is None:
            made: NDArray[Any] = jpeg.Decoding(channels or 0, max_pixels=max_pixels)(contents)
        elif expand_animations and picture.format == "GIF":
            made = _stacked(picture, max_pixels, lambda frame: _array(frame, channels or 3))
        else:
            made = _array(picture, channels or 0)
        return made if wanted == dtypes.uint8 else made.astype(np.float32) / np.float32(255)

    with OpBuilder("DecodeImage", name, "decode_image") as op:
        op.rank(op.tensor(contents, "contents", dtypes.string), 0)
        shape = None if expand_animations else (None, None, channels or None)
        return op.output(wanted, shape, Pure(pixels))


def is_jpeg(contents: Any, name: str | None = None) -> Tensor:
    """Whether a string begins as JPEG files do; of several strings, which do."""

    def begins(texts: Any) -> Any:
        found = [one.startswith(jpeg.SIGNATURE) for one in array(texts).ravel().tolist()]
        return np.array(found, np.bool_).reshape(np.shape(texts))

    with OpBuilder("IsJpeg", name, "is_jpeg") as op:
        texts = op.tensor(contents, "contents", dtypes.string)
        return op.output(dtypes.bool, texts.shape.as_tuple(), Pure(begins))


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
    max_pixels: int | None,
    decode: jpeg.Decoding | None = None,
) -> Tensor:
    wanted: DType = dtypes.as_dtype(dtype)
    if wanted.name not in ("uint8", "uint16"):
        raise ValueError(f"dtype: got {wanted!r}; expected uint8 or uint16")
    count = channels or 0
    _check_channels(count, allowed)
    pillow()

    if decode is None and count in (0, 1, 3):
        decode = jpeg.Decoding(count, max_pixels=max_pixels)

    def pixels(contents: Any) -> NDArray[Any]:
        contents = one_text(contents, _NOT_ONE)
        if decode is not None and contents.startswith(jpeg.SIGNATURE):
            made: NDArray[Any] = decode(contents)
        elif wanted == dtypes.uint16 and _has_deep_colours(contents):
            made = _deep(contents, count, max_pixels)
        else:
            made = _array(_opened(contents, max_pixels), count or 2 * _is_grey_with_alpha(contents))
        if made.dtype == wanted.numpy:
            return made
        if wanted == dtypes.uint16:
            return made.astype(np.uint16) * np.uint16(257)
        return (made >> 8).astype(np.uint8)

    with OpBuilder(op_type, name) as op:
        op.rank(op.tensor(contents, "contents", dtypes.string), 0)
        return op.output(wanted, (None, None, count or None), Pure(pixels))


def _has_deep_colours(contents: bytes) -> bool:
    """Whether it is a PNG file with 16 bits per channel, and more channels than one."""
    return (
        contents.startswith(b"\x89PNG") and contents[24:25] == b"\x10" and contents[25:26] > b"\0"
    )


def _deep(contents: bytes, channels: int, max_pixels: int | None) -> NDArray[Any]:
    """Decode colours of 16 bits with OpenCV, because Pillow keeps only 8."""
    try:
        cv2: Any = importlib.import_module("cv2")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "decoding PNG colours of 16 bits needs OpenCV: pip install opencv-python-headless",
            name="cv2",
        ) from error
    width, height = struct.unpack_from(">II", contents.ljust(24, b"\0"), 16)
    check_pixels(width * height, max_pixels)
    pixels = cv2.imdecode(np.frombuffer(contents, np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels is None:
        raise invalid(f"Invalid PNG data, data size {len(contents)}")
    if _is_grey_with_alpha(contents):  # OpenCV turns these into colours
        order = {1: [0], 3: [0, 0, 0], 4: [0, 0, 0, 3]}.get(channels, [0, 3])
    else:
        order = [2, 1, 0, 3][: channels or pixels.shape[-1]]
    return np.ascontiguousarray(pixels[..., order])


def _is_grey_with_alpha(contents: bytes) -> bool:
    return contents.startswith(b"\x89PNG") and contents[25:26] == b"\x04"


def _stacked(
    picture: Any, max_pixels: int | None, array_of: Callable[[Any], NDArray[Any]]
) -> NDArray[Any]:
    """The frames of an animation."""
    frames = getattr(picture, "n_frames", 1)
    check_pixels(frames * picture.width * picture.height, max_pixels)
    rows = []
    for index in range(frames):
        picture.seek(index)
        rows.append(array_of(picture))
    return np.stack(rows)


def _opened(contents: bytes, max_pixels: int | None) -> Any:
    try:
        picture = pillow().open(io.BytesIO(contents))
    except too_large() as error:
        raise invalid(f"Invalid image data, data size {len(contents)}: {error}") from error
    except OSError as error:
        raise invalid("Unknown image file format. One of JPEG, PNG, GIF, BMP required.") from error
    check_pixels(picture.width * picture.height, max_pixels)
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
    if channels == 1 and picture.format == "PNG" and picture.mode in ("RGB", "RGBA"):
        return _grey_by_libpng(np.asarray(picture))
    wanted = _MODES.get(channels, picture.mode)
    pixels = np.asarray(picture if picture.mode == wanted else picture.convert(wanted))
    return pixels if pixels.ndim == 3 else pixels[..., None]


def _grey_by_libpng(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The brightness of colours in the whole numbers that libpng reckons with."""
    red, green, blue = (pixels[..., one].astype(np.uint32) for one in range(3))
    grey = (red * 9797 + green * 19234 + blue * 3737) >> 15
    return grey.astype(np.uint8)[..., None]
