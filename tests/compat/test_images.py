"""Picture files and what they need, and what pictures are while a graph is built.

What the ops give beside TensorFlow is in `test_ops`, with the cases of `op_cases_images`.
"""

from __future__ import annotations

import io
import sys
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from aioqueue.compat.v1.ops.images import codecs
from aioqueue.compat.v1.ops.images.codecs import header_of
from tests.compat.steps import refused

pil = pytest.importorskip("PIL.Image", reason="pictures need Pillow: pip install '.[images]'")


def run(*fetches: Any) -> Any:
    with tf.Session() as session:
        return session.run(fetches[0] if len(fetches) == 1 else list(fetches))


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as made:
        yield made


def smooth(height: int = 40, width: int = 50, channels: int = 3) -> Any:
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([(x + y + 60 * one) % 256 for one in range(channels)], -1).astype("u1")


def saved(pixels: Any, kind: str, mode: str | None = None, **options: Any) -> bytes:
    file = io.BytesIO()
    picture = pil.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    (picture if mode is None else picture.convert(mode)).save(file, kind, **options)
    return file.getvalue()


@pytest.fixture(params=["simplejpeg", "Pillow"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Which library decodes JPEG files."""
    name: str = request.param
    codecs.simplejpeg.cache_clear()
    if name == "Pillow":
        monkeypatch.setitem(sys.modules, "simplejpeg", None)
    elif codecs.simplejpeg() is None:
        pytest.skip("needs simplejpeg: pip install '.[images]'")
    yield name
    codecs.simplejpeg.cache_clear()


@pytest.mark.usefixtures("decoder")
class TestJpeg:
    @pytest.mark.parametrize("ratio", [1, 2, 4, 8])
    @pytest.mark.parametrize("size", [(40, 50), (33, 47), (1, 1), (3, 200)])
    def test_ratio(self, ratio: int, size: tuple[int, int]) -> None:
        contents = saved(smooth(*size), "JPEG")
        made = run(tf.image.decode_jpeg(contents, ratio=ratio))
        assert made.shape == (-(-size[0] // ratio), -(-size[1] // ratio), 3)
        mean = made.astype(float).mean((0, 1))
        whole = run(tf.image.decode_jpeg(contents)).astype(float).mean((0, 1))
        assert np.abs(mean - whole).max() < 40

    @pytest.mark.parametrize(("mode", "channels", "found"), [
        ("RGB", 0, 3), ("RGB", 1, 1), ("L", 0, 1), ("L", 3, 3), ("CMYK", 0, 3), ("CMYK", 3, 3),
    ])  # fmt: skip
    def test_channels(self, mode: str, channels: int, found: int) -> None:
        contents = saved(smooth(), "JPEG", mode)
        made = tf.image.decode_jpeg(contents, channels=channels)
        assert made.shape.as_list() == [None, None, channels or None]
        values = run(made)
        assert (values.dtype, values.shape) == (np.uint8, (40, 50, found))
        plain = run(tf.image.decode_jpeg(saved(smooth(), "JPEG"), channels=found))
        if mode != "L":
            assert np.abs(values.astype(int) - plain).max() < 60

    def test_a_grey_picture_is_not_made_of_four_channels(self) -> None:
        with pytest.raises(tf.errors.InvalidArgumentError, match="four channels"):
            run(tf.image.decode_jpeg(saved(smooth(), "JPEG", "CMYK"), channels=1))

    @pytest.mark.parametrize("kept", [-1, -2, -50, 700])
    def test_cut_off(self, kept: int) -> None:
        contents = saved(smooth(200, 150), "JPEG")[:kept]
        told = f"Invalid JPEG data or crop window, data size {len(contents)}: it is truncated"
        for op in (tf.image.decode_jpeg, tf.image.decode_image):
            with pytest.raises(tf.errors.InvalidArgumentError, match=told):
                run(op(contents))

    def test_the_thumbnail_s_end_is_not_the_file_s(self) -> None:
        contents = saved(smooth(), "JPEG")
        thumb = saved(smooth(8, 8), "JPEG")
        segment = b"\xff\xe2" + (2 + len(thumb)).to_bytes(2, "big") + thumb
        assert run(tf.image.decode_jpeg(contents[:2] + segment + contents[2:])).shape[0] == 40
        with pytest.raises(tf.errors.InvalidArgumentError, match="truncated"):
            run(tf.image.decode_jpeg(contents[:2] + segment + contents[2:-2]))

    @pytest.mark.parametrize(
        "contents", [b"\xff\xd8\xff", b"\xff\xd8\xff\xe0\0\x10JFIF\0", b"\xff" * 40]
    )
    def test_no_header(self, contents: bytes) -> None:
        refused(tf.errors.InvalidArgumentError, "", lambda: run(tf.image.decode_jpeg(contents)))

    def test_a_part(self) -> None:
        contents = saved(smooth(), "JPEG", subsampling=0)
        whole, part = run(
            tf.image.decode_jpeg(contents), tf.image.decode_and_crop_jpeg(contents, [3, 5, 20, 30])
        )
        np.testing.assert_array_equal(part, whole[3:23, 5:35])
        for window in ([-1, 0, 2, 2], [0, 0, 0, 2], [39, 0, 2, 2], [0, 45, 1, 6]):
            with pytest.raises(tf.errors.InvalidArgumentError, match="window"):
                run(tf.image.decode_and_crop_jpeg(contents, window))


class TestFiles:
    def test_recovered(self) -> None:
        if codecs.simplejpeg() is None:
            pytest.skip("needs simplejpeg: pip install '.[images]'")
        contents = saved(smooth(200, 150), "JPEG")
        whole = run(tf.image.decode_jpeg(contents))
        made = run(tf.image.decode_jpeg(contents[: len(contents) * 2 // 3],
                                        try_recover_truncated=True))  # fmt: skip
        assert made.shape == whole.shape
        np.testing.assert_array_equal(made[:60], whole[:60])

    def test_headers(self) -> None:
        for mode, channels in (("L", 1), ("RGB", 3), ("CMYK", 4)):
            header = header_of(saved(smooth(), "JPEG", mode, progressive=True))
            assert (header.height, header.width, header.channels) == (40, 50, channels)
            assert header.from_adobe == (mode == "CMYK")

    @pytest.mark.parametrize(
        ("op", "arguments", "message"),
        [
            ("decode_jpeg", {"ratio": 3}, "ratio: got 3; expected 1, 2, 4 or 8"),
            ("decode_jpeg", {"channels": 4}, r"channels: got 4; expected one of \(0, 1, 3\)"),
            ("decode_jpeg", {"dct_method": "FAST"}, "dct_method: got 'FAST'"),
            ("encode_jpeg", {"format": "cmyk"}, "format: got 'cmyk'"),
            ("encode_jpeg", {"quality": 101}, "quality: got 101; expected 0 to 100"),
            ("encode_jpeg", {"density_unit": "m"}, "density_unit: got 'm'"),
            ("encode_png", {"compression": 10}, "compression: got 10"),
        ],
    )
    def test_arguments_that_cannot_be(self, op: str, arguments: Any, message: str) -> None:
        given = "" if op.startswith("decode") else smooth()
        refused(ValueError, message, lambda: getattr(tf.image, op)(given, **arguments))

    def test_a_picture_of_another_format(self) -> None:
        with pytest.raises(tf.errors.InvalidArgumentError, match="image must have 1 channels"):
            run(tf.image.encode_jpeg(smooth(), "grayscale"))

    @pytest.mark.parametrize("dtype", ["uint8", "uint16"])
    @pytest.mark.parametrize("channels", [1, 2, 3, 4])
    def test_png_has_the_same_pixels(self, dtype: str, channels: int) -> None:
        if dtype == "uint16" and channels > 1:
            pytest.importorskip("cv2", reason="colours of 16 bits need OpenCV")
        given = smooth(7, 9, channels).astype(dtype) * (257 if dtype == "uint16" else 1)
        given[0, 0] += 1
        made = run(tf.image.decode_png(tf.image.encode_png(given), dtype=dtype))
        np.testing.assert_array_equal(made, given)

    def test_deep_colours_say_what_they_need(self, monkeypatch: pytest.MonkeyPatch) -> None:
        contents = run(tf.image.encode_png(smooth().astype(np.uint16)))
        monkeypatch.setitem(sys.modules, "cv2", None)
        with pytest.raises(Exception, match="pip install opencv-python-headless"):
            run(tf.image.decode_png(contents, dtype=tf.uint16))

    def test_files_say_what_they_need(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "PIL.Image", None)
        for build in (tf.image.decode_jpeg, tf.image.decode_image, tf.image.decode_gif):
            refused(ModuleNotFoundError, r"pip install '\.\[images\]'", build, "")
        with pytest.raises(ModuleNotFoundError, match=r"pip install '\.\[images\]'"):
            tf.image.encode_jpeg(smooth())


class TestValues:
    """What a session returns is the caller's own: nothing of the graph changes with it."""

    @pytest.mark.parametrize("name", ["flip_left_right", "rot90"])
    def test_they_are_private(self, name: str) -> None:
        made = getattr(tf.image, name)(tf.constant(smooth()))
        with tf.Session() as session:
            first = session.run(made)
            kept = first.copy()
            first[...] = 0
            np.testing.assert_array_equal(session.run(made), kept)

    def test_a_picture_batches_after_it_got_a_size(self) -> None:
        image = tf.image.decode_jpeg(tf.placeholder(tf.string, []), channels=3)
        image = tf.image.resize_image_with_crop_or_pad(image, 24, 24)
        image = tf.image.random_flip_left_right(image)
        image = tf.image.per_image_standardization(tf.image.random_brightness(image, 0.2))
        assert tf.train.batch([image], 8).shape.as_list() == [8, 24, 24, 3]


class TestMaxPixels:
    """A file of some hundred bytes may claim any size: it is refused before it is decoded."""

    @pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP", "JPEG"])
    def test_a_bomb_is_refused(self, kind: str) -> None:
        if kind == "JPEG":
            contents = saved(smooth(16, 16), kind)
            place = contents.index(b"\xff\xc0") + 5
            contents = contents[:place] + b"\xff\xff\xff\xff" + contents[place + 4 :]
        elif kind == "PNG":
            head = b"IHDR" + (30_000).to_bytes(4) + (30_000).to_bytes(4) + b"\x08\x02\0\0\0"
            crc = zlib.crc32(head).to_bytes(4)
            contents = b"\x89PNG\r\n\x1a\n" + (13).to_bytes(4) + head + crc
            contents += bytes(4) + b"IDAT" + zlib.crc32(b"IDAT").to_bytes(4)
        else:
            changed = bytearray(saved(smooth(4, 4), kind, "P"))
            if kind == "GIF":
                changed[6:10] = b"\xff\xff\xff\xff"
            else:
                changed[18:26] = (30_000).to_bytes(4, "little") * 2
            contents = bytes(changed)
        decoders: dict[str, Any] = {
            "PNG": tf.image.decode_png,
            "GIF": tf.image.decode_gif,
            "BMP": tf.image.decode_bmp,
            "JPEG": tf.image.decode_jpeg,
        }
        for decode in (decoders[kind], tf.image.decode_image):
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"max_pixels|bomb"):
                run(decode(contents))

    def test_the_limit_is_an_option(self) -> None:
        pixels = smooth(10, 10)
        png, jpeg = saved(pixels, "PNG"), saved(pixels, "JPEG")
        frames = [pil.fromarray(np.full((10, 10), one, "u1")) for one in (0, 50, 100)]
        file = io.BytesIO()
        frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
        for decode, contents, most in (
            (tf.image.decode_png, png, 100),
            (tf.image.decode_image, png, 100),
            (tf.image.decode_jpeg, jpeg, 100),
            (tf.image.decode_gif, file.getvalue(), 300),
            (tf.image.decode_image, file.getvalue(), 300),
        ):
            run(decode(contents, max_pixels=most))
            run(decode(contents, max_pixels=None))
            with pytest.raises(tf.errors.InvalidArgumentError, match="max_pixels: got"):
                run(decode(contents, max_pixels=most - 1))
        crop = tf.image.decode_and_crop_jpeg
        with pytest.raises(tf.errors.InvalidArgumentError, match="max_pixels: got"):
            run(crop(jpeg, [0, 0, 2, 2], max_pixels=99))
