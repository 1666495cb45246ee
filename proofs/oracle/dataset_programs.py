"""Programs of tf.data: a source, a few stages, and an iterator that is asked to its end."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from proofs.oracle.program import Maker


@dataclass
class _Flow:
    """What is known of the elements of a dataset.

    Attributes:
        kind: ``number``, ``vector`` of a length that varies, ``text``, ``pair`` of a number and a
            text, ``dict`` of two numbers; with " batch" if there are several in each.
        endless: whether it has no end.
    """

    kind: str
    endless: bool = False


def _source(draw: random.Random) -> tuple[str, _Flow]:
    count = draw.randint(1, 7)
    numbers = f"np.arange({count}) * 10"
    texts = [f"t{at}".encode() for at in range(count)]
    match draw.choice(("range", "range", "slices", "pair", "dict", "text", "generator", "tensors")):
        case "range":
            limits = draw.choice((f"{count}", f"2, {count + 2}", "0, 9, 2", "5, 0, -2"))
            return f"tf.data.Dataset.range({limits})", _Flow("number")
        case "slices":
            return f"tf.data.Dataset.from_tensor_slices({numbers})", _Flow("number")
        case "pair":
            return f"tf.data.Dataset.from_tensor_slices(({numbers}, {texts}))", _Flow("pair")
        case "dict":
            made = f"{{'a': {numbers}, 'b': np.arange({count}) - 3}}"
            return f"tf.data.Dataset.from_tensor_slices({made})", _Flow("dict")
        case "text":
            size = draw.choice((1, 2, 3, 4, 5))
            made = draw.choice((
                "TextLineDataset(folder + '/lines')",
                f"FixedLengthRecordDataset(folder + '/lines', {size}, 1)",
                "Dataset.list_files(folder + '/*', shuffle=False)",
            ))  # fmt: skip
            return f"tf.data.{made}", _Flow("text")
        case "generator":
            made = f"lambda: iter(range({count}))"
            return f"tf.data.Dataset.from_generator({made}, tf.int64, [])", _Flow("number")
        case _:
            return f"tf.data.Dataset.from_tensors(tf.constant({count}, tf.int64))", _Flow("number")


def _mapped(draw: random.Random, flow: _Flow) -> str:
    calls = draw.choice(("", "", ", num_parallel_calls=2"))
    functions = {
        "number": (
            ("lambda n: n * 2 + 1", "number"),
            ("lambda n: (n, tf.as_string(n))", "pair"),
            ("lambda n: {'a': n, 'b': n * n}", "dict"),
            *[("lambda n: tf.fill([n % 4], n)", "vector")] * 2,
            ("lambda n: tf.as_string(n)", "text"),
            ("lambda n: tf.py_func(lambda v: v + 1, [n], tf.int64, stateful=False)", "unknown"),
        ),
        "vector": (("lambda v: tf.reduce_sum(v)", "number"), ("lambda v: v + 1", "vector")),
        "text": (
            ("lambda t: tf.string_join([t, '!'])", "text"),
            ("lambda t: tf.strings.length(t)", "other"),
        ),
        "pair": (("lambda n, t: n", "number"), ("lambda n, t: (n + 1, t)", "pair")),
        "dict": (("lambda d: d['a'] + d['b']", "number"), ("lambda d: (d['a'], 'x')", "pair")),
    }
    function, flow.kind = draw.choice(functions[flow.kind])
    return f".map({function}{calls})"


def _grouped(draw: random.Random, flow: _Flow) -> str:
    """A stage that makes several elements of one, or one of several, by what they are."""
    size = draw.randint(1, 3)
    if flow.kind == "vector":
        flow.kind = "vector batch"
        pads = draw.choice((", pad_to_bucket_boundary=False", ""))
        return (
            ".apply(tf.data.experimental.bucket_by_sequence_length(lambda v: tf.shape(v)[0],"
            f" [2, 4], [{size}, 2, 1]{pads}))"
        )
    if flow.kind != "number":
        return f".skip({size})"
    match draw.choice(("window", "flat", "interleave", "parallel", "unbatch", "fused", "again")):
        case "window":
            flow.kind = "number batch"
            return (
                ".apply(tf.data.experimental.group_by_window(lambda n: n % 2,"
                f" lambda key, ns: ns.batch({size + 1}), {size + 1}))"
            )
        case "flat":
            return ".flat_map(lambda n: tf.data.Dataset.range(n % 3))"
        case "interleave":
            length = draw.randint(1, 2)
            return (
                ".interleave(lambda n: tf.data.Dataset.from_tensors(n).repeat(3),"
                f" cycle_length={size}, block_length={length})"
            )
        case "parallel":
            return (
                ".apply(tf.data.experimental.parallel_interleave(lambda n: "
                f"tf.data.Dataset.from_tensors(n).repeat(2), cycle_length={size}))"
            )
        case "unbatch":
            return f".batch({size}).apply(tf.data.experimental.unbatch())"
        case "fused":
            flow.kind = "number batch"
            return f".apply(tf.data.experimental.map_and_batch(lambda n: n * 3, {size}))"
        case _:
            flow.endless = False
            return (
                ".take(9).apply(tf.data.experimental.shuffle_and_repeat"
                f"({size}, {draw.randint(1, 2)}, seed={draw.randint(1, 9)}))"
            )


def _batched(draw: random.Random, flow: _Flow) -> str:
    size = draw.randint(1, 4)
    drops = draw.choice(("", ", drop_remainder=True", ", drop_remainder=False"))
    if flow.kind == "vector":
        flow.kind = "vector batch"
        shape = draw.choice(("[None]", "[None]", "[4]", "[2]" if draw.random() < 0.1 else "[5]"))
        value = draw.choice(("", ", np.int64(-1)"))
        return f".padded_batch({size}, {shape}{value}{drops})"
    if flow.kind == "pair":
        flow.kind = "pair batch"
        return draw.choice((f".padded_batch({size}, ([], []){drops})", f".batch({size}{drops})"))
    flow.kind += " batch"
    return f".batch({size}{drops})"


def _plain(draw: random.Random, flow: _Flow) -> str:
    seed = draw.choice(("7", "0", "12345"))
    some = [
        f".take({draw.choice((0, 1, 3, 5, -1))})",
        f".skip({draw.choice((0, 1, 2, 9))})",
        f".prefetch({draw.choice((0, 1, 3))})",
        f".shard({draw.choice(('1, 0', '2, 0', '2, 1', '3, 1'))})",
        ".cache()",
        f".shuffle({draw.choice((1, 2, 5, 100))}, seed={seed})",
        f".shuffle(3, seed={seed}, reshuffle_each_iteration={draw.random() < 0.5})",
    ]
    if not flow.endless:
        some.append(f".repeat({draw.choice((1, 2, 0))})")
        some.append(".repeat()")
    if flow.kind == "number":
        some += [
            ".concatenate(tf.data.Dataset.range(2))",
            ".filter(lambda n: tf.equal(n % 2, 0))",
            ".filter(lambda n: n > 2)",
        ]
    stage = draw.choice(some)
    if stage == ".repeat()":
        flow.endless = True
    return stage


def _stages(draw: random.Random) -> tuple[str, _Flow]:
    made, flow = _source(draw)
    for _ in range(draw.randint(1, 5)):
        makers: list[Callable[[random.Random, _Flow], str]] = [_plain]
        if flow.kind in ("number", "vector", "text", "pair", "dict"):
            makers += [_mapped, _batched]
        if flow.kind in ("number", "vector") and not flow.endless:
            makers.append(_grouped)
        stage = draw.choice(makers)(draw, flow)
        # What is empty for ever is waited for for ever.
        if flow.endless and (".filter" in stage or ".take(0)" in stage or "skip(9)" in stage):
            continue
        made += stage
    if flow.kind == "number" and draw.random() < 0.15:
        made, flow.kind = f"tf.data.Dataset.zip(({made}, tf.data.Dataset.range(4)))", "other"
    return made, flow


def datasets(draw: random.Random) -> list[str]:
    """A pipeline, and an iterator of one kind."""
    lines = ["with open(folder + '/lines', 'w') as file: file.write('one\\ntwo\\n\\nfour')"]
    if draw.random() < 0.2:
        lines.append(f"tf.set_random_seed({draw.randint(0, 99)})")
    made, _ = _stages(draw)
    lines.append(f"(data,) = ({made},)")
    if draw.random() < 0.2:
        what = draw.choice(("types", "shapes"))
        lines.append(f"say(str(tf.data.get_output_{what}(data)))")
        lines.append("(classes,) = (str(tf.data.get_output_classes(data)),)")
    starts = []
    match draw.choice(("one shot", "one shot", "initializable", "structure")):
        case "one shot":
            lines.append("(it,) = (tf.data.make_one_shot_iterator(data),)")
        case "initializable":
            lines.append("(it,) = (tf.data.make_initializable_iterator(data),)")
            starts = ["here(it.initializer)"]
        case _:
            lines += [
                "types, shapes = data.output_types, data.output_shapes",
                "(it,) = (tf.data.Iterator.from_structure(types, shapes),)",
                "(start,) = (it.make_initializer(data),)",
            ]
            starts = ["here(start)"]
    lines += ["(element,) = (it.get_next(),)", "form(element)", "session()"]
    if starts and draw.random() < 0.95:
        lines += starts
    lines += ["near(element)"] * draw.randint(2, 9)
    if starts and draw.random() < 0.5:
        lines += [*starts, *["near(element)"] * draw.randint(1, 4)]
    return lines


def records(draw: random.Random) -> list[str]:
    """Records of files, in a dataset and by an iterator in Python."""
    made = [f"r{at}".encode() * draw.randint(0, 3) for at in range(draw.randint(0, 5))]
    kind = draw.choice(("NONE", "GZIP", "ZLIB"))
    options = f"tf.python_io.TFRecordOptions(tf.python_io.TFRecordCompressionType.{kind})"
    compression = "''" if kind == "NONE" else repr(kind)
    return [
        f"with tf.python_io.TFRecordWriter(folder + '/r', {options}) as w:"
        f" [w.write(record) for record in {made}]",
        f"say(list(tf.python_io.tf_record_iterator(folder + '/r', {options})))",
        f"(data,) = (tf.data.TFRecordDataset(folder + '/r', {compression}).batch(2),)",
        "(element,) = (tf.data.make_one_shot_iterator(data).get_next(),)",
        "form(element)",
        "session()",
        *["near(element)"] * draw.randint(1, 4),
    ]


DATASETS: dict[str, Maker] = {"datasets": datasets, "record datasets": records}
"""The kinds of programs of this module by name."""
