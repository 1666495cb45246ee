"""Element types: `DType`, the names `float32`, `int64`, ..., and `as_dtype`.

A `DType` stands for a NumPy dtype under TensorFlow's name and number. Strings are ``bytes``: NumPy
holds them in arrays of objects.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = (
    "DType", "as_dtype", "bool", "complex64", "complex128", "double", "float16", "float32",
    "float64", "half", "int8", "int16", "int32", "int64", "resource", "string", "uint8", "uint16",
    "uint32", "uint64", "variant",
)  # fmt: skip

_Bool = bool  # tf.bool, below, hides the builtin


class DType:
    """The type of a tensor's elements: ``tf.float32 == np.float32 == "float32"``.

    ``as_datatype_enum`` is TensorFlow's number of it; ``numpy`` is a `numpy.dtype`, objects for
    strings, and ``as_numpy_dtype`` is its class.
    """

    __slots__ = ("as_datatype_enum", "as_numpy_dtype", "name", "numpy")

    def __init__(self, name: str, enum: int, numpy_type: type[Any]) -> None:
        self.name: str = name
        self.as_datatype_enum: int = enum
        self.as_numpy_dtype: type[Any] = numpy_type
        self.numpy: np.dtype[Any] = np.dtype(numpy_type)

    @property
    def base_dtype(self) -> DType:
        """This type: there are no reference types here."""
        return self

    @property
    def real_dtype(self) -> DType:
        """The type of the real part."""
        return {"complex64": float32, "complex128": float64}.get(self.name, self)

    @property
    def is_bool(self) -> _Bool:
        """Whether this is `bool`."""
        return self.numpy.kind == "b"

    @property
    def is_integer(self) -> _Bool:
        """Whether these are integers, signed or not."""
        return self.numpy.kind in "iu"

    @property
    def is_floating(self) -> _Bool:
        """Whether these are real floating-point numbers."""
        return self.numpy.kind == "f"

    @property
    def is_complex(self) -> _Bool:
        """Whether these are complex numbers."""
        return self.numpy.kind == "c"

    @property
    def size(self) -> int:
        """Bytes per element; 1 for strings and handles, as in TensorFlow."""
        return 1 if self.numpy.kind == "O" else self.numpy.itemsize

    @property
    def min(self) -> Any:
        """The smallest value."""
        return self._limits("minimum")[0]

    @property
    def max(self) -> Any:
        """The largest value."""
        return self._limits("maximum")[1]

    @property
    def limits(self) -> tuple[Any, Any]:
        """The range of intensities: ``(0, max)`` for integers, ``(0, 1)`` for the others."""
        if self.is_integer:
            return (0, self.max)
        return (False, True) if self.is_bool else (0, 1)

    def _limits(self, what: str) -> tuple[Any, Any]:
        if self.is_bool:
            return False, True
        if self.is_integer:
            integers = np.iinfo(self.numpy)
            return integers.min, integers.max
        if self.is_floating:
            floats = np.finfo(self.numpy)
            return floats.min, floats.max
        raise TypeError(f"Cannot find {what} value of {self}.")

    def is_compatible_with(self, other: Any) -> _Bool:
        """Whether values of `other` can stand where this type is wanted."""
        return self is as_dtype(other)

    def __eq__(self, other: object) -> _Bool:
        if self is other:
            return True
        if other is None:
            return False
        try:
            return self is as_dtype(other)
        except TypeError:
            return False

    def __hash__(self) -> int:
        return self.as_datatype_enum

    def __int__(self) -> int:
        return self.as_datatype_enum

    def __repr__(self) -> str:
        return f"tf.{self.name}"

    def __str__(self) -> str:
        return f"<dtype: '{self.name}'>"

    def __reduce__(self) -> tuple[Any, ...]:
        return as_dtype, (self.name,)


float32: DType = DType("float32", 1, np.float32)
float64: DType = DType("float64", 2, np.float64)
int32: DType = DType("int32", 3, np.int32)
uint8: DType = DType("uint8", 4, np.uint8)
int16: DType = DType("int16", 5, np.int16)
int8: DType = DType("int8", 6, np.int8)
string: DType = DType("string", 7, np.object_)
complex64: DType = DType("complex64", 8, np.complex64)
int64: DType = DType("int64", 9, np.int64)
bool: DType = DType("bool", 10, np.bool_)
uint16: DType = DType("uint16", 17, np.uint16)
complex128: DType = DType("complex128", 18, np.complex128)
float16: DType = DType("float16", 19, np.float16)
resource: DType = DType("resource", 20, np.object_)
variant: DType = DType("variant", 21, np.object_)
uint32: DType = DType("uint32", 22, np.uint32)
uint64: DType = DType("uint64", 23, np.uint64)
half = float16
double = float64

_ALL = (
    *(float16, float32, float64, complex64, complex128),
    *(int8, int16, int32, int64, uint8, uint16, uint32, uint64),
    *(bool, string, resource, variant),
)
_BY_NUMPY = {one.numpy: one for one in _ALL if one.numpy.kind != "O"}
_BY_KEY: dict[Any, DType] = {
    **{one.name: one for one in _ALL}, **{one.as_datatype_enum: one for one in _ALL},
    "half": float16, "float": float32, "double": float64, float: float32, int: int32, _Bool: bool,
    complex: complex128, str: string, bytes: string, object: string, np.object_: string,
}  # fmt: skip


def as_dtype(type_value: Any) -> DType:
    """The `DType` that `type_value` means."""
    if isinstance(type_value, DType):
        return type_value
    try:
        return _BY_KEY[type_value]
    except (KeyError, TypeError):
        pass
    try:
        as_numpy = np.dtype(type_value)
    except TypeError:
        as_numpy = None
    if type_value is not None and as_numpy is not None:
        if as_numpy.kind in "OSU":
            return string
        if as_numpy in _BY_NUMPY:
            return _BY_NUMPY[as_numpy]
    raise TypeError(f"Cannot convert value {type_value!r} to a TensorFlow DType.")
