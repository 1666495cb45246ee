"""NumPy's classes, for a program that may not have loaded NumPy.

Loading it takes a tenth of a second and 20 MiB. Queues of plain objects, coordinators and runners
do without, and still take NumPy's ints and arrays wherever they take Python's.
"""

from __future__ import annotations

import sys
from typing import Any


def numpy_class(name: str) -> Any:
    """Return a class of NumPy, to ask `isinstance`.

    If NumPy is not loaded, it is an empty tuple: no value can be of that class. (While another
    thread is loading NumPy, this one cannot have a value of it either.)
    """
    return getattr(sys.modules.get("numpy"), name, ())
