"""Programs of ops on numbers: elementwise, reducing, joining, cutting, writing, and random."""

from __future__ import annotations

import random

from proofs.oracle.program import Maker
from proofs.oracle.spelling import Shape, Spell, array, given, tensor, written

__all__ = ("OPS",)

FLOATS = ("float32", "float32", "float64")
NUMBERS = ("float32", "int32", "float64", "int64")
SHAPES: tuple[Shape, ...] = ((), (3,), (2, 3), (2, 1, 3), (4, 2), (0, 2))

UNARY: tuple[tuple[str, tuple[str, ...], int, int], ...] = (
    (
        "abs negative square exp sin cos tanh sigmoid sinh cosh atan expm1 nn.relu nn.tanh"
        " nn.sigmoid sign floor ceil round rint is_nan is_inf is_finite tan math.ceil",
        *(FLOATS, -3, 3),
    ),
    ("sqrt rsqrt log log1p reciprocal math.reciprocal", FLOATS, 1, 9),
    ("asin acos", FLOATS, -1, 1),
    ("abs negative square sign", ("int32", "int64"), -5, 9),
    ("logical_not", ("bool",), 0, 1),
    (
        "zeros_like ones_like size shape rank identity to_float to_double to_int32 to_int64"
        " transpose",
        *(NUMBERS, -5, 9),
    ),
)
"""Ops of one tensor, the dtypes that they take, and the least and largest numbers."""

BINARY: tuple[tuple[str, tuple[str, ...], int, int], ...] = (
    (
        "add subtract multiply maximum minimum squared_difference equal not_equal less"
        " less_equal greater greater_equal",
        *(NUMBERS, -5, 9),
    ),
    (
        "divide truediv div floordiv mod floor_div math.floormod floormod",
        *(("int32", "int32", "float64", "int64"), 1, 4),
    ),
    ("div_no_nan atan2 pow math.divide_no_nan realdiv", FLOATS, 1, 4),
    ("logical_and logical_or logical_xor", ("bool",), 0, 1),
)
"""Ops of two tensors; the numbers are those of the second."""
OPERATORS = ("+", "-", "*", "<", "<=", ">", ">=")


def _shape(draw: random.Random, least: int = 0, full: bool = False) -> Shape:
    fitting = [s for s in SHAPES if len(s) >= least and not (full and 0 in s)]
    return draw.choice(fitting)


def unary(draw: random.Random) -> str:
    """An op of one tensor, each of whose elements it changes."""
    shape = _shape(draw)
    if draw.random() < 0.7:
        ops, dtypes, low, high = draw.choice(UNARY)
        return (
            f"tf.{draw.choice(ops.split())}({tensor(draw, draw.choice(dtypes), shape, low, high)})"
        )
    dtype = draw.choice(FLOATS)
    wanted = draw.choice(("int32", "float64", "bool", "uint8", "int64", "float16"))
    source = tensor(draw, draw.choice(("int32", "float32", "bool")), shape, 0, 9)
    return draw.choice((
        f"tf.cast({source}, tf.{wanted})",
        f"tf.saturate_cast({tensor(draw, dtype, shape, -300, 300)}, tf.uint8)",
        f"tf.clip_by_value({tensor(draw, dtype, shape)}, -1.5, 4)",
        f"tf.scalar_mul(2, {tensor(draw, dtype, shape)})",
        f"tf.reverse({tensor(draw, dtype, _shape(draw, 1))}, [0])",
    ))  # fmt: skip


def binary(draw: random.Random) -> str:
    """An op of two tensors whose shapes fit, at times because one is stretched."""
    one = _shape(draw)
    other = draw.choice((one, one, (), one[1:], tuple(1 for _ in one)))
    if draw.random() < 0.04:
        other = (7,)
    if draw.random() < 0.15:
        parts = ", ".join(tensor(draw, "int32", one) for _ in range(draw.randint(1, 3)))
        return f"tf.add_n([{parts}])"
    ops, dtypes, low, high = draw.choice(BINARY)
    dtype = draw.choice(dtypes)
    if dtypes is NUMBERS and draw.random() < 0.5:
        pair = tensor(draw, dtype, one), array(draw, dtype, other)
        return f" {draw.choice(OPERATORS)} ".join(pair)
    first = (low, high) if dtypes is FLOATS else (-5, 9)
    if ops.startswith("divide") and dtype.startswith("int") and draw.random() < 0.05:
        low = 0
    pair = tensor(draw, dtype, one, *first), tensor(draw, dtype, other, low, high)
    return f"tf.{draw.choice(ops.split())}({', '.join(pair)})"


def _axis(draw: random.Random, shape: Shape) -> int:
    return draw.randint(-len(shape), len(shape) - 1)


def reducing(draw: random.Random) -> str:
    """Fewer numbers made of many."""
    shape = _shape(draw, 1, full=True)
    axis = _axis(draw, shape)
    axes = draw.choice((str(axis), f"[{axis}]", "None", "[]" if draw.random() < 0.2 else "0"))
    keep = draw.choice(("", "", ", keepdims=True", ", keep_dims=True"))
    dtype = draw.choice(NUMBERS)
    op = draw.choice(("sum", "mean", "max", "min", "prod"))
    scan = f"exclusive={draw.random() < 0.5}, reverse={draw.random() < 0.5}"
    output = draw.choice(("", ", output_type=tf.int32"))
    reduced = f"tf.reduce_{op}({tensor(draw, dtype, shape)}, {axes}{keep})"
    return draw.choice((
        *(reduced, reduced),
        f"tf.reduce_{draw.choice(('all', 'any'))}({tensor(draw, 'bool', shape)}, {axes}{keep})",
        f"tf.{draw.choice(('argmax', 'argmin'))}({tensor(draw, dtype, shape)}, {axis}{output})",
        f"tf.{draw.choice(('cumsum', 'cumprod'))}({tensor(draw, dtype, shape, 1, 4)}, {axis},"
        f" {scan})",
        f"tf.count_nonzero({tensor(draw, 'int32', shape, -1, 1)}, {axes})",
        f"tf.nn.softmax({tensor(draw, 'float32', shape)})",
        f"tf.nn.top_k({tensor(draw, dtype, shape)}, {draw.randint(0, shape[-1])})",
    ))  # fmt: skip


def shaping(draw: random.Random) -> str:
    """The same numbers in another shape or order."""
    shape = _shape(draw, 1, full=True)
    axis, dtype = _axis(draw, shape), draw.choice((*NUMBERS, "string", "bool"))
    source = tensor(draw, dtype, shape)
    order = list(range(len(shape)))
    draw.shuffle(order)
    sizes = ([-1], [1, -1], [*shape, 1], [-1, shape[0]], [-1, 5])
    ones = [at for at, size in enumerate(shape) if size == 1]
    spells = [
        f"tf.reshape({source}, {draw.choice(sizes)})",
        f"tf.reshape({source}, tf.concat([[1], tf.shape({source})], 0))",
        f"tf.expand_dims({source}, {axis})",
        f"tf.squeeze({source}, {draw.choice((ones, []))})",
        f"tf.transpose({source}, {order})",
        f"tf.reverse({source}, [{axis}])",
        f"tf.tile({source}, {[draw.randint(0, 3) for _ in shape]})",
        f"tf.unstack({array(draw, dtype, shape)}, axis={axis})",
        f"tf.split({tensor(draw, dtype, (4, 2))}, {draw.choice(('2', '[1, 3]', '[-1, 1]', '4'))})",
        f"tf.stack([{source}, {source}], {draw.choice((axis, 0))})",
        f"tf.concat([{source}, {source}], {axis})",
        f"tf.meshgrid([1, 2, 3], {tensor(draw, 'int32', (2,))}, indexing="
        f"{draw.choice(('ij', 'xy'))!r})",
    ]
    if dtype not in ("string", "bool"):
        widths = [[draw.randint(0, 2), draw.randint(0, 1)] for _ in shape]
        mode = draw.choice(("CONSTANT", "CONSTANT", "SYMMETRIC"))
        spells.append(f"tf.pad({source}, {widths}, {mode!r})")
        spells.append(f"tf.pad({source}, {[[1, 0]] * len(shape)}, constant_values=7)")
    return draw.choice(spells)


def indexing(draw: random.Random) -> str:
    """Some of the numbers."""
    shape = draw.choice(((4,), (3, 4), (2, 3, 2)))
    dtype = draw.choice((*NUMBERS, "string"))
    source = tensor(draw, dtype, shape)
    far = 9 if draw.random() < 0.05 else shape[0] - 1
    places = [draw.randint(0, far) for _ in range(draw.randint(0, 4))]
    mask = array(draw, "bool", shape[: draw.randint(1, len(shape))])
    index = draw.choice(
        ("0", "-1", "1:", "::2", "::-1", "..., 0", "None", "..., None", "1:3", ":0", "-2:")
    )
    rows = array(draw, "int32", (2, 1), 0, far)
    return draw.choice((
        f"{source}[{index}]",
        f"{source}[{index}]",
        f"{source}[tf.placeholder_with_default({draw.randint(0, far)}, [])]",
        f"{source}[:tf.placeholder_with_default({draw.randint(0, far)}, [])]",
        f"tf.slice({source}, {[0] * len(shape)}, {[-1, *[1] * (len(shape) - 1)]})",
        f"tf.strided_slice({source}, [0], [{draw.randint(1, shape[0])}])",
        f"tf.gather({source}, np.array({places}, 'int32'))",
        f"tf.gather({source}, np.array({places}, 'int64'), axis=0)",
        f"tf.gather_nd({source}, {given(draw, rows, (2, 1))})",
        f"tf.boolean_mask({source}, {mask})",
        f"tf.where({tensor(draw, 'bool', shape)})",
        f"tf.where({tensor(draw, 'bool', shape)}, {source}, {tensor(draw, dtype, shape)})",
    ))  # fmt: skip


def selecting(draw: random.Random) -> str:
    """Numbers by what they are, numbers made of nothing but sizes, and rows at places of zeros."""
    count = draw.randint(1, 6)
    numbers = tensor(draw, draw.choice(("int32", "int64")), (count,), 0, 4)
    data = tensor(draw, draw.choice((*NUMBERS, "string")), (count, *draw.choice(((), (2,)))))
    dtype = draw.choice(("float32", "int32", "int64", "bool"))
    wide, high = tensor(draw, "float32", (2, 3)), tensor(draw, "float32", (3, 2))
    size = [draw.randint(0, 3) for _ in range(draw.randint(0, 2))]
    rest = draw.choice(((), (2,)))
    places = [[draw.randint(0, 7 if draw.random() < 0.05 else 4)] for _ in range(count)]
    slices = tensor(draw, draw.choice(("float32", "int32", "int64")), (count, *rest))
    return draw.choice((
        f"tf.one_hot({numbers}, {draw.randint(1, 5)}{draw.choice(('', ', 2.5, -1.0'))})",
        f"tf.one_hot({numbers}, 3, axis={draw.choice((0, -1))}, dtype=tf.{dtype})"
        if dtype != "bool"
        else f"tf.one_hot({numbers}, 3, on_value=True, off_value=False)",
        f"tf.sequence_mask({numbers}, {draw.choice(('None', '3', '6'))})",
        f"tf.sequence_mask({numbers}, 4, tf.{dtype})",
        f"tf.unique({numbers})",
        f"tf.unique_with_counts({numbers})",
        f"tf.fill({size}, {draw.choice(('7', '2.5', repr('text'), 'True'))})",
        f"tf.zeros({size}, tf.{dtype})",
        f"tf.ones({size}, tf.{dtype})",
        f"tf.eye({draw.randint(1, 3)})",
        f"tf.range({draw.choice(('5', '2, 7', '0, 10, 3', '5, 0, -2', '0.0, 2.0, 0.5'))})",
        f"tf.lin_space({draw.choice(('0.0, 1.0, 5', '-3.0, 3.0, 4', '2.0, 2.0, 1'))})",
        f"tf.matmul({wide}, {high})",
        f"tf.tuple([{numbers}, {data}])",
        f"tf.scatter_nd({places}, {slices}, {[5, *rest]})",
    ))  # fmt: skip


def chance(draw: random.Random) -> str:
    """Random numbers of an op's seed, which are the same in both libraries."""
    seed = f"seed={draw.choice((0, 1, 7, 12345, 2**31 - 1))}"
    size = [draw.randint(1, 5) for _ in range(draw.randint(0, 2))]
    low, high = draw.randint(-9, 0), draw.randint(1, 99)
    rows = draw.randint(1, 9)
    return draw.choice((
        f"tf.random_uniform({size}, {low}, {high}, {seed})",
        f"tf.random_uniform({size}, {low}, {high}, tf.int32, {seed})",
        f"tf.random_uniform({size}, {low}, {high}, tf.int64, {seed})",
        f"tf.random_uniform({size}, dtype=tf.float64, {seed})",
        f"tf.random_normal({size}, {low}, 2.0, {seed})",
        f"tf.truncated_normal({size}, {seed})",
        f"tf.random_shuffle(np.arange({rows * 2}).reshape({rows}, 2), {seed})",
        f"tf.random_crop(np.arange(30).reshape(5, 6), [{draw.randint(1, 5)}, 3], {seed})",
        f"tf.image.random_crop(np.arange(60).reshape(5, 6, 2), [3, 3, 2], {seed})",
        f"tf.multinomial([[0.0, 1.0, {low}.5]], {rows}, {seed})",
        f"tf.random.normal({size}, {seed})",
    ))  # fmt: skip


def ops(draw: random.Random) -> list[str]:
    """Some ops on numbers, each for itself."""
    spells: tuple[Spell, ...] = (unary, binary, reducing, shaping, indexing, selecting)
    return written(draw, spells)


def random_ops(draw: random.Random) -> list[str]:
    """Some random ops, each run several times."""
    lines = written(draw, (chance,), most=4, runs=draw.randint(1, 3))
    if draw.random() < 0.4:
        lines.insert(0, f"tf.set_random_seed({draw.randint(0, 99)})")
    return lines


def scattering(draw: random.Random) -> list[str]:
    """A variable, and ops that write to some of its places, one after another."""
    dtype, rest = draw.choice(("float32", "int32")), draw.choice(((), (2,)))
    lines = [
        "session()",
        f"(v,) = (tf.Variable({array(draw, dtype, (4, *rest))}, name='v'),)",
        "here(v.initializer)",
    ]
    for number in range(draw.randint(1, 4)):
        op, count = draw.choice(("update", "add", "sub")), draw.randint(1, 3)
        # The order in which places are written to that come twice is no promise.
        at = draw.sample(range(4), count) if op == "update" else draw.choices(range(4), k=count)
        is_far = draw.random() < 0.06 and dtype == "float32"  # TensorFlow checks no other's
        if is_far:
            at[-1] = 8
        size = rest if draw.random() < 0.95 else (5,)
        slices = array(draw, dtype, (count, *size), 1, 3)
        made = f"tf.scatter_{op}(v, {at}, {slices})"
        if draw.random() < 0.5:
            made = f"tf.scatter_nd_{op}(v, {[[one] for one in at]}, {slices})"
        lines += [f"(x{number},) = ({made},)", f"form(x{number})", f"near(x{number})"]
        if is_far:
            break  # TensorFlow has written to the places before that one
        lines.append("near(v)")
    return lines


OPS: dict[str, Maker] = {"ops": ops, "random ops": random_ops, "scattering": scattering}
"""The kinds of programs of this module by name."""
