"""Files to pictures and back: `decode_jpeg`, `encode_png` and the like, by libraries, an extra.

What is decoded is TensorFlow's to the last bit, and JPEG files that are written, too. `simplejpeg`
decodes JPEG as TensorFlow does; without it, Pillow does, with one transform, the accurate one. More
than TensorFlow, decoders have `max_pixels`: the most that a file may claim; ``None`` for any.
"""

from __future__ import annotations

import importlib
import io
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from operator import methodcaller
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aioqueue.base import extras
from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import as_bytes
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import INDICES, Dims, OpBuilder, Pure, invalid, one_text
from aioqueue.compat.v1.ops.static import constant_value
from aioqueue.compat.v1.ops.text import map_strings

__all__ = (
    "decode_and_crop_jpeg", "decode_bmp", "decode_gif", "decode_image", "decode_jpeg", "decode_png",
    "encode_jpeg", "encode_png", "extract_jpeg_shape", "is_jpeg",
)  # fmt: skip

MAX_PIXELS: Final = 2**27
"""The largest picture that is decoded by default: a file of some kilobytes may claim any size."""


def pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"decoding pictures needs Pillow: {extras.command_for('images')}", name="PIL"
        ) from error


@cache
def simplejpeg() -> Any:
    try:
        return importlib.import_module("simplejpeg")
    except ModuleNotFoundError:
        return None


def check_pixels(pixels: int, most: int | None) -> None:
    if most is not None and pixels > most:
        raise invalid(
            f"max_pixels: got a picture of {pixels} pixels; expected at most {most} (pass a larger"
            " max_pixels, or None, if you trust the file)"
        )


_COLOUR_TYPES: Final = {1: 0, 2: 4, 3: 2, 4: 6}


def _png_file(pixels: NDArray[Any], compression: int) -> bytes:
    """A file of pixels (W3C, "Portable Network Graphics", third edition)."""
    height, width, channels = pixels.shape
    stored = np.ascontiguousarray(pixels, pixels.dtype.newbyteorder(">")).view(np.uint8)
    rows = stored.reshape(height, -1)
    filtered = np.empty((height, rows.shape[1] + 1), np.uint8)
    filtered[:, 0] = 2  # the filter that keeps the difference to the row above
    filtered[0, 1:] = rows[0]
    np.subtract(rows[1:], rows[:-1], out=filtered[1:, 1:])
    head = struct.pack(
        ">IIBBBBB", width, height, 8 * pixels.dtype.itemsize, _COLOUR_TYPES[channels], 0, 0, 0
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(kind, data)
        for kind, data in (
            (b"IHDR", head),
            (b"IDAT", zlib.compress(filtered.tobytes(), compression)),
            (b"IEND", b""),
        )
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


SIGNATURE: Final = b"\xff\xd8\xff"
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of segments that have the picture's size."""

_WITHOUT_LENGTH: Final = frozenset((0x01, *range(0xD0, 0xD9)))
_ADOBE: Final = 0xEE
_XMP: Final = b"http://ns.adobe.com/xap/1.0/\0"
_CMYK: Final = 4


class Header(NamedTuple):
    """What the beginning of a JPEG file says; Adobe's programs invert four channels."""

    height: int
    width: int
    channels: int
    from_adobe: bool


def header_of(contents: bytes) -> Header:
    place, from_adobe = 2, False
    while contents.startswith(b"\xff\xd8") and place + 4 <= len(contents):
        if contents[place] != 0xFF:
            place += 1
            continue
        marker = contents[place + 1]
        if marker == 0xFF or marker in _WITHOUT_LENGTH:
            place += 1 if marker == 0xFF else 2
            continue
        segment = contents[place + 4 : place + 10]
        if marker in _FRAMES and len(segment) == 6:
            height, width = int.from_bytes(segment[1:3]), int.from_bytes(segment[3:5])
            return Header(height, width, segment[5], from_adobe)
        from_adobe |= marker == _ADOBE and segment.startswith(b"Adobe")
        place += 2 + int.from_bytes(contents[place + 2 : place + 4])
    raise _refusal(contents, "it has no header")


def _refusal(contents: bytes, why: Any) -> Exception:
    return invalid(f"Invalid JPEG data or crop window, data size {len(contents)}: {why}")


@dataclass(frozen=True, slots=True)
class Decoding:
    channels: int = 0
    ratio: int = 1
    fancy_upscaling: bool = True
    recover: bool = False
    dct_method: str = ""
    max_pixels: int | None = None

    def __post_init__(self) -> None:
        if self.ratio not in (1, 2, 4, 8):
            raise ValueError(f"ratio: got {self.ratio!r}; expected 1, 2, 4 or 8")
        if self.dct_method not in _TRANSFORMS:
            expected = "expected 'INTEGER_FAST' or 'INTEGER_ACCURATE'"
            raise ValueError(f"dct_method: got {self.dct_method!r}; {expected}")

    def __call__(self, contents: bytes) -> NDArray[np.uint8]:
        header = header_of(contents)
        check_pixels(header.height * header.width, self.max_pixels)
        channels = self.channels or min(header.channels, 3)
        if channels == 1 and header.channels == _CMYK:
            raise _refusal(contents, "four channels do not make a grey picture")
        if self._is_cut_off(contents):
            raise _refusal(contents, "it is truncated")
        if simplejpeg() is None:
            return self._by_pillow(contents, header, channels)
        if header.channels == _CMYK:
            return _rgb_of(self._by_turbo(contents, header, "CMYK"), header.from_adobe)
        return self._by_turbo(contents, header, "GRAY" if channels == 1 else "RGB")

    def _is_cut_off(self, contents: bytes) -> bool:
        # Neither marker occurs within a scan: the end is behind the last scan's beginning.
        return not self.recover and contents.rfind(b"\xff\xd9") < contents.rfind(b"\xff\xda")

    def _by_turbo(self, contents: bytes, header: Header, space: str) -> NDArray[np.uint8]:
        height, width = self._size(header)
        try:
            pixels: NDArray[np.uint8] = simplejpeg().decode_jpeg(
                contents,
                space,
                fastdct=_TRANSFORMS[self.dct_method],
                fastupsample=not self.fancy_upscaling,
                min_height=height if self.ratio > 1 else 0,
                min_width=width if self.ratio > 1 else 0,
                min_factor=self.ratio,
                strict=False,  # what libjpeg only warns of is no error in TensorFlow either
            )
        except ValueError as error:
            raise _refusal(contents, error) from error
        return pixels

    def _by_pillow(self, contents: bytes, header: Header, channels: int) -> NDArray[np.uint8]:
        try:
            picture = pillow().open(io.BytesIO(contents))
            mode = "L" if channels == 1 else "RGB"
            if self.ratio > 1 or (mode == "L" and picture.mode == "RGB"):
                least = (max(one // self.ratio, 1) for one in picture.size)
                picture.draft(mode, tuple(least))
            height, width = self._size(header)
            if picture.size != (width, height):  # Pillow minds small sizes more than libjpeg
                done = max(-(-header.width // picture.width), -(-header.height // picture.height))
                picture = picture.reduce(self.ratio // done)
            made = np.array(picture if picture.mode == mode else picture.convert(mode))
        except (OSError, SyntaxError, pillow().DecompressionBombError) as error:
            raise _refusal(contents, error) from error
        return made if made.ndim == 3 else made[..., None]

    def _size(self, header: Header) -> tuple[int, int]:
        return -(-header.height // self.ratio), -(-header.width // self.ratio)


def _rgb_of(pixels: NDArray[np.uint8], inverted: bool) -> NDArray[np.uint8]:
    """Red, green and blue of cyan, magenta, yellow and black, as TensorFlow mixes them."""
    wide = pixels.astype(np.int32)
    if not inverted:
        wide = 255 - wide
    return (wide[..., 3:] * wide[..., :3] // 255).astype(np.uint8)


_MODES: Final = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
_TRANSFORMS: Final = {"": True, "INTEGER_FAST": True, "INTEGER_ACCURATE": False}
"""Whether each of the inverse transforms is the fast one."""

_NOT_ONE: Final = "`contents` must be scalar but got shape"
_UNITS: Final = {"in": b"\1", "cm": b"\2"}
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
    """The pixels of a JPEG file; `acceptable_fraction` has no effect.

    Those of a file that is cut off, and of less than eight pixels a side that are scaled, differ.
    """
    how = fancy_upscaling, try_recover_truncated, dct_method, max_pixels
    decode = Decoding(channels or 0, ratio, *how)
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
    """A part of a JPEG picture; colours at its left and right edges may differ a little."""
    how = fancy_upscaling, try_recover_truncated, dct_method, max_pixels
    decode = Decoding(channels or 0, ratio, *how)

    _check_channels(channels or 0, (0, 1, 3))
    pillow()

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


def extract_jpeg_shape(
    contents: Any, output_type: Any = dtypes.int32, name: str | None = None
) -> Tensor:
    """Height, width and number of channels of a JPEG file, without decoding it."""
    wanted = dtypes.as_dtype(output_type)
    if wanted.name not in INDICES:
        raise TypeError(f"output_type: got {wanted!r}; expected int32 or int64")

    def sizes(contents: Any) -> NDArray[Any]:
        header = header_of(one_text(contents, "contents must be scalar, got shape "))
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
    """The JPEG file of a picture, one string: TensorFlow's bytes."""
    if format not in _FORMATS:
        raise ValueError(f"format: got {format!r}; expected '', 'grayscale' or 'rgb'")
    if density_unit not in _UNITS:
        raise ValueError(f"density_unit: got {density_unit!r}; expected 'in' or 'cm'")
    if not 0 <= quality <= 100:
        raise ValueError(f"quality: got {quality!r}; expected 0 to 100")
    pillow()
    channels, unit, xmp = _FORMATS[format], _UNITS[density_unit], as_bytes(xmp_metadata)

    def file(pixels: Any) -> bytes:
        found = pixels.shape[2]
        if found not in ((channels,) if channels else (1, 3)):
            raise invalid(f"image must have {channels or '1 or 3'} channels, but has {found}")
        stream = io.BytesIO()
        picture = pillow().fromarray(pixels[..., 0] if found == 1 else np.ascontiguousarray(pixels))
        picture.save(
            stream,
            "JPEG",
            quality=quality,
            progressive=progressive,
            optimize=optimize_size,
            subsampling=2 if chroma_downsampling and found > 1 else 0,
            dpi=(300, 300),
        )
        made = stream.getvalue()
        # What follows Pillow has no options for: the density, and a segment of metadata.
        density = unit + x_density.to_bytes(2) + y_density.to_bytes(2)
        text = _XMP + xmp
        segment = b"\xff\xe1" + (2 + len(text)).to_bytes(2) + text if xmp else b""
        return made[:13] + density + made[18:20] + segment + made[20:]

    with OpBuilder("EncodeJpeg", name) as op:
        op.rank(op.tensor(image, "image", dtypes.uint8), 3)
        return op.output(dtypes.string, (), Pure(file))


def encode_png(image: Any, compression: int = -1, name: str | None = None) -> Tensor:
    """The PNG file of a picture, one string: TensorFlow's pixels, in bytes of its own."""
    if not -1 <= compression <= 9:
        raise ValueError(f"compression: got {compression!r}; expected -1 to 9")

    def file(pixels: Any) -> bytes:
        if pixels.shape[2] not in _MODES:
            raise invalid(f"image must have 1, 2, 3, or 4 channels, but has {pixels.shape[2]}")
        if not pixels.size:
            raise invalid(f"image must not be empty, but has shape {list(pixels.shape)}")
        return _png_file(pixels, compression)

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
    """The pixels of a PNG file."""
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

    def frames(contents: bytes) -> NDArray[Any]:
        picture = _opened(contents, max_pixels)
        return _stacked(picture, max_pixels, lambda frame: np.asarray(frame.convert("RGB")))

    with OpBuilder("DecodeGif", name) as op:
        return _of_contents(op, contents, dtypes.uint8, (None, None, None, 3), frames)


def decode_image(
    contents: Any,
    channels: int | None = None,
    dtype: Any = dtypes.uint8,
    name: str | None = None,
    expand_animations: bool = True,
    *,
    max_pixels: int | None = MAX_PIXELS,
) -> Tensor:
    """The pixels of a JPEG, PNG, BMP or GIF file."""
    wanted = dtypes.as_dtype(dtype)
    if wanted.name not in ("uint8", "float32"):
        raise ValueError(f"dtype: got {wanted!r}; expected uint8 or float32")
    _check_channels(channels or 0, (0, 1, 3, 4))
    pillow()

    def pixels(contents: bytes) -> NDArray[Any]:
        if contents.startswith(SIGNATURE):
            made: NDArray[Any] = Decoding(channels or 0, max_pixels=max_pixels)(contents)
        elif (
            (picture := _opened(contents, max_pixels))
            and expand_animations
            and picture.format == "GIF"
        ):
            made = _stacked(picture, max_pixels, lambda frame: _array(frame, channels or 3))
        else:
            made = _array(picture, channels or 0)
        return made if wanted == dtypes.uint8 else made.astype(np.float32) / np.float32(255)

    with OpBuilder("DecodeImage", name, "decode_image") as op:
        shape = None if expand_animations else (None, None, channels or None)
        return _of_contents(op, contents, wanted, shape, pixels)


def is_jpeg(contents: Any, name: str | None = None) -> Tensor:
    """Whether a string begins as JPEG files do; of several strings, which do."""

    begins = methodcaller("startswith", SIGNATURE)
    return map_strings("IsJpeg", begins, contents, name or "is_jpeg", dtypes.bool, "contents")


def _of_contents(
    op: OpBuilder, contents: Any, dtype: DType, shape: Dims, function: Callable[[bytes], Any]
) -> Tensor:
    op.rank(op.tensor(contents, "contents", dtypes.string), 0)
    return op.output(dtype, shape, Pure(lambda text: function(one_text(text, _NOT_ONE))))


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
    decode: Decoding | None = None,
) -> Tensor:
    wanted: DType = dtypes.as_dtype(dtype)
    if wanted.name not in ("uint8", "uint16"):
        raise ValueError(f"dtype: got {wanted!r}; expected uint8 or uint16")
    count = channels or 0
    _check_channels(count, allowed)
    pillow()

    if decode is None and count in (0, 1, 3):
        decode = Decoding(count, max_pixels=max_pixels)

    def pixels(contents: bytes) -> NDArray[Any]:
        if decode is not None and contents.startswith(SIGNATURE):
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
        return _of_contents(op, contents, wanted, (None, None, count or None), pixels)


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
    except pillow().DecompressionBombError as error:  # above Pillow's own limit
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
