"""Elements: what is converted, what is refused, and what a refusal says.

A refusal names the argument or the component, what came, and what would be right. The messages
below are therefore spelled out up to the point where they give advice.
"""

from __future__ import annotations

import re
from datetime import date
from typing import Any

import numpy as np
import pytest

from aioqueue.core.elements.component import Component
from aioqueue.core.elements.element_spec import ElementSpec
from aioqueue.core.elements.object_spec import ObjectSpec, PriorityObjectSpec
from aioqueue.core.elements.spec import Spec
from aioqueue.errors import InvalidArgumentError


def component(dtype: Any, shape: tuple[int | None, ...] | None = ()) -> Component:
    return Component("0", dtype, shape)


def stored(slot: Component, value: Any) -> Any:
    """What an array of the component holds after the value was put into it."""
    converted = slot.convert(value)
    array = np.empty((1, *np.shape(converted)), slot.dtype)
    array[0] = converted
    return array[0]


def refused(text: str) -> Any:
    return pytest.raises(InvalidArgumentError, match=re.escape(text))


# One value.


@pytest.mark.parametrize(
    ("dtype", "value", "result"),
    [
        ("uint8", 5, 5),
        ("uint8", 0, 0),
        ("uint8", 255, 255),
        ("int8", -128, -128),
        ("uint64", 2**64 - 1, 2**64 - 1),
        ("int64", -(2**63), -(2**63)),
        ("float32", 3, 3.0),
        ("float32", 0.5, 0.5),
        ("complex64", 2, 2 + 0j),
        ("complex64", 0.5, 0.5 + 0j),
        ("complex64", 1j, 1j),
        ("int32", True, 1),
        ("bool", False, False),
        ("int8", np.int64(5), 5),
        ("float32", np.float64(0.25), 0.25),
        ("float32", np.array(0.25), 0.25),
        ("U5", "abc", "abc"),
        ("S3", b"abc", b"abc"),
        ("datetime64[s]", np.datetime64("2020-01-01", "D"), np.datetime64("2020-01-01", "s")),
        ("complex64", complex("inf-1j"), complex("inf-1j")),
        ("complex128", 2**200, 2.0**200),
        (str, "any length", "any length"),
        (str, np.str_("abc"), "abc"),
        (bytes, b"any length", b"any length"),
        (object, [1, "two"], [1, "two"]),
    ],
)
def test_scalars_that_fit(dtype: Any, value: Any, result: Any) -> None:
    slot = component(dtype)
    array = np.empty(1, slot.dtype)
    array[0] = slot.convert(value)
    assert array[0] == result


@pytest.mark.parametrize(
    ("dtype", "value", "problem"),
    [
        ("uint8", 300, "got 300, outside 0 to 255; expected uint8"),
        ("uint8", -1, "got -1, outside 0 to 255; expected uint8"),
        ("int64", 2**63, "outside -9223372036854775808 to 9223372036854775807; expected int64"),
        ("int64", 2**70, f"got {2**70}, outside -9223372036854775808"),
        ("float32", 10**39, f"got {10**39}, outside -3.4028234663852886e+38 to 3.4028"),
        ("int32", 1.5, "got 1.5, of dtype float64; expected int32"),
        ("int32", 2.0, "got 2.0, of dtype float64; expected int32"),
        ("int32", None, "got None, of dtype object; expected int32"),
        ("complex64", 1e300, "got 1e+300, outside -3.4028234663852886e+38 to 3.4028"),
        ("complex64", 1e300j, "got 1e+300j, outside -3.4028234663852886e+38 to 3.4028"),
        ("complex64", complex("inf-1e300j"), "outside -3.4028234663852886e+38 to 3.4028"),
        ("complex64", 2**200, "outside -3.4028234663852886e+38 to 3.4028"),
        ("float32", 1j, "got 1j, of dtype complex128; expected float32"),
        ("float32", "1.5", "got '1.5', of dtype <U3; expected float32"),
        ("bool", 1, "got 1, of dtype int64; expected bool"),
        ("uint8", np.int64(5), "of dtype int64; expected uint8"),
        ("int32", np.float32(1), "of dtype float32; expected int32"),
        ("U5", "abcdefgh", "got 'abcdefgh', of dtype <U8"),
        ("S3", b"abcd", "got b'abcd', of dtype |S4"),
        ("S3", "abc", "got 'abc', of dtype <U3"),
        (str, b"abc", "got b'abc', holding a bytes; expected str"),
        (bytes, "abc", "got 'abc', holding a str; expected bytes"),
        (str, 3, "got 3, holding an int; expected str"),
        (str, ["a"], "got ['a'], holding a list; expected str"),
        ("float32", [1.0], "got [1.0] of shape [1]; expected shape []"),
        ("float32", np.zeros(2), "got an array float64[2] of shape [2]; expected shape []"),
    ],
)
def test_scalars_that_do_not_fit(dtype: Any, value: Any, problem: str) -> None:
    slot = component(dtype)
    with refused(problem) as caught:
        slot.convert(value)
    assert str(caught.value).startswith("component 0: got ")


def test_a_scalar_object_is_never_inspected() -> None:
    value = np.ma.masked_array([1, 2], [True, False])
    assert component(object).convert(value) is value
    assert component(object).convert_copy(value) is value


@pytest.mark.parametrize(
    ("dtype", "value", "result"),
    [
        ("uint8", [1, 255], [1, 255]),
        ("float32", [1, 2.5], [1, 2.5]),
        ("int16", np.array([1, 2], np.int64), [1, 2]),
        ("float64", np.array([1, 2], np.int8), [1, 2]),
        ("int32", (True, 2), [1, 2]),
        (str, ["a", "longer"], ["a", "longer"]),
        (str, np.array(["a", "longer"]), ["a", "longer"]),
        (bytes, np.array([b"a", b"bc"]), [b"a", b"bc"]),
        (object, ["a", 1], ["a", 1]),
        (object, [[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_arrays_that_fit(dtype: Any, value: Any, result: list[Any]) -> None:
    assert stored(component(dtype, (2,)), value).tolist() == result


def test_what_a_narrow_dtype_can_hold_is_narrowed() -> None:
    assert stored(component("int32", (2,)), np.array([1, -(2**31)])).tolist() == [1, -(2**31)]
    assert stored(component("int32", (2,)), np.array([1, 2], ">u8")).dtype == np.int32
    assert stored(component("int8", ()), np.int64(-128)) == -128
    assert stored(component("int8", (0,)), np.zeros(0, int)).shape == (0,)


def test_times_may_have_another_unit() -> None:
    days = np.array(["2026-01-01", "NaT"], "M8[D]")
    assert np.array_equal(stored(component("M8[ns]", (2,)), days), days, equal_nan=True)
    hours = np.array(["2026-01-01T00", "1000-01-01T00", "NaT"], "M8[h]")
    coarse = stored(component("M8[D]", (3,)), hours)
    assert coarse.tolist() == [date(2026, 1, 1), date(1000, 1, 1), None]
    mixed = [np.timedelta64(1, "D"), np.timedelta64(1, "h")]
    assert stored(component("m8[ns]", (2,)), mixed).astype("m8[h]").astype(int).tolist() == [24, 1]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("M8[D]", np.datetime64("2026-01-01T12:30")),
        ("M8[ms]", np.datetime64("2026-01-01T00:00:00.000001")),
        ("m8[s]", np.timedelta64(1500, "ms")),
        ("m8[D]", np.timedelta64(12, "h")),
    ],
    ids=str,
)
def test_times_are_not_cut_off(dtype: str, value: Any) -> None:
    """What a coarser unit leaves out may be hours; for the digits of a float there is float64."""
    with pytest.raises(InvalidArgumentError, match=r"outside what it can hold; expected "):
        component(dtype).convert(value)
    with pytest.raises(InvalidArgumentError, match=r"outside what it can hold; expected "):
        component(dtype).column([value])


def fields(*named: tuple[str, Any]) -> np.dtype[Any]:
    return np.dtype(list(named))


@pytest.mark.parametrize(
    "theirs",
    [
        fields(("y", "f4"), ("x", "f4")),
        fields(("a", "f4"), ("b", "f4")),
        fields(("x", "f4"), ("y", "f8")),
    ],
    ids=str,
)
def test_fields_are_not_taken_by_their_places(theirs: np.dtype[Any]) -> None:
    """NumPy itself would exchange x and y."""
    slot = component(fields(("x", "f4"), ("y", "f4")), ())
    with refused("expected [('x', '<f4'), ('y', '<f4')]"):
        slot.convert(np.array((1, 2), theirs))
    with refused("expected [('x', '<f4'), ('y', '<f4')]"):
        slot.column(np.array([(1, 2)], theirs))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ([("p", [("x", "f4"), ("y", "f4")])], [("p", [("y", "f4"), ("x", "f4")])]),
        ([("p", [("x", "f4"), ("y", "f4")], (2,))], [("p", [("y", "f4"), ("x", "f4")], (2,))]),
        ([("t", "M8[ns]")], [("t", "M8[D]")]),
    ],
    ids=str,
)
def test_nor_are_those_within_fields(ours: Any, theirs: Any) -> None:
    with refused("expected [("):
        component(np.dtype(ours), ()).convert(np.zeros((), theirs))


def test_fields_of_the_same_names_may_be_narrower() -> None:
    slot = component(fields(("x", "f8"), ("t", "M8[s]")), ())
    assert slot.convert(np.array((1.5, 0), fields(("x", ">f2"), ("t", ">M8[s]"))))["x"] == 1.5


def test_ints_of_64_bits_are_judged_by_value() -> None:
    """NumPy itself makes floats of a list with one int above 2**63 and one below."""
    slot = component("uint64", (2,))
    assert stored(slot, [2**63, 1]).tolist() == [2**63, 1]


@pytest.mark.parametrize(
    ("dtype", "value", "problem"),
    [
        ("uint8", [1, 300], "got [1, 300], outside 0 to 255; expected uint8"),
        ("uint8", [1, -3], "got [1, -3], outside 0 to 255; expected uint8"),
        ("int32", [1, 2**40], "outside -2147483648 to 2147483647; expected int32"),
        ("uint64", [2**63 + 1, -1], "expected uint64"),
        ("int32", [1, 2.5], "got [1, 2.5], of dtype float64; expected int32"),
        ("uint8", np.array([1, 2]), "got an array int64[2], of dtype int64; expected uint8"),
        ("int32", np.array([1, 2**40]), "got an array int64[2], outside -2147483648 to 2147483647"),
        ("int64", np.array([1, 2**63], "u8"), "got an array uint64[2], outside -92233720368547"),
        ("int8", np.array([1, -129], ">i2"), "got an array >i2[2], outside -128 to 127"),
        ("m8[s]", np.array([1, 2**63], "u8"), "got an array uint64[2], outside what it can hold"),
        ("M8[ns]", np.array(["2026", "3000"], "M8[D]"), "outside what it can hold"),
        ("m8[ns]", np.array([1, 300_000], "m8[W]"), "outside what it can hold"),
        (
            "M8[ns]",
            [np.datetime64("2026-01-01T01", "ns"), np.datetime64("3000-01-01", "D")],
            "datetime64('3000-01-01'), outside what datetime64[ns] can hold",  # NumPy's own repr
        ),
        ("U3", ["abc", "abcd"], "got ['abc', 'abcd'], of dtype <U4"),
        ("U32", ["a", 1], "got 1, of class int among text; expected U32"),
        ("U32", ["a", b"b"], "got b'b', of class bytes among text; expected U32"),
        (str, ["a", 3], "got ['a', 3], holding an int; expected str"),
        ("float32", [1, 2, 3], "got [1, 2, 3] of shape [3]; expected shape [2]"),
        ("float32", 1.0, "got 1.0 of shape []; expected shape [2]"),
        ("float32", np.zeros((2, 2)), "of shape [2, 2]; expected shape [2]"),
        ("float32", [[1], [2, 3]], "got [[1], [2, 3]], which NumPy cannot convert"),
        (object, [1], "got [1] of shape [1]; expected shape [2]"),
    ],
)
def test_arrays_that_do_not_fit(dtype: Any, value: Any, problem: str) -> None:
    with refused(problem):
        component(dtype, (2,)).convert(value)


def test_objects_that_numpy_cannot_lay_out_are_refused() -> None:
    with refused("component 0: got [array("):
        component(object, (2,)).convert([np.zeros((2, 3)), np.zeros((2, 4))])


@pytest.mark.parametrize("dtype", ["float32", object, str])
def test_masked_arrays_are_refused(dtype: Any) -> None:
    value = np.ma.masked_array([1.0, 2.0], [True, False])
    for convert in (component(dtype, (2,)).convert, component(dtype).column):
        with refused("component 0: got a masked array; expected one without a mask"):
            convert(value)


def test_a_value_that_cannot_be_shown_is_named_by_its_type() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("no repr")

        def __array__(self, *_: object, **__: object) -> Any:
            raise RuntimeError("no array")

    with refused("component 0: got an Odd, which NumPy cannot convert: no array"):
        component("float32").convert(Odd())


def test_a_long_value_is_cut() -> None:
    with refused("got " + repr("x" * 80)[:57] + "..., of dtype"):
        component("int8").convert("x" * 80)


@pytest.mark.parametrize(
    ("shape", "value", "fits"),
    [
        ((None,), [1, 2, 3], True),
        ((None,), [], True),
        ((None, 2), [[1, 2]], True),
        ((None, 2), [[1, 2, 3]], False),
        ((None,), 3, False),
        (None, 3, True),
        (None, [[1], [2]], True),
    ],
)
def test_dimensions_that_vary(shape: tuple[int | None, ...] | None, value: Any, fits: bool) -> None:
    slot = component("int32", shape)
    if fits:
        assert np.asarray(slot.convert(value)).tolist() == value
    else:
        with refused(f"expected shape {slot.shape_name}"):
            slot.convert(value)


@pytest.mark.parametrize("dtype", ["int64", object])
def test_a_private_value_shares_no_memory(dtype: Any) -> None:
    value = np.array([1, 2], dtype)
    copy = component(dtype, (2,)).convert_copy(value)
    value[:] = 9
    assert copy.tolist() == [1, 2]
    assert copy.dtype == dtype


def test_a_private_scalar_is_a_scalar() -> None:
    assert type(component("int32").convert_copy(5)) is np.int32
    assert type(component("float32").convert_copy(np.array(5.0))) is np.float32


# Batches.


@pytest.mark.parametrize(
    ("dtype", "shape", "values"),
    [
        ("uint8", (), [1, 2, 3]),
        ("float32", (2,), [[1, 2], [3, 4]]),
        (str, (), ["a", "bc"]),
        (object, (), [[1], {"two": 2}, "three"]),
        ("int32", (), []),
        (str, (), []),
    ],
)
def test_columns(dtype: Any, shape: tuple[int, ...], values: list[Any]) -> None:
    column = component(dtype, shape).column(values)
    assert column.tolist() == values
    assert column.shape == (len(values), *shape)


def test_a_column_that_fits_is_not_copied() -> None:
    values = np.zeros((3, 2), np.float32)
    assert component("float32", (2,)).column(values) is values


def test_strings_in_an_array_become_objects() -> None:
    column = component(str).column(np.array(["a", "bc"]))
    assert column.dtype == object
    assert [type(value) for value in column] == [str, str]


@pytest.mark.parametrize(
    ("dtype", "shape", "values", "problem"),
    [
        ("int32", (), 3, "got the scalar 3; expected a batch, an array of shape (n, ...)"),
        ("int32", (), np.int32(3), "expected a batch, an array of shape (n, ...)"),
        ("int32", (), [1, 2.5], "got [1, 2.5], of dtype float64; expected int32"),
        ("uint8", (), [1, 300], "got [1, 300], outside 0 to 255; expected uint8"),
        ("float32", (2,), np.zeros((3, 4)), "got rows of shape [4] in an array of shape [3, 4]"),
        ("float32", (2,), np.zeros(3), "expected rows of shape [2]"),
        ("U3", (), ["abc", "abcd"], "of dtype <U4"),
        (str, (), "abc", "got 'abc'; expected a sequence of values"),
        (object, (), np.array(3), "expected a sequence of values"),
        (str, (), 3, "got 3, which is not a sequence; expected str"),
        (str, (), ["a", b"b"], "holding a bytes; expected str"),
    ],
)
def test_columns_that_do_not_fit(
    dtype: Any, shape: tuple[int, ...], values: Any, problem: str
) -> None:
    with refused(problem):
        component(dtype, shape).column(values)


# Given arrays.


def test_arrays_to_write_to() -> None:
    spec = ElementSpec(["float32", "int64"], [(2,), ()])
    out = (np.zeros((3, 2), np.float32), np.zeros(3, np.int64))
    assert all(a is b for a, b in zip(spec.outputs(out, 3), out, strict=True))
    single = ElementSpec("int64", [()])
    assert single.outputs(out[1], 3)[0] is out[1]
    named = ElementSpec(["float32", "int64"], [(2,), ()], ["x", "y"])
    assert named.outputs({"y": out[1], "x": out[0]}, 3)[0] is out[0]


@pytest.mark.parametrize(
    ("out", "problem"),
    [
        (np.zeros((3, 3), np.float32), "got float32[3, 3] for component 0"),
        (np.zeros((2, 2), np.float32), "got float32[2, 2] for component 0"),
        (np.zeros((3, 2), np.float64), "got float64[3, 2] for component 0"),
        (np.broadcast_to(np.float32(0), (3, 2)), "got float32[3, 2], read-only for component 0"),
        ([[0.0, 0.0]] * 3, "got a list for component 0"),
    ],
)
def test_arrays_that_cannot_be_written_to(out: Any, problem: str) -> None:
    with refused(f"out: {problem}; expected a writable array float32[3, 2]"):
        ElementSpec("float32", [(2,)]).outputs(out, 3)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (ElementSpec("float32"), "this queue's batches have no fixed shape to write to"),
        (ElementSpec("float32", [(None,)], ragged=True), "have no fixed shape to write to"),
        (ElementSpec(["float32", "int8"], [(), ()]), "got an array float64[3], not a tuple"),
        (ElementSpec("int8", [()], "x"), "expected a dict with the keys ['x']"),
        (ObjectSpec(), "a queue of objects returns a list and writes to no arrays"),
    ],
)
def test_queues_and_what_they_write_to(spec: Spec, problem: str) -> None:
    with refused(problem) as caught:
        spec.outputs(np.zeros(3), 3)
    assert str(caught.value).startswith("out: got ")


# Whole elements.


def test_one_component_is_the_bare_value() -> None:
    spec = ElementSpec("int32", [()])
    assert spec.row(5) == (5,)
    assert spec.element((5,)) == 5
    columns, n = spec.columns([1, 2])
    assert (n, spec.batch(columns).tolist()) == (2, [1, 2])


@pytest.mark.parametrize("values", [(1, 2.5), [1, 2.5]])
def test_several_components_are_a_tuple(values: Any) -> None:
    spec = ElementSpec(["int32", "float64"], [(), ()])
    row = spec.row(values)
    assert spec.element(row) == (1, 2.5)
    columns, n = spec.columns(([1, 2], [2.5, 3.5]))
    assert n == 2
    assert [column.tolist() for column in spec.batch(columns)] == [[1, 2], [2.5, 3.5]]


def test_named_components_are_a_dict() -> None:
    spec = ElementSpec(["int32", "float64"], [(), ()], ["label", "weight"])
    assert spec.element(spec.row({"weight": 2.5, "label": 1})) == {"label": 1, "weight": 2.5}
    columns, n = spec.columns({"weight": [2.5], "label": [1]})
    assert n == 1
    assert list(spec.batch(columns)) == ["label", "weight"]
    assert repr(spec) == "label: int32[], weight: float64[]"


@pytest.mark.parametrize(
    ("element", "problem"),
    [
        ((1,), "element: got 1 component; expected a tuple of 2 components (int32[], str[])"),
        ((1, "a", 2), "element: got 3 components; expected a tuple of 2 components"),
        (5, "element: got 5, not a tuple; expected a tuple of 2 components"),
        ({"0": 1}, "element: got {'0': 1}, not a tuple; expected a tuple of 2 components"),
        ((1, 2), "component 1: got 2, holding an int; expected str"),
        (("a", "b"), "component 0: got 'a', of dtype <U1; expected int32"),
    ],
)
def test_elements_that_do_not_fit(element: Any, problem: str) -> None:
    with refused(problem):
        ElementSpec(["int32", str], [(), ()]).row(element)


@pytest.mark.parametrize(
    ("element", "problem"),
    [
        ((1, 2), "element: got (1, 2); expected a dict with the keys ['x', 'y']"),
        ({"x": 1}, "element: got ['x']; expected a dict with the keys ['x', 'y']"),
        ({"x": 1, "y": 2, "z": 3}, "element: got ['x', 'y', 'z']; expected a dict"),
        ({"x": 1, 2: 2}, "element: got ['x', 2]; expected a dict"),
        ({"x": 1, "y": "b"}, "component y: got 'b', of dtype <U1; expected int32"),
    ],
)
def test_named_elements_that_do_not_fit(element: Any, problem: str) -> None:
    with refused(problem):
        ElementSpec(["int32", "int32"], [(), ()], ["x", "y"]).row(element)


def test_batches_of_unequal_columns_are_refused() -> None:
    spec = ElementSpec(["int32", "int32"], [(), ()], ["x", "y"])
    with refused("batch: got 1 row for component y and 2 for component x; expected equally many"):
        spec.columns({"x": [1, 2], "y": [1]})
    with refused("batch: got [1, 2]; expected a dict with the keys"):
        spec.columns([1, 2])


def test_ragged_rows_come_as_a_list_or_as_an_array() -> None:
    spec = ElementSpec(["float32", "int8"], [(None,), ()], ragged=True)
    given = np.array([1.0, 2.0])
    rows, n = spec.columns(([given, [3.0], []], [1, 2, 3]))
    given[:] = 9
    assert n == 3
    assert [row[0].tolist() for row in rows] == [[1, 2], [3], []]
    assert [int(row[1]) for row in rows] == [1, 2, 3]
    rows, n = spec.columns((np.zeros((2, 4)), np.array([1, 2], np.int8)))
    assert (n, rows[0][0].shape, rows[0][0].dtype) == (2, (4,), np.float32)
    assert spec.columns(([], [])) == ([], 0)


def test_a_ragged_row_that_does_not_fit_is_named() -> None:
    spec = ElementSpec(["float32"], [(None, 2)], ragged=True)
    with refused("component 0: got [[3]] of shape [1, 1]; expected shape [?,2]"):
        spec.columns([[[1, 2]], [[3]]])
    with refused("component 0: got rows of shape [3]"):
        spec.columns(np.zeros((2, 3)))


def test_elements_of_any_shape_are_kept_apart_from_what_was_given() -> None:
    spec = ElementSpec(["float32", "int8"])
    assert not spec.batchable
    given = np.ones((2, 2), np.float32)
    row = spec.row((given, [1, 2]))
    given[:] = 9
    assert row[0].tolist() == [[1, 1], [1, 1]]
    assert row[1].dtype == np.int8


# What describes elements.


class OfTorch:
    """A dtype of PyTorch, as it looks to us."""

    def __repr__(self) -> str:
        return "torch.float32"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (([],), "dtypes: got []; expected at least one dtype"),
        ((["nonsense"],), "dtypes: got 'nonsense' for component 0; expected what numpy.dtype"),
        (([5],), "dtypes: got 5 for component 0; expected what numpy.dtype accepts"),
        (([OfTorch()],), "got torch.float32 for component 0; expected what numpy.dtype accepts (w"),
        (([OfTorch()],), "(write 'float32')"),
        (([[("a", "i4"), ("a", "i4")]],), "dtypes: got [('a', 'i4'), ('a', 'i4')] for component 0"),
        ((["i4"], 5), "shapes: got 5; expected a list of shapes"),
        ((["i4"], "ab"), "shapes: got 'ab'; expected a list of shapes"),
        ((["i4"], [(), ()]), "shapes: got [(), ()], 2 shapes; expected 1, one per dtype"),
        ((["i4", "i4"], [()]), "shapes: got [()], 1 shape; expected 2, one per dtype"),
        ((["i4", "i4"], ()), "shapes: got (), 0 shapes; expected 2, one per dtype"),
        ((["i4"], [-1]), "shapes: got -1; expected a tuple of sizes >= 0"),
        ((["i4"], [(2, -1)]), "shapes: got (2, -1); expected a tuple of sizes >= 0"),
        ((["i4"], [(2.0,)]), "shapes: got (2.0,); expected a tuple of sizes >= 0"),
        ((["i4"], [(True,)]), "shapes: got (True,); expected a tuple of sizes >= 0"),
        ((["i4", "i4"], [2, ()]), "shapes: got 2; expected a tuple of sizes >= 0"),
        ((["i4"], [(None,)]), "shapes: got (None,); expected fixed sizes"),
        ((["i4"], [()], 5), "names: got 5; expected a list of strings"),
        ((["i4"], [()], [5]), "names: got [5]; expected a list of strings"),
        ((["i4"], [()], ["a", "b"]), "names: got ['a', 'b']; expected 1 different names"),
        ((["i4", "i4"], None, ["a", "a"]), "names: got ['a', 'a']; expected 2 different names"),
    ],
)
def test_descriptions_that_are_wrong(arguments: tuple[Any, ...], problem: str) -> None:
    with refused(problem):
        ElementSpec(*arguments)


@pytest.mark.parametrize(
    ("dtypes", "shapes", "reported"),
    [
        ("int32", (), "int32[]"),
        ("int32", [], "int32[]"),
        ("int32", (2, 3), "int32[2,3]"),
        ("int32", [np.int64(2)], "int32[2]"),
        ("int32", [(2, 3)], "int32[2,3]"),
        (["int32", str], [(2,), []], "int32[2], str[]"),
        ((np.float32, bytes, object), None, "float32, bytes, object"),
    ],
)
def test_descriptions(dtypes: Any, shapes: Any, reported: str) -> None:
    assert repr(ElementSpec(dtypes, shapes)) == reported


def test_a_varying_dimension_is_reported() -> None:
    assert repr(ElementSpec("int32", (None, 3), ragged=True)) == "int32[?,3]"


def test_one_name_may_come_alone() -> None:
    spec = ElementSpec("int32", (), "x")
    assert spec.element(spec.row({"x": 1})) == {"x": 1}


# Objects.


def test_objects_are_taken_as_they_are() -> None:
    spec = ObjectSpec()
    value = object()
    assert spec.row(value) is value
    assert spec.element(value) is value
    assert spec.columns(iter([1, "two"])) == ([1, "two"], 2)
    batch = [1, 2]
    assert spec.batch(batch) is batch
    assert spec.columns(batch)[0] is not batch
    assert repr(spec) == "objects"


@pytest.mark.parametrize("batch", ["abc", b"abc", {"a": 1}, 5, None])
def test_batches_of_objects_that_are_no_lists(batch: Any) -> None:
    with refused(f"batch: got {batch!r}; expected a list, or another iterable, of elements"):
        ObjectSpec().columns(batch)


def test_objects_with_priorities() -> None:
    spec = PriorityObjectSpec()
    assert spec.row([np.int8(3), "x"]) == (3, "x")
    assert type(spec.row((np.int8(3), "x"))[0]) is int
    assert spec.columns([(2**63 - 1, "a"), (-(2**63), "b")])[1] == 2
    assert repr(spec) == "(priority, object)"


@pytest.mark.parametrize(
    ("element", "problem"),
    [
        (5, "element: got 5; expected a pair (priority, object)"),
        ((1,), "element: got (1,); expected a pair (priority, object)"),
        ((1, 2, 3), "element: got (1, 2, 3); expected a pair (priority, object)"),
        ("ab", "element: got 'ab'; expected a pair (priority, object)"),
        ((1.5, "x"), "element: got the priority 1.5; expected an int of 64 bits"),
        ((True, "x"), "element: got the priority True; expected an int of 64 bits"),
        ((2**63, "x"), f"element: got the priority {2**63}; expected an int of 64 bits"),
    ],
)
def test_priorities_that_are_none(element: Any, problem: str) -> None:
    with refused(problem):
        PriorityObjectSpec().row(element)


@pytest.mark.parametrize(
    "value",
    [
        2**63,
        -(2**63) - 1,
        np.uint64(2**63),
        np.array(2**63, "uint64"),
        np.array(2**64 - 1, ">u8"),
    ],
    ids=repr,
)
def test_priorities_are_judged_by_value(value: Any) -> None:
    """However they are given: an int64 that has wrapped would be in another place."""
    for shapes in (None, [(), ()]):
        spec = ElementSpec(["int64", "int8"], shapes, priority=True)
        with refused("outside -9223372036854775808 to 9223372036854775807; expected int64"):
            spec.row((value, 1))
        for batch in ([1, value], np.asarray([1, value])):
            with refused("expected int64"):
                spec.columns((batch, [1, 2]))
        assert spec.row((np.uint64(2**63 - 1), 1))[0] == 2**63 - 1
        assert spec.columns((np.array([2**63 - 1], "uint64"), [1]))[1] == 1
    with refused("expected an int of 64 bits"):
        PriorityObjectSpec().row((value, 1))


@pytest.mark.parametrize("value", [[2**70, 1], [1, 2**70], (2**70,)], ids=repr)
def test_large_ints_in_lists_are_judged_by_value_too(value: Any) -> None:
    column = ElementSpec("float64", [()]).components[0].column(value)
    assert column.tolist() == [float(one) for one in value]
    with refused("expected float32"):
        ElementSpec("float32", [()]).components[0].column([10**39])


@pytest.mark.parametrize("shape", [(2**63,), (2**62,), (2**40, 2**40), (1,) * 100], ids=str)
def test_shapes_that_no_array_has(shape: Any) -> None:
    with refused("shapes: got "):
        ElementSpec("float32", [shape])


def test_elements_of_any_shape_come_out_as_they_went_in() -> None:
    number = ElementSpec([int]).row(5)[0]
    assert isinstance(number, np.integer)
    assert number == 5
    value = {"a": 1}
    assert ElementSpec([object]).row(value)[0] is value


def test_a_batch_of_no_rows_fits_any_shape() -> None:
    assert ElementSpec("float32", [(2,)]).columns([])[1] == 0


def test_none_is_no_dtype() -> None:
    with refused("dtypes: got None for component 0"):
        ElementSpec([None])


@pytest.mark.parametrize(("dtype", "value"), [("float32", 1e300), ("float16", 70000.0)])
def test_numbers_that_would_become_infinite_are_refused(dtype: str, value: float) -> None:
    for shape, given in (((), value), ((2,), [1.0, value])):
        with refused("component 0: got"):
            component(dtype, shape).convert(given)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_what_is_infinite_already_is_taken(value: float) -> None:
    assert np.isfinite(component("float16").convert(value)) == np.isfinite(value)
    assert not np.isfinite(component("float16", (2,)).convert([1.0, value])[1])


def test_masks_within_a_list_are_refused() -> None:
    with refused("masked array"):
        component("float32", (2, 2)).convert([np.ma.masked_array([1, 2.0], [False, True])] * 2)


def test_numbers_are_not_made_strings_of() -> None:
    with refused("expected U30"):
        component("U30").convert(5)
