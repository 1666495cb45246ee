"""`tf.audio`: sound files to samples and back."""

from __future__ import annotations

import io
import wave
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf

RATE = 8000


def sound(samples: Any, width: int = 2) -> bytes:
    """A file of samples, as Python's own library writes it."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(samples.shape[1])
        writer.setsampwidth(width)
        writer.setframerate(RATE)
        writer.writeframes(samples.tobytes())
    return file.getvalue()


SAMPLES = np.array([[0, 1], [-32768, 32767], [16384, -2]], "<i2")


@pytest.mark.parametrize(
    ("channels", "count", "wanted"),
    [
        (-1, -1, SAMPLES),
        (1, -1, SAMPLES[:, :1]),
        (3, -1, SAMPLES[:, [0, 1, 1]]),
        (2, 2, SAMPLES[:2]),
        (1, 5, np.concatenate([SAMPLES[:, :1], [[0], [0]]])),
    ],
)
def test_decoding(sess: Any, channels: int, count: int, wanted: Any) -> None:
    found = tf.audio.decode_wav(sound(SAMPLES), channels, count)
    sizes = [None if one < 0 else one for one in (count, channels)]
    assert found.audio.shape.as_list() == sizes
    samples, rate = sess.run(found)
    assert samples.dtype == np.float32
    np.testing.assert_array_equal(samples, (wanted / 32768).astype(np.float32))
    assert rate == RATE


def test_encoding(sess: Any) -> None:
    given = np.array([[0.0], [1.5], [-1.5], [0.5], [1.5 / 32768], [-0.5 / 32768]], np.float32)
    contents = sess.run(tf.audio.encode_wav(given, RATE))
    assert contents == sound(np.array([[0], [32767], [-32768], [16384], [2], [-1]], "<i2"))


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "Expected RIFF"),
        (b"no sound file at all", "Expected RIFF"),
        (sound(SAMPLES, 1), "Can only read 16-bit WAV files, but received 8"),
        (sound(SAMPLES)[:30], "Bad format chunk size"),
        (sound(SAMPLES)[:36], "No data chunk"),
        (sound(SAMPLES)[:20] + b"\x03" + sound(SAMPLES)[21:], "Bad audio format"),
        (sound(SAMPLES)[:12] + sound(SAMPLES)[36:], "before the format"),
    ],
)
def test_what_is_no_such_file(sess: Any, contents: bytes, message: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        sess.run(tf.audio.decode_wav(contents))


def test_the_private_modules_of_scripts() -> None:
    from aioqueue.compat.v1.shim import find

    assert find("contrib.framework.python.ops.audio_ops.decode_wav") is tf.audio.decode_wav
    assert find("python.ops.gen_audio_ops.encode_wav") is tf.audio.encode_wav
