"""Sound files to samples and back: `decode_wav` and `encode_wav`.

Files are of the kind that TensorFlow reads: RIFF/WAVE of 16-bit linear samples
(http://soundfile.sapp.org/doc/WaveFormat/).
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import OpBuilder, Pure, invalid, one_text

__all__ = ("DecodeWav", "decode_wav", "encode_wav")

_SCALE = 1 << 15
"""What a sample of 1.0 is in a file."""


class DecodeWav(tuple[Tensor, Tensor]):
    """What `decode_wav` returns: the samples, and how many there are per second."""

    __slots__ = ()

    @property
    def audio(self) -> Tensor:
        """The samples: float32 ``[samples, channels]``, from -1.0 to 1.0."""
        return self[0]

    @property
    def sample_rate(self) -> Tensor:
        """How many samples there are per second: an int32 scalar."""
        return self[1]


def decode_wav(
    contents: Any,
    desired_channels: int = -1,
    desired_samples: int = -1,
    name: str | None = None,
) -> DecodeWav:
    """The samples of a sound file.

    Args:
        contents: the file's contents, one string.
        desired_channels: how many channels to give: the first ones, or the last one again for
            those that the file lacks; -1 for all that it has.
        desired_samples: how many samples: the rest is cut off, or filled up with silence; -1 for
            all that there are.
        name: name of the op.

    Raises:
        InvalidArgumentError: when it runs: it is no such file.
    """

    def decoded(contents: Any) -> Any:
        samples, rate = _samples(one_text(contents, "contents must be scalar, got shape "))
        channels = samples.shape[1] if desired_channels < 0 else desired_channels
        if channels > samples.shape[1]:
            last = np.repeat(samples[:, -1:], channels - samples.shape[1], axis=1)
            samples = np.concatenate([samples, last], axis=1)
        samples = samples[:, :channels]
        if desired_samples >= 0:
            silence = np.zeros((max(desired_samples - len(samples), 0), channels), np.float32)
            samples = np.concatenate([samples[:desired_samples], silence])
        return np.ascontiguousarray(samples), np.int32(rate)

    with OpBuilder("DecodeWav", name) as op:
        op.rank(op.tensor(contents, "contents", dtypes.string), 0)
        shape = tuple(None if one < 0 else one for one in (desired_samples, desired_channels))
        outputs = [(dtypes.float32, shape), (dtypes.int32, ())]
        return DecodeWav(op.outputs(outputs, Pure(decoded)))


def _samples(contents: bytes) -> tuple[NDArray[np.float32], int]:
    """The samples of a file, and how many there are per second."""
    if contents[:4] != b"RIFF" or contents[8:12] != b"WAVE":
        raise invalid("Header mismatch: Expected RIFF but found " + _shown(contents[:4]))
    place, channels, rate = 12, 0, 0
    while place + 8 <= len(contents):
        kind, size = (
            contents[place : place + 4],
            int.from_bytes(contents[place + 4 : place + 8], "little"),
        )
        body = contents[place + 8 : place + 8 + size]
        if kind == b"fmt ":
            channels, rate = _format(body)
        elif kind == b"data":
            if not channels:
                raise invalid("A data chunk comes before the format of the samples")
            whole = len(body) // (2 * channels)
            found = np.frombuffer(body, "<i2", whole * channels).reshape(whole, channels)
            return (found.astype(np.float32) / np.float32(_SCALE)), rate
        place += 8 + size + size % 2
    raise invalid("No data chunk found in WAV")


def _format(body: bytes) -> tuple[int, int]:
    if len(body) < 16:
        raise invalid(f"Bad format chunk size for WAV: Expected 16 or 18, but got {len(body)}")
    kind, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", body)
    if kind not in (1, 0xFFFE):
        raise invalid(f"Bad audio format for WAV: Expected 1 (PCM), but got{kind}")
    if bits != 16:
        raise invalid(f"Can only read 16-bit WAV files, but received {bits}")
    return channels, rate


def _shown(text: bytes) -> str:
    return text.decode("latin-1")


def encode_wav(audio: Any, sample_rate: Any, name: str | None = None) -> Tensor:
    """The sound file of samples, one string.

    Args:
        audio: float32 ``[samples, channels]``; beyond -1.0 and 1.0 they are cut.
        sample_rate: how many samples there are per second: an int32 scalar.
        name: name of the op.
    """

    def encoded(audio: Any, rate: Any) -> bytes:
        rate, channels = int(rate), audio.shape[1]
        wide = audio * np.float32(_SCALE)
        rounded = np.trunc(wide + np.copysign(np.float32(0.5), wide))  # halves away from zero
        data = rounded.clip(-_SCALE, _SCALE - 1).astype("<i2").tobytes()
        width = 2 * channels
        head = struct.pack("<HHIIHH", 1, channels, rate, rate * width, width, 16)
        parts = [
            b"WAVEfmt ",
            struct.pack("<I", len(head)),
            head,
            b"data",
            struct.pack("<I", len(data)),
        ]
        body = b"".join([*parts, data])
        return b"RIFF" + struct.pack("<I", len(body)) + body

    with OpBuilder("EncodeWav", name) as op:
        samples = op.tensor(audio, "audio", dtypes.float32)
        op.rank(samples, 2)
        op.rank(op.tensor(sample_rate, "sample_rate", dtypes.int32), 0)
        return op.output(dtypes.string, (), Pure(encoded))
