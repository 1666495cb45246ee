"""Formats numbers for people: with units, and only as many digits as matter, and text."""

from __future__ import annotations

from aioqueue.display_text import on_one_line

__all__ = (
    "clock",
    "count",
    "duration",
    "sentence",
    "share",
    "shortened",
    "size",
    "workers",
)


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
