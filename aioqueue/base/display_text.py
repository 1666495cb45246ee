"""Text for people: numbers with units; and text of others without secrets, on one line.

A URL may carry a password or a signature, and a name or a user's exception any character: a line
end that forges a line of a log, an escape sequence that a terminal obeys, a character that XML
forbids. `without_secrets` and `on_one_line` deal with the text where it is shown. The values
themselves, such as paths and names that you pass and get back, stay as they are.

Numbers are formatted with only as many digits as matter.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Final

_HIDDEN: Final = "***"

_PASSWORD: Final = re.compile(r"(?P<before>://[^\s/?#:\"<>]*:)[^\s/?#\"<>]*(?=@)")
"""What stands between ``://user:`` and the last ``@`` before the path."""

_RAW_PASSWORD: Final = re.compile(
    r"(?P<before>://[^\s/?#@:'\"<>]*:)(?!\d+[/?#])[^\s'\"<>@]{0,256}(?=@[\w.\[-])"
)
"""The same if it holds characters that a URL must encode, such as a slash."""

_TOKEN: Final = re.compile(r"(?P<before>https?://)[^\s/?#'\"<>:@]+(?=@)", re.IGNORECASE)
"""A user without a password, which is a token in practice."""

_PARAMETER: Final = re.compile(
    r"(?P<before>(?:[?&;#]|%3f|%26)(?:[\w.-]{0,64}?(?:token|secret|signature|passw|passphrase"
    r"|credential|authorization|bearer|jwt|hmac|session[-_]?id|accesskeyid"
    r"|(?:api|access|account|auth|client|private|shared|subscription)[-_]?key)[\w.-]{0,64}"
    r"|pass|sig|pwd|key|auth|googleaccessid|hdn(?:ea|ts|tl))(?:=|%3d))[^\s&;#'\"<>]+",
    re.IGNORECASE,
)
"""The parameters that sign URLs or identify the caller. A URL that is a parameter of another is
encoded."""

_CONTROLS: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""Characters that end lines, steer terminals, turn the direction of text, or that UTF-8 and XML
have no place for."""


def without_secrets(text: str) -> str:
    """Return the text with three asterisks for each password or signature in a URL.

    The time it takes is in proportion to the length: the text of an exception may be long.
    """
    if "://" not in text:
        return text
    if "@" in text:
        for pattern in (_PASSWORD, _RAW_PASSWORD, _TOKEN):
            text = pattern.sub(rf"\g<before>{_HIDDEN}", text)
    return _PARAMETER.sub(rf"\g<before>{_HIDDEN}", text) if "=" in text or "%3" in text else text


def on_one_line(text: str) -> str:
    """Return the text without secrets, and with control characters as Python writes them."""
    return _CONTROLS.sub(_escaped, without_secrets(text))


def in_safe_lines(text: str) -> str:
    """Return the text as `on_one_line` does, but keep its ends of lines and its tabs."""
    return _CONTROLS.sub(
        lambda found: found[0] if found[0] in "\n\t" else _escaped(found), without_secrets(text)
    )


def escaped_for_xml(text: str) -> str:
    """Return the text as HTML and SVG need it, on one line and without secrets."""
    from html import escape  # it brings the names of all HTML entities

    return escape(on_one_line(text))


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode("ascii")


class LogLines(str):
    """A text of several lines for the end of a log message, such as where each worker is.

    Its maker ends the lines: names and other texts of users must be on one line before.
    """

    __slots__ = ()


def print_to(stream: Any, text: str) -> None:
    """Write a text and an end of line; what the stream's encoding lacks is escaped.

    Args:
        stream: a text stream; ``None`` in a program without a console, where nothing is written.
        text: the text, without control characters.

    Raises:
        OSError: the stream cannot be written.
    """
    if stream is not None:
        encoding = getattr(stream, "encoding", None) or "utf-8"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def keep_to_lines(name: str) -> None:
    """Keep each message of a logger to one line, without secrets. Tracebacks follow as usual.

    Only `LogLines` at the end of a message keep their line ends.
    """
    logger = logging.getLogger(name)
    if _keep_to_line not in logger.filters:
        logger.addFilter(_keep_to_line)


def _keep_to_line(record: logging.LogRecord) -> bool:
    try:
        message = record.getMessage()
    except Exception:
        return True  # the handlers report it
    last = record.args[-1] if isinstance(record.args, tuple) and record.args else None
    lines = last if isinstance(last, LogLines) and message.endswith(last) else ""
    kept = on_one_line(message.removesuffix(lines)) + in_safe_lines(lines)
    if kept != message:  # else handlers that group messages by their template can go on doing so
        record.msg, record.args = kept, ()
    return True


# Here, because whatever writes to these logs has imported the errors, and so this file.
for _name in ("aioqueue", "aioqueue.compat"):
    keep_to_lines(_name)
del _name


def share(part: float) -> str:
    """Return a share from 0 to 1 in per cent: ``29 %``. Only zero is ``0 %``."""
    if 0 < part < 0.005:
        return "<1 %"
    return f"{100 * part:.0f} %"


def count(number: float) -> str:
    """Return a count or a rate with about three digits: ``1,830``, ``42``, ``4.2``, ``0.42``."""
    if number == 0 or abs(number) >= 99.5 or float(number).is_integer():
        return f"{number:,.0f}"
    return f"{number:.1f}" if abs(number) >= 0.95 else f"{number:.2g}"


def duration(seconds: float) -> str:
    """Return a duration with its unit: ``0.8 us``, ``12 ms``, ``3.4 s``, ``5 min``."""
    for limit, unit in ((0.9995e-3, 1e-6), (0.9995, 1e-3), (99.95, 1.0)):
        if seconds < limit:
            value = seconds / unit
            name = {1e-6: "µs", 1e-3: "ms", 1.0: "s"}[unit]
            return f"{value:.1f} {name}" if 0 < value < 9.95 else f"{value:.0f} {name}"
    return f"{seconds / 60:.0f} min" if seconds < 5999 else f"{seconds / 3600:.1f} h"


def sentence(text: str) -> str:
    """Return the text on one line, with a capital first letter."""
    text = on_one_line(text)
    return f"{text[:1].upper()}{text[1:]}"


def clock(seconds: float) -> str:
    """Return the time since the start: ``0:42``, ``12:05``, ``1:02:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def size(of: float) -> str:
    """Return a number of bytes: ``512 B``, ``64 MiB``."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = 0
    while of >= 1024 and power < len(units) - 1:
        of /= 1024
        power += 1
    return f"{of:.1f} {units[power]}" if power and of < 9.95 else f"{of:.0f} {units[power]}"


def shortened(name: str, letters: int) -> str:
    """Return a name that fits, without control characters. It is cut in the middle, since names
    often differ at the end."""
    name = on_one_line(name)
    if len(name) <= letters:
        return name
    tail = (letters - 1) // 3
    return f"{name[: letters - 1 - tail]}…{name[len(name) - tail :]}"


def workers(number: int, where: str) -> str:
    """Return a number of workers as text: ``4 threads``."""
    plural = {"process": "processes", "ray": "Ray workers"}.get(where, f"{where}s")
    singular = {"ray": "Ray worker"}.get(where, where)
    return f"{number} {singular if number == 1 else plural}"
