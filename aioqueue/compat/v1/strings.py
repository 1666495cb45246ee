"""``tf.strings``: text, which is `bytes`."""

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.ops.reductions import reduce_join
from aioqueue.compat.v1.ops.text import as_string, regex_replace, substr
from aioqueue.compat.v1.ops.text import string_join as join
from aioqueue.compat.v1.ops.text import string_length as length
from aioqueue.compat.v1.ops.text import string_lower as lower
from aioqueue.compat.v1.ops.text import string_split_v2 as split
from aioqueue.compat.v1.ops.text import string_strip as strip
from aioqueue.compat.v1.ops.text import string_to_number as to_number
from aioqueue.compat.v1.ops.text import string_upper as upper

__all__ = (
    "as_string", "join", "length", "lower", "reduce_join", "regex_replace", "split", "strip",
    "substr", "to_number", "upper",
)  # fmt: skip

__getattr__ = names_of(__name__)
