"""Programs of sparse tensors, lookup tables and assertions."""

from __future__ import annotations

import random

from proofs.oracle.program import Maker
from proofs.oracle.spelling import Spell, array, shown, tensor, written

__all__ = ("SPARSE",)

DTYPES = ("int32", "float32", "string", "int64")


def sparse(draw: random.Random, dtype: str, shape: tuple[int, int], ordered: bool = True) -> str:
    """A sparse matrix; at times of indices that are out of order, or out of range."""
    cells = [(row, column) for row in range(shape[0]) for column in range(shape[1])]
    chosen = draw.sample(cells, draw.randint(0, min(4, len(cells))))
    chosen = sorted(chosen) if ordered else chosen
    if chosen and draw.random() < 0.05:
        chosen[-1] = (shape[0], 0)
    indices = f"np.array({[list(cell) for cell in chosen]}, 'int64').reshape(-1, 2)"
    return f"tf.SparseTensor({indices}, {array(draw, dtype, (len(chosen),))}, {list(shape)})"


def sparse_op(draw: random.Random) -> str:
    """An op on sparse matrices."""
    shape = (draw.randint(1, 4), draw.randint(1, 4))
    dtype = draw.choice(DTYPES)
    one = sparse(draw, dtype, shape)
    loose = sparse(draw, dtype, shape, ordered=False)
    numbers = sparse(draw, "int64", shape)
    sizes, values = ([-1], [1, -1], [shape[1], shape[0]], [5, 7]), ("1", "[1, 2, 3]")
    default = repr(b"?") if dtype == "string" else "-1"
    return draw.choice((
        f"tf.sparse_tensor_to_dense({one}, {default})",
        f"tf.sparse_tensor_to_dense({loose}, {default})",
        f"tf.sparse.to_dense({loose}, {default}, validate_indices=False)",
        f"tf.sparse_to_dense([[0, 1], [1, 0]], [2, 3], {draw.choice(('7', '[7, 8]'))}, -1)",
        f"tf.sparse_to_dense({draw.sample(range(5), 3)}, [5], {draw.choice(values)})",
        f"tf.sparse_to_indicator({numbers}, {draw.choice((10, 20))})",
        f"tf.sparse_reorder({loose})",
        f"tf.sparse_reshape({one}, {draw.choice(sizes)})",
        f"tf.deserialize_many_sparse(tf.serialize_many_sparse({one}), tf.{dtype})",
        f"tf.deserialize_many_sparse(tf.stack([tf.serialize_sparse({one})] * 2), tf.{dtype},"
        f" rank=3)",
        f"tf.cast({sparse(draw, 'float32', shape)}, tf.int32)",
        f"{one}.values",
        f"{one}.dense_shape",
        one,
    ))  # fmt: skip


def sparse_tensors(draw: random.Random) -> list[str]:
    """Some ops on sparse tensors, some fed."""
    lines = written(draw, (sparse_op,), most=5)
    if draw.random() < 0.4:
        value = "tf.SparseTensorValue([[0, 1], [2, 0]], [5, 6], [3, 2])"
        lines += [
            "(fed,) = (tf.sparse_placeholder(tf.int32),)",
            "form(fed)",
            f"near(tf.sparse_tensor_to_dense(fed), {{fed: {value}}})",
            f"near(fed, {{fed: {value}}})",
        ]
    return lines


COMPARING = ("equal", "none_equal", "less", "less_equal", "greater", "greater_equal")
SIGNS = ("negative", "positive", "non_negative", "non_positive")


def assertion(draw: random.Random) -> str:
    """An assertion, which may hold; it passes on what it is about if it does."""
    dtype = draw.choice(("int32", "float32"))
    shape: tuple[int, ...] = draw.choice(((), (3,), (2, 2)))
    x = tensor(draw, dtype, shape, -1, 2)
    y = draw.choice((tensor(draw, dtype, shape, -1, 2), tensor(draw, dtype, (), -1, 2)))
    more = draw.choice(("", ", message='told'", ", data=['seen', 5], summarize=2"))
    plain = draw.choice(("", ", message='told'"))
    ranks = draw.choice((0, 1, 2))
    # Of constants that fail, an error is raised while the graph is built.
    match draw.choice(("two", "two", "sign", "rank", "numbers", "Assert")):
        case "two":
            made = f"tf.assert_{draw.choice(COMPARING)}({x}, {y}{more})"
        case "sign":
            made = f"tf.assert_{draw.choice(SIGNS)}({x}{more})"
        case "rank":
            made = draw.choice((
                f"tf.assert_rank({x}, {ranks}{plain})",
                f"tf.assert_rank_at_least({x}, {ranks}{plain})",
            ))  # fmt: skip
        case "numbers":
            special = draw.choice(("1.0", "np.inf", "np.nan", "-np.inf"))
            value = f"tf.placeholder_with_default(np.float32([1.0, {special}]), None)"
            return draw.choice((
                f"tf.debugging.{draw.choice(('is_inf', 'is_nan', 'is_finite'))}({value})",
                f"tf.check_numerics({value}, 'checked')",
                f"tf.verify_tensor_all_finite({value}, 'checked')",
                f"tf.debugging.assert_all_finite({value}, 'checked')",
            ))  # fmt: skip
        case _:
            holds = f"tf.placeholder_with_default({draw.random() < 0.5}, [])"
            made = f"tf.Assert({holds}, [{x}, 'said'], summarize={draw.choice((None, 2))})"
    # A dependency, for an operation returns nothing.
    return f"tf.tuple([{x}], control_inputs=[{made}])[0]"


def assertions(draw: random.Random) -> list[str]:
    """Some assertions, each for itself."""
    spells: tuple[Spell, ...] = (assertion,)
    return written(draw, spells)


def tables(draw: random.Random) -> list[str]:
    """Lookup tables of tensors and of files."""
    keys = draw.sample(("a", "bc", "d", "x y", "7"), draw.randint(1, 4))
    numbers = draw.sample(range(20), len(keys))
    if draw.random() < 0.06 and len(keys) > 1:
        keys[-1] = keys[0]
    line, whole = (f"tf.lookup.TextFileIndex.{one}" for one in ("LINE_NUMBER", "WHOLE_LINE"))
    words = f"tf.lookup.KeyValueTensorInitializer({keys}, {{}}, tf.string, tf.int64)"
    file = "tf.lookup.TextFileInitializer(folder + '/words', {}, {}, {}, {})"
    places = [str(at) for at in range(len(keys))]
    made = {
        "words": (words.format(numbers), -1, keys, "string"),
        "numbers": (
            f"tf.lookup.KeyValueTensorInitializer(tf.constant({numbers}), {keys})",
            "'none'", [str(number) for number in numbers], "int32",
        ),
        "beyond": (words.format([*range(len(keys))]), 3, keys, "string"),
        "file": (file.format("tf.string", whole, "tf.int64", line), -1, keys, "string"),
        "lines": (file.format("tf.int64", line, "tf.string", whole), "'none'", places, "int64"),
    }  # fmt: skip
    kind = draw.choice(("words", "numbers", "beyond", "file", "lines"))
    source, default, asked, dtype = made[kind]
    name = "StaticVocabularyTable" if kind == "beyond" else "StaticHashTable"
    asks = draw.sample([*asked, "5", "99"], 3 if len(asked) > 1 else 2)
    spelled = repr([key.encode() for key in asks]) if dtype == "string" else f"[{', '.join(asks)}]"
    lines = [
        f"with open(folder + '/words', 'w') as file: file.write({chr(10).join(keys)!r})",
        f"(table,) = (tf.lookup.{name}({source}, {default}),)",
        f"(keys,) = (tf.placeholder_with_default(np.array({spelled}, "
        f"{'object' if dtype == 'string' else repr(dtype)}), None),)",
        "(found,) = (table.lookup(keys),)",
        "form(found)",
        "(size,) = (table.size(),)",
        "session()",
    ]
    if draw.random() < 0.1:
        lines.append("near(found)")
    lines.append(f"here(tf.{draw.choice(('tables_initializer', 'initialize_all_tables'))}())")
    if dtype == "string" and draw.random() < 0.5:
        lines += shown("few", "table.lookup(tf.sparse_placeholder(tf.string))")[:2]
    return [*lines, "near(found)", "here(size)", "near(found)"]


SPARSE: dict[str, Maker] = {
    "sparse tensors": sparse_tensors,
    "assertions": assertions,
    "lookup tables": tables,
}
"""The kinds of programs of this module by name."""
