"""Programs of ops on numbers: elementwise, reducing, joining, cutting, selecting, and random."""

from __future__ import annotations

import random

from proofs.oracle.program import Maker
from proofs.oracle.spelling import Shape, Spell, array, given, tensor, written

__all__ = ("OPS",)

FLOATS = ("float32", "float32", "float64")
INTS = ("int32", "int32", "int64", "uint8", "int16")
NUMBERS = ("float32", "int32", "float64", "int64")
SHAPES: tuple[Shape, ...] = ((), (3,), (2, 3), (2, 1, 3), (4, 2), (0, 2))

SMOOTH = (
    *("abs", "negative", "square", "exp", "sin", "cos", "tanh", "sigmoid", "sinh", "cosh"),
    *("atan", "expm1", "nn.relu", "nn.tanh", "nn.sigmoid", "sign", "floor", "ceil", "round"),
    *("rint", "is_nan", "is_inf", "is_finite", "tan", "math.ceil"),
)
POSITIVE = ("sqrt", "rsqrt", "log", "log1p", "reciprocal", "math.reciprocal")
INVERSE = ("asin", "acos")
ANY = (
    *("zeros_like", "ones_like", "size", "shape", "rank", "identity", "reverse_first"),
    *("to_float", "to_double", "to_int32", "to_int64", "transpose"),
)
BINARY = (
    *("add", "subtract", "multiply", "maximum", "minimum", "squared_difference", "equal"),
    *("not_equal", "less", "less_equal", "greater", "greater_equal"),
)
DIVIDING = ("divide", "truediv", "div", "floordiv", "mod", "floor_div", "math.floormod")
FLOAT_PAIRS = ("div_no_nan", "atan2", "pow", "math.divide_no_nan")
INT_PAIRS = ("truncatediv", "truncatemod")
REDUCING = ("sum", "mean", "max", "min", "prod")
OPERATORS = ("+", "-", "*", "<", "<=", ">", ">=", "==", "!=")


def _shape(draw: random.Random, least: int = 0, full: bool = False) -> Shape:
    fitting = [s for s in SHAPES if len(s) >= least and not (full and 0 in s)]
    return draw.choice(fitting)


def unary(draw: random.Random) -> str:
    """An op of one tensor, each of whose elements it changes."""
    dtype, shape = draw.choice(FLOATS), _shape(draw)
    match draw.choice(("smooth", "positive", "inverse", "int", "any", "bool", "cast", "clip")):
        case "smooth":
            return f"tf.{draw.choice(SMOOTH)}({tensor(draw, dtype, shape, -3, 3)})"
        case "positive":
            return f"tf.{draw.choice(POSITIVE)}({tensor(draw, dtype, shape, 1, 9)})"
        case "inverse":
            return f"tf.{draw.choice(INVERSE)}({tensor(draw, dtype, shape, -1, 1)})"
        case "int":
            op = draw.choice(("abs", "negative", "square", "sign"))
            return f"tf.{op}({tensor(draw, draw.choice(('int32', 'int64')), shape)})"
        case "bool":
            return f"tf.logical_not({tensor(draw, 'bool', shape)})"
        case "cast":
            wanted = draw.choice(("int32", "float64", "bool", "uint8", "int64", "float16"))
            op = draw.choice(("cast", "cast", "saturate_cast"))
            if op == "saturate_cast":
                return f"tf.saturate_cast({tensor(draw, dtype, shape, -300, 300)}, tf.uint8)"
            source = tensor(draw, draw.choice(("int32", "float32", "bool")), shape, 0, 9)
            return f"tf.cast({source}, tf.{wanted})"
        case "clip":
            return f"tf.clip_by_value({tensor(draw, dtype, shape)}, -1.5, 4)"
        case _:
            op = draw.choice(ANY)
            given_dtype = draw.choice(NUMBERS)
            if op == "reverse_first":
                return f"tf.reverse({tensor(draw, given_dtype, _shape(draw, 1))}, [0])"
            return f"tf.{op}({tensor(draw, given_dtype, shape)})"


def binary(draw: random.Random) -> str:
    """An op of two tensors whose shapes fit, at times because one is stretched."""
    one = _shape(draw)
    other = draw.choice((one, one, (), one[1:], tuple(1 for _ in one)))
    if draw.random() < 0.04:
        other = (7,)
    match draw.choice(("plain", "operator", "dividing", "floats", "ints", "logical", "n")):
        case "plain":
            dtype, op = draw.choice(NUMBERS), draw.choice(BINARY)
        case "operator":
            dtype = draw.choice(NUMBERS)
            pair = tensor(draw, dtype, one), array(draw, dtype, other)
            # `==` of two tensors is whether they are the same one.
            return f" {draw.choice(OPERATORS[:-2])} ".join(pair)
        case "dividing":
            dtype, op = draw.choice(("int32", "int32", "float64", "int64")), draw.choice(DIVIDING)
            low = 0 if dtype.startswith("int") and draw.random() < 0.05 else 1
            return f"tf.{op}({tensor(draw, dtype, one)}, {tensor(draw, dtype, other, low, 4)})"
        case "floats":
            dtype, op = draw.choice(FLOATS), draw.choice(FLOAT_PAIRS)
            return f"tf.{op}({tensor(draw, dtype, one, 1, 4)}, {tensor(draw, dtype, other, 1, 4)})"
        case "ints":
            op, dtype = draw.choice(INT_PAIRS), "int32"
            return f"tf.{op}({tensor(draw, dtype, one)}, {tensor(draw, dtype, other, 1, 4)})"
        case "logical":
            dtype, op = "bool", draw.choice(("logical_and", "logical_or", "logical_xor"))
        case _:
            parts = ", ".join(tensor(draw, "int32", one) for _ in range(draw.randint(1, 3)))
            return f"tf.{draw.choice(('add_n', 'accumulate_n'))}([{parts}])"
    return f"tf.{op}({tensor(draw, dtype, one)}, {tensor(draw, dtype, other)})"


def _axis(draw: random.Random, shape: Shape) -> int:
    return draw.randint(-len(shape), len(shape) - 1)


def reducing(draw: random.Random) -> str:
    """Fewer numbers made of many."""
    shape = _shape(draw, 1, full=True)
    axis = _axis(draw, shape)
    axes = draw.choice((str(axis), f"[{axis}]", "None", "[]" if draw.random() < 0.2 else "0"))
    keep = draw.choice(("", "", ", keepdims=True", ", keep_dims=True"))
    dtype = draw.choice(("float32", "int32", "float64", "int64"))
    match draw.choice(("reduce", "reduce", "floats", "bool", "arg", "cum", "count", "norm", "top")):
        case "reduce":
            return f"tf.reduce_{draw.choice(REDUCING)}({tensor(draw, dtype, shape)}, {axes}{keep})"
        case "floats":
            op = draw.choice(("reduce_logsumexp", "math.reduce_std", "math.reduce_variance"))
            keep = draw.choice(("", ", keepdims=True"))
            return f"tf.{op}({tensor(draw, 'float32', shape)}, {axes}{keep})"
        case "bool":
            op = draw.choice(("reduce_all", "reduce_any"))
            return f"tf.{op}({tensor(draw, 'bool', shape)}, {axes}{keep})"
        case "arg":
            op = draw.choice(("argmax", "argmin"))
            more = draw.choice(("", ", output_type=tf.int32"))
            return f"tf.{op}({tensor(draw, dtype, shape)}, {axis}{more})"
        case "cum":
            options = f"exclusive={draw.random() < 0.5}, reverse={draw.random() < 0.5}"
            op = draw.choice(("cumsum", "cumprod"))
            return f"tf.{op}({tensor(draw, dtype, shape, 1, 4)}, {axis}, {options})"
        case "count":
            return f"tf.count_nonzero({tensor(draw, 'int32', shape, -1, 1)}, {axes})"
        case "norm":
            return f"tf.nn.softmax({tensor(draw, 'float32', shape)})"
        case _:
            source = tensor(draw, dtype, shape)
            if draw.random() < 0.5:
                op = draw.choice(("sort", "argsort"))
                way = draw.choice(("ASCENDING", "DESCENDING"))
                # Of equal numbers TensorFlow promises no order.
                source = given(draw, f"np.arange({shape[-1]}) * 7 % 5 % 11 - 2.5", shape[-1:])
                return f"tf.{op}({source}, direction={way!r})"
            return f"tf.nn.top_k({source}, {draw.randint(0, shape[-1])})"


def shaping(draw: random.Random) -> str:
    """The same numbers in another shape or order."""
    shape = _shape(draw, 1, full=True)
    axis, dtype = _axis(draw, shape), draw.choice((*NUMBERS, "string", "bool"))
    source = tensor(draw, dtype, shape)
    order = list(range(len(shape)))
    draw.shuffle(order)
    sizes = ([-1], [1, -1], [*shape, 1], [-1, shape[0]], [-1, 5])
    order_of_axes = draw.choice(("ij", "xy"))
    ones = [at for at, size in enumerate(shape) if size == 1]
    spells = [
        f"tf.reshape({source}, {draw.choice(sizes)})",
        f"tf.reshape({source}, tf.concat([[1], tf.shape({source})], 0))",
        f"tf.expand_dims({source}, {axis})",
        f"tf.squeeze({source}, {draw.choice((ones, []))})",
        f"tf.transpose({source}, {order})",
        f"tf.reverse({source}, [{axis}])",
        f"tf.roll({source}, {draw.randint(-3, 3)}, {axis})",
        f"tf.tile({source}, {[draw.randint(0, 3) for _ in shape]})",
        f"tf.repeat({source}, {draw.randint(0, 3)}, {axis % len(shape)})",
        f"tf.broadcast_to({source}, {[2, *shape]})",
        f"tf.unstack({array(draw, dtype, shape)}, axis={axis})",
        f"tf.split({tensor(draw, dtype, (4, 2))}, {draw.choice(('2', '[1, 3]', '[-1, 1]', '4'))})",
        f"tf.stack([{source}, {source}], {draw.choice((axis, 0))})",
        f"tf.concat([{source}, {source}], {axis})",
        f"tf.shape_n([{source}, {source}])",
        f"tf.meshgrid([1, 2, 3], {tensor(draw, 'int32', (2,))}, indexing={order_of_axes!r})",
        f"tf.broadcast_dynamic_shape([2, 1], tf.shape({source})[:1])",
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
    return draw.choice(
        (
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
        )
    )


def selecting(draw: random.Random) -> str:
    """Numbers by what they are, and numbers made of nothing but sizes."""
    count = draw.randint(1, 6)
    numbers = tensor(draw, draw.choice(("int32", "int64")), (count,), 0, 4)
    data = tensor(draw, draw.choice((*NUMBERS, "string")), (count, *draw.choice(((), (2,)))))
    order = list(range(count))
    draw.shuffle(order)
    dtype = draw.choice(("float32", "int32", "int64", "bool"))
    wide, high = tensor(draw, "float32", (2, 3)), tensor(draw, "float32", (3, 2))
    size = [draw.randint(0, 3) for _ in range(draw.randint(0, 2))]
    return draw.choice(
        (
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
            f"tf.tensordot({wide}, {high}, 1)",
            f"tf.tuple([{numbers}, {data}])",
            f"tf.identity_n([{numbers}, {data}])",
        )
    )


def chance(draw: random.Random) -> str:
    """Random numbers of an op's seed, which are the same in both libraries."""
    seed = f"seed={draw.choice((0, 1, 7, 12345, 2**31 - 1))}"
    size = [draw.randint(1, 5) for _ in range(draw.randint(0, 2))]
    low, high = draw.randint(-9, 0), draw.randint(1, 99)
    rows = draw.randint(1, 9)
    return draw.choice(
        (
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
            f"tf.random.categorical([[0.0, 1.0, 2.0], [1.0, 1.0, {low}.0]], 4, {seed})",
            f"tf.random.normal({size}, {seed})",
        )
    )


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


OPS: dict[str, Maker] = {"ops": ops, "random ops": random_ops}
"""The kinds of programs of this module by name."""
