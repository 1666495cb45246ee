"""Programs of strings, CSV lines, raw bytes, and examples that are parsed."""

from __future__ import annotations

import random

from proofs.oracle.program import Maker
from proofs.oracle.spelling import WORDS, Spell, tensor, written

__all__ = ("TEXTS",)

SERIAL = ("float32", "int32", "string", "bool", "float64", "int64", "uint8")


def _words(draw: random.Random, shape: tuple[int, ...] = (4,)) -> str:
    return tensor(draw, "string", shape)


def strings(draw: random.Random) -> str:
    """Strings made of strings."""
    words = _words(draw, draw.choice(((), (4,), (2, 2))))
    vector = _words(draw)
    number = draw.choice(("1.5", "-7", "x", "", "1e3", "12345678901", " 4 ", "0x1", "inf"))
    floats = tensor(draw, draw.choice(("float32", "float64")), (3,))
    whole = draw.choice((True, False))
    return draw.choice((
        f"tf.strings.{draw.choice(('lower', 'upper', 'strip', 'length'))}({words})",
        f"tf.string_strip({words})",
        f"tf.substr({words}, 0, {draw.randint(0, 3)})",
        f"tf.strings.substr(['hello', 'world'], {draw.randint(-6, 6)}, {draw.randint(0, 9)})",
        f"tf.regex_replace({words}, '[a-z]+', '<\\\\0>', replace_global={whole})",
        f"tf.string_join([{vector}, {_words(draw)}], {draw.choice(('', '-', ', '))!r})",
        f"tf.reduce_join({_words(draw, (2, 2))}, {draw.choice((0, 1, -1, [0, 1]))})",
        f"tf.string_split({vector}, {draw.choice((' ', ',', ', ', ''))!r}, skip_empty={whole})",
        f"tf.strings.split({vector}, result_type='SparseTensor')",
        f"tf.as_string({floats}, {draw.choice(('', 'precision=2', 'scientific=True'))})",
        f"tf.as_string({tensor(draw, 'int32', (3,))}, width=5, fill='0')",
        f"tf.string_to_number([{number!r}], tf.{draw.choice(('float32', 'int32', 'int64'))})",
        f"tf.encode_base64({words}, pad={whole})",
        f"tf.decode_base64(tf.encode_base64({words}))",
        f"tf.decode_base64({draw.choice(('!!', 'YQ', 'YQ==', 'A', '+/8='))!r})",
    ))  # fmt: skip


def raw(draw: random.Random) -> str:
    """Numbers in bytes, and tensors in messages."""
    dtype = draw.choice(("uint8", "int16", "int32", "float32", "int64", "float64", "bool"))
    size = draw.choice((8, 8, 16, 8, 7, 0))
    texts = [bytes(draw.randrange(2) for _ in range(size)) for _ in range(draw.randint(1, 3))]
    if draw.random() < 0.1:
        texts.append(b"\1")
    little = draw.random() < 0.7
    kept = draw.choice(SERIAL)
    value = tensor(draw, kept, draw.choice(((), (3,), (2, 2), (0, 2))))
    wanted = kept if draw.random() < 0.85 else "int32"
    return draw.choice((
        f"tf.decode_raw({texts}, tf.{dtype}, little_endian={little})",
        f"tf.decode_raw({texts}, tf.{dtype}, little_endian={little})",
        f"tf.io.decode_raw(input_bytes={texts}, out_type=tf.{dtype})",
        f"tf.parse_tensor(tf.serialize_tensor({value}), tf.{wanted})",
        f"tf.parse_tensor(tf.serialize_tensor({value}), tf.{wanted})",
        f"tf.parse_tensor({draw.choice((b'', b'no tensor'))!r}, tf.int32)",
    ))  # fmt: skip


FIELDS = ("1", "-7", "2.5", "", "x", '"a,b"', '"a""b"', " 3 ", "99999999999", '"open', 'a"b', "NA")
DEFAULTS = ("[0]", "[0.0]", "['']", "[7]", "['d']", "tf.constant([], tf.int32)")
DEFAULTS_WIDE = ("np.zeros(1, np.int64)", "np.zeros(1, np.float64)", "tf.constant([], tf.string)")


def csv(draw: random.Random) -> str:
    """Lines with columns, some of which do not fit."""
    count = draw.randint(1, 4)
    # Of two records that are wrong, it is the first that is told of.
    defaults = [draw.choice(DEFAULTS + DEFAULTS_WIDE) for _ in range(count)]
    lines = []
    for _ in range(draw.randint(1, 3)):
        fields = [_fitting(draw, default) for default in defaults]
        if draw.random() < 0.15:
            fields[draw.randrange(count)] = draw.choice(FIELDS)
        if draw.random() < 0.05:
            fields.append("1")
        lines.append(",".join(fields))
    options = draw.choice(
        ("", "", "", ", use_quote_delim=False", ", na_value='NA'", ", field_delim=','")
    )
    if draw.random() < 0.1 and count > 1:
        column = draw.randrange(count)
        options, defaults = f", select_cols=[{column}]", defaults[column : column + 1]
    given = repr(lines) if draw.random() < 0.8 else repr(lines[0])
    return f"tf.decode_csv({given}, [{', '.join(defaults)}]{options})"


def _fitting(draw: random.Random, default: str) -> str:
    if "'" in default or "string" in default:
        return draw.choice(("x", '"a,b"', "text", '""', "2"))
    if "0.0" in default or "float" in default:
        return draw.choice(("1.5", "-2", "1e3", "0.1"))
    return draw.choice(("1", "-7", "42", "0"))


KINDS = {"int64": "int64_list", "float32": "float_list", "string": "bytes_list"}
LISTS = {"int64": "Int64List", "float32": "FloatList", "string": "BytesList"}
NAMES = ("a", "b", "c", "d")


def _values(draw: random.Random, dtype: str, count: int) -> str:
    match dtype:
        case "string":
            return repr([draw.choice(WORDS).encode() for _ in range(count)])
        case "float32":
            return repr([draw.choice((0.5, -1.25, 3.0)) for _ in range(count)])
        case _:
            return repr([draw.randint(-5, 300) for _ in range(count)])


def _feature(draw: random.Random, dtype: str, count: int) -> str:
    made = f"tf.train.{LISTS[dtype]}(value={_values(draw, dtype, count)})"
    return f"tf.train.Feature({KINDS[dtype]}={made})"


def _feature_map(draw: random.Random, kinds: dict[str, tuple[str, int]], flaw: str = "") -> str:
    """Features of some names, with one flaw: ``missing``, ``kind``, ``empty`` or ``longer``."""
    flawed = draw.choice(list(kinds)) if flaw else ""
    made = {}
    for name, (dtype, count) in kinds.items():
        size = count if count >= 0 else draw.randint(0, 3)
        if flaw == "missing" and (name == flawed or draw.random() < 0.3):
            continue
        if name == flawed and flaw == "empty":
            made[name] = "tf.train.Feature()"
            continue
        if name == flawed:
            size, dtype = (
                size + (flaw == "longer"),
                (flaw == "kind" and _other(draw, dtype)) or dtype,
            )
        made[name] = _feature(draw, dtype, size)
    spelled = ", ".join(f"{name!r}: {feature}" for name, feature in made.items())
    return f"tf.train.Features(feature={{{spelled}}})"


def _other(draw: random.Random, dtype: str) -> str:
    return draw.choice([kind for kind in KINDS if kind != dtype])


def _kinds(draw: random.Random) -> dict[str, tuple[str, int]]:
    """By name the dtype of a feature, and how many values it has; -1: any number."""
    names = draw.sample(NAMES, draw.randint(1, 3))
    return {name: (draw.choice(list(KINDS)), draw.choice((1, 2, -1))) for name in names}


def _spec(draw: random.Random, kinds: dict[str, tuple[str, int]], simple: bool = False) -> str:
    """What is to be parsed; if it is to be simple, what a context may have."""
    made = {}
    for name, (dtype, count) in kinds.items():
        kind = f"tf.{dtype}"
        if count < 0:
            made[name] = f"tf.VarLenFeature({kind})"
            if not simple and draw.random() < 0.3:
                made[name] = f"tf.FixedLenSequenceFeature([], {kind}, allow_missing=True)"
            continue
        shape = [] if count == 1 and draw.random() < 0.6 else [count]
        default = _values(draw, dtype, count)
        default = default[1:-1] if not shape else default
        options = f", default_value={default}" if draw.random() < 0.7 else ""
        made[name] = f"tf.FixedLenFeature({shape}, {kind}{options})"
    numbers = [name for name, (dtype, _) in kinds.items() if dtype == "int64"]
    floats = [name for name, (dtype, _) in kinds.items() if dtype == "float32"]
    if numbers and floats and not simple and draw.random() < 0.3:
        # What is part of a sparse feature is not to be one of its own.
        kinds[numbers[0]], kinds[floats[0]] = ("int64", 2), ("float32", 2)
        del made[numbers[0]], made[floats[0]]
        made["s"] = f"tf.SparseFeature({numbers[0]!r}, {floats[0]!r}, tf.float32, 400)"
    return "{" + ", ".join(f"{name!r}: {feature}" for name, feature in made.items()) + "}"


def examples(draw: random.Random) -> list[str]:
    """Examples parsed one by one, in batches, and after a queue."""
    kinds = _kinds(draw)
    count = draw.randint(1, 4)
    spec = _spec(draw, kinds)
    flaws = [""] * count
    # A sparse feature whose parts do not fit fails there where it is put together. Of several
    # flaws that of the first example is told, and in it the one that was written first.
    if "Sparse" not in spec and draw.random() < 0.5:
        at = draw.randrange(count)
        # What is too long for a single one is told in words that depend on its encoding.
        longer = ("longer",) if at else ()
        flaws[at] = draw.choice(("missing", "missing", "kind", "empty", *longer))
    lines = [
        f"(e{at},) = (tf.train.Example(features={_feature_map(draw, kinds, flaws[at])})"
        ".SerializeToString(),)"
        for at in range(count)
    ]
    # Of maps the order on the wire is that of a hash: bytes are not compared, what they say is.
    if draw.random() < 0.06:
        lines.append("(e0,) = (b'no example',)")
    names = [name for name in (*kinds, "s") if f"{name!r}: tf" in spec]
    together = ", ".join(f"e{at}" for at in range(count))
    lines += [
        f"(one,) = (tf.parse_single_example(tf.placeholder_with_default(e0, []), {spec}),)",
        f"(all,) = (tf.parse_example(tf.stack([{together}]), {spec}),)",
        "form(one)",
        "form(all)",
        "session()",
        *(f"near({parsed}[{name!r}])" for parsed in ("one", "all") for name in names),
    ]
    return lines


def sequences(draw: random.Random) -> list[str]:
    """Sequence examples: a context, and lists of features.

    What is wrong in them is told in other words since TensorFlow 2, so little is.
    """
    context = _kinds(draw)
    steps = {name: (draw.choice(list(KINDS)), draw.choice((1, 2, -1))) for name in ("p", "q")}
    lists = {}
    for name, (dtype, size) in steps.items():
        if draw.random() < 0.08:
            continue
        length = draw.randint(0, 3)
        features = [
            _feature(draw, dtype, size if size >= 0 else draw.randint(0, 3)) for _ in range(length)
        ]
        lists[name] = f"tf.train.FeatureList(feature=[{', '.join(features)}])"
    spelled = ", ".join(f"{name!r}: {made}" for name, made in lists.items())
    lines = [
        f"(e0,) = (tf.train.SequenceExample(context={_feature_map(draw, context)},"
        f" feature_lists=tf.train.FeatureLists(feature_list={{{spelled}}}))"
        ".SerializeToString(),)"
    ]
    wanted = {}
    for name, (dtype, size) in steps.items():
        missing = ", allow_missing=True" if draw.random() < 0.8 else ""
        shape = [] if size == 1 else [size]
        wanted[name] = (
            f"tf.VarLenFeature(tf.{dtype})"
            if size < 0
            else f"tf.FixedLenSequenceFeature({shape}, tf.{dtype}{missing})"
        )
    spelled = ", ".join(f"{name!r}: {feature}" for name, feature in wanted.items())
    both = f"{_spec(draw, context, True)}, {{{spelled}}}"
    lines += [
        f"(one,) = (tf.parse_single_sequence_example(tf.constant(e0), {both}),)",
        "form(one)",
        "session()",
    ]
    about = [name for name in (*context, "s") if f"{name!r}: tf" in both]
    for part, names in ((0, about), (1, list(steps))):
        for name in names:
            lines.append(f"near(one[{part}][{name!r}])")
    return lines


def texts(draw: random.Random) -> list[str]:
    """Some ops on strings, each for itself."""
    spells: tuple[Spell, ...] = (strings, strings, raw, csv, csv)
    return written(draw, spells)


TEXTS: dict[str, Maker] = {
    "strings": texts,
    "parse_example": examples,
    "parse_single_sequence_example": sequences,
}
"""The kinds of programs of this module by name."""
