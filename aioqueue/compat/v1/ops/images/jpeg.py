"""JPEG files to arrays and back.

`simplejpeg` decodes with libjpeg-turbo as TensorFlow does, to the same bits, straight into an array
and without the interpreter's lock. Where it is not installed Pillow does it, which knows one
transform, the accurate one, and one way to upsample colours. Pillow encodes, to TensorFlow's bytes.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.ops.building import invalid
from aioqueue.compat.v1.ops.images.libraries import (
    check_pixels,
    pillow,
    simplejpeg,
    too_large,
)

__all__ = ("SIGNATURE", "Decoding", "Encoding", "Header", "header_of")

SIGNATURE: Final = b"\xff\xd8\xff"

_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of segments that have the picture's size."""
_WITHOUT_LENGTH: Final = frozenset((0x01, *range(0xD0, 0xD9)))
_ADOBE: Final = 0xEE
_XMP: Final = b"http://ns.adobe.com/xap/1.0/\0"
_CMYK: Final = 4


@dataclass(frozen=True, slots=True)
class Header:
    """What the beginning of a file tells.

    Attributes:
        height: of the picture, in pixels.
        width: of the picture, in pixels.
        channels: of the file: 1, 3, or 4 for cyan, magenta, yellow and black.
        from_adobe: whether a program of Adobe's has written it: four channels are inverted then.
    """

    height: int
    width: int
    channels: int
    from_adobe: bool


def header_of(contents: bytes) -> Header:
    """Read a file's header.

    Raises:
        InvalidArgumentError: the file has no header.
    """
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
    """How files are decoded.

    Attributes:
        channels: 1 for grey, 3 for colours, 0 for what the file has.
        ratio: how much smaller the picture shall be: 1, 2, 4 or 8.
        fancy_upscaling: whether colours are interpolated between their coarser pixels.
        fast: whether the transform is the fast one, which is less accurate.
        recover: whether what is missing at the end is no error.
        max_pixels: the largest picture to decode; ``None`` for any.
    """

    channels: int = 0
    ratio: int = 1
    fancy_upscaling: bool = True
    fast: bool = True
    recover: bool = False
    max_pixels: int | None = None

    def __call__(self, contents: bytes) -> NDArray[np.uint8]:
        """The pixels of a file, ``[height, width, channels]``.

        Raises:
            InvalidArgumentError: it is no JPEG file, is damaged, or has too many pixels.
        """
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
        """Whether the end is missing, and must be there.

        Neither marker occurs within a scan, so the end is behind the last scan's beginning.
        """
        return not self.recover and contents.rfind(b"\xff\xd9") < contents.rfind(b"\xff\xda")

    def _by_turbo(self, contents: bytes, header: Header, space: str) -> NDArray[np.uint8]:
        height, width = self._size(header)
        try:
            pixels: NDArray[np.uint8] = simplejpeg().decode_jpeg(
                contents,
                space,
                fastdct=self.fast,
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
        except (OSError, SyntaxError, too_large()) as error:
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


@dataclass(frozen=True, slots=True)
class Encoding:
    """How files are encoded.

    Attributes:
        quality: from 0 to 100.
        progressive: whether the picture comes coarsely first.
        optimize_size: whether to spend time on a smaller file.
        chroma_downsampling: whether colours are kept for every fourth pixel only.
        density_unit: ``"in"`` or ``"cm"``.
        x_density: pixels per unit.
        y_density: pixels per unit.
        xmp_metadata: text to keep in the file.
    """

    quality: int = 95
    progressive: bool = False
    optimize_size: bool = False
    chroma_downsampling: bool = True
    density_unit: str = "in"
    x_density: int = 300
    y_density: int = 300
    xmp_metadata: bytes = b""

    def __call__(self, pixels: NDArray[np.uint8], quality: int | None = None) -> bytes:
        """The file of pixels, ``[height, width, 1 or 3]``."""
        is_grey = pixels.shape[-1] == 1
        file = io.BytesIO()
        picture = pillow().fromarray(pixels[..., 0] if is_grey else np.ascontiguousarray(pixels))
        picture.save(
            file,
            "JPEG",
            quality=self.quality if quality is None else quality,
            progressive=self.progressive,
            optimize=self.optimize_size,
            subsampling=2 if self.chroma_downsampling and not is_grey else 0,
            dpi=(300, 300),
        )
        return self._completed(file.getvalue())

    def _completed(self, contents: bytes) -> bytes:
        """Add to the file what Pillow has no options for."""
        unit = {"in": 1, "cm": 2}[self.density_unit]
        density = bytes([unit]) + self.x_density.to_bytes(2) + self.y_density.to_bytes(2)
        head, body = contents[:13] + density + contents[18:20], contents[20:]
        if not self.xmp_metadata:
            return head + body
        text = _XMP + self.xmp_metadata
        return head + b"\xff\xe1" + (2 + len(text)).to_bytes(2) + text + body
