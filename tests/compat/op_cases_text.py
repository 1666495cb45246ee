"""Cases of strings, records and random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.compat.op_cases import Case, case, part, parts, u, unknown

TEXTS = [
    b"", b"a", b"Hello World", b"x,y,,z", b"  pad\t", "\u00e4\u00d6".encode(), b"1.5", b"nul\0",
]  # fmt: skip

STRINGS: dict[str, Case] = {
    "lower": lambda tf: tf.strings.lower(TEXTS),
    "upper": lambda tf: tf.strings.upper(TEXTS),
    "lower utf-8": lambda tf: tf.strings.lower(TEXTS, encoding="utf-8"),
    "upper utf-8": lambda tf: tf.strings.upper(TEXTS, encoding="utf-8"),
    "strip": lambda tf: tf.strings.strip(TEXTS),
    "length": lambda tf: tf.strings.length(TEXTS),
    "length utf-8": lambda tf: tf.strings.length(TEXTS, unit="UTF8_CHAR"),
    "length scalar": lambda tf: tf.strings.length("abc"),
    "substr": lambda tf: tf.strings.substr(["hello", "world"], 1, 3),
    "substr each": lambda tf: tf.strings.substr(["hello", "world"], [0, -2], [9, 1]),
    "substr utf-8": lambda tf: tf.strings.substr("\u00e4\u00d6x", 1, 1, unit="UTF8_CHAR"),
    "substr end": lambda tf: tf.strings.substr("abc", 3, 1),
    "substr far": lambda tf: tf.strings.substr("abc", 4, 1),
    "substr broadcast": lambda tf: tf.strings.substr("hello", [0, 1], [1, 2]),
    "tf.substr": lambda tf: tf.substr("hello", 1, 2),
    "replace": lambda tf: tf.strings.regex_replace(TEXTS, "[a-z]+", "<\\0>"),
    "replace first": lambda tf: tf.strings.regex_replace(["aaa"], "a", "b", replace_global=False),
    "replace groups": lambda tf: tf.strings.regex_replace("k=v", "(\\w)=(\\w)", "\\2\\\\\\1"),
    "replace bad": lambda tf: tf.strings.regex_replace("k=v", "(", "x"),
    "join": lambda tf: tf.string_join([["a", "b"], ["c", "d"]], "-"),
    "join scalar": lambda tf: tf.string_join(["pre", ["c", "d"]]),
    "join scalars": lambda tf: tf.strings.join(["pre", "fix"]),
    "join bad": lambda tf: tf.string_join([["a", "b"], ["c"]]),
    "join bad run": lambda tf: tf.string_join([u(tf, ["a", "b"]), u(tf, ["c"])]),
    "join part": lambda tf: tf.string_join([unknown(tf, ["a", "b"], [None]), ["c", "d"]]),
    "split": lambda tf: parts(tf.string_split(["a b", "", "c  d e"])),
    "split sep": lambda tf: parts(tf.string_split(["a,b;c", ",x"], ",;")),
    "split keep": lambda tf: parts(tf.string_split(["a,,b", ",x,"], ",", skip_empty=False)),
    "split bytes": lambda tf: parts(tf.string_split(["ab", "c"], "")),
    "split delimiter": lambda tf: parts(tf.string_split(["a,b"], delimiter=",")),
    "split rank": lambda tf: parts(tf.string_split([["a"]])),
    "split v2": lambda tf: parts(tf.strings.split(["a  b", "c"], result_type="SparseTensor")),
    "split v2 sep": lambda tf: parts(
        tf.strings.split(["a<>b<>", ""], sep="<>", result_type="SparseTensor")
    ),
    "split v2 max": lambda tf: parts(
        tf.strings.split(["a b c"], maxsplit=1, result_type="SparseTensor")
    ),
    "as_string int": lambda tf: tf.as_string([1, -20]),
    "as_string int64": lambda tf: tf.as_string(np.array([2**40])),
    "as_string float": lambda tf: tf.as_string([1.5, -2.0, 1e10, 1e-10, np.inf]),
    "as_string double": lambda tf: tf.as_string(np.array([1 / 3, 1e300])),
    "as_string bool": lambda tf: tf.as_string([True, False]),
    "as_string precision": lambda tf: tf.as_string([1 / 3], precision=2),
    "as_string scientific": lambda tf: tf.as_string([12345.678], scientific=True),
    "as_string shortest": lambda tf: tf.as_string([12345.678, 1e-9], shortest=True),
    "as_string width": lambda tf: tf.as_string([7, -12], width=5, fill="0"),
    "as_string left": lambda tf: tf.as_string([7, -12], width=5, fill="-"),
    "number": lambda tf: tf.string_to_number(["1", "-2.5", " 3 ", "1e3", "inf", "nan"]),
    "number int": lambda tf: tf.string_to_number(["1", "-2", "+3"], tf.int32),
    "number int64": lambda tf: tf.string_to_number("123456789012", tf.int64),
    "number double": lambda tf: tf.string_to_number("0.1", tf.float64),
    "number bad": lambda tf: tf.string_to_number("x"),
    "number empty": lambda tf: tf.string_to_number(""),
    "number fraction": lambda tf: tf.string_to_number("1.5", tf.int32),
    "number large": lambda tf: tf.string_to_number("3000000000", tf.int32),
    "number underscore": lambda tf: tf.string_to_number("1_0", tf.int32),
    "number dtype": lambda tf: tf.string_to_number("1", tf.int8),
    "raw uint8": lambda tf: tf.decode_raw(["abc", "def"], tf.uint8),
    "raw int16": lambda tf: tf.decode_raw("abcd", tf.int16),
    "raw big": lambda tf: tf.decode_raw("abcd", tf.int16, little_endian=False),
    "raw float": lambda tf: tf.decode_raw([np.float32(1.5).tobytes()], tf.float32),
    "raw bool": lambda tf: tf.decode_raw(b"\0\1", tf.bool),
    "raw empty": lambda tf: tf.decode_raw([""], tf.int32),
    "raw length": lambda tf: tf.decode_raw("abc", tf.int16),
    "raw lengths": lambda tf: tf.decode_raw(["abc", "abcd"], tf.uint8),
    "raw part": lambda tf: tf.decode_raw(unknown(tf, ["ab"], [None]), tf.uint8),
    "base64": lambda tf: tf.encode_base64(TEXTS),
    "base64 pad": lambda tf: tf.encode_base64(TEXTS, pad=True),
    "unbase64": lambda tf: tf.decode_base64(["", "YQ", "SGVsbG8gV29ybGQ", "-_8="]),
    "unbase64 bad": lambda tf: tf.decode_base64("!!"),
    "unbase64 plain": lambda tf: tf.decode_base64("+/8="),
    "unbase64 length": lambda tf: tf.decode_base64("A"),
}
for _name, _function in STRINGS.items():
    case(f"string {_name}", _function)

CSVS: dict[str, tuple[Any, ...]] = {
    "plain": ("1,2.5,x", [[0], [0.0], [""]]), "vector": (["1,a", "2,b"], [[0], [""]]),
    "matrix": ([["1,a"], ["2,b"]], [[0], [""]]), "default": (",", [[7], ["d"]]),
    "missing": ("1,", [[7], np.zeros(0, np.float32)]), "trailing": ("1,2,", [[7], [7], [7]]),
    "few": ("1", [[7], [7]]), "many": ("1,2,3", [[7], [7]]), "empty": ("", [[7]]),
    "blank": (" ", [["x"]]), "spaces": (" 1 , 2.5 ", [[1], [1.0]]),
    "quoted": ('"a,b",2', [[""], [0]]), "quotes in": ('"a""b",2', [[""], [0]]),
    "quoted last": ('2,"a"', [[0], [""]]), "quoted empty": ('2,""', [[0], ["d"]]),
    "quoted number": ('"2",x', [[0], ["d"]]), "quote open": ('"a,2', [[""], [0]]),
    "quote after": ('"a"b,2', [[""], [0]]), "quote inside": ('a"b,2', [[""], [0]]),
    "quoted line": ('"a\nb",2', [[""], [0]]), "line end": ("1,2\n", [[0], [0]]),
    "line before": ("\n1,2", [[0], [0]]), "crlf": ("1,2\r\n", [[0], [0]]),
    "not int": ("1.5", [[0]]), "not float": ("x", [[0.0]]),
    "not int64": ("x", [np.zeros(1, np.int64)]), "not double": ("x", [np.zeros(1, np.float64)]),
    "int64": ("99999999999", [np.zeros(1, np.int64)]), "int32 large": ("99999999999", [[0]]),
    "double": ("0.1", [np.zeros(1, np.float64)]), "scalar default": (",2", [5, 6]),
    "second row": (["1,2", "3,x"], [[0], [0]]),
}  # fmt: skip
for _name, _arguments in CSVS.items():

    def _csv(tf: Any, arguments: Any = _arguments) -> Any:
        return tf.decode_csv(*arguments)

    case(f"csv {_name}", _csv)
OPTIONS: dict[str, Case] = {
    "tab": lambda tf: tf.decode_csv("1\t2", [[0], [0]], field_delim="\t"),
    "no quotes": lambda tf: tf.decode_csv('"a,b"', [[""], [""]], use_quote_delim=False),
    "na": lambda tf: tf.decode_csv("NA,1", [[5], [0]], na_value="NA"),
    "columns": lambda tf: tf.decode_csv("1,2,3", [[0], [0]], select_cols=[0, 2]),
    "columns last": lambda tf: tf.decode_csv("1,2,", [[7]], select_cols=[2]),
    "columns far": lambda tf: tf.decode_csv("1,2", [[7]], select_cols=[5]),
    "columns order": lambda tf: tf.decode_csv("1,2", [[7], [7]], select_cols=[1, 0]),
    "delimiter": lambda tf: tf.decode_csv("1,2", [[7], [7]], field_delim="ab"),
    "no columns": lambda tf: tf.decode_csv("1,2", []),
    "int8": lambda tf: tf.decode_csv("1", [np.zeros(1, np.int8)]),
    "two defaults": lambda tf: tf.decode_csv("1", [[1, 2]]),
    "dtypes": lambda tf: tf.decode_csv("1,x", [tf.int32, tf.string]),
}
for _name, _function in OPTIONS.items():
    case(f"csv option {_name}", _function)


RANDOM: dict[str, Case] = {
    "uniform": lambda tf: tf.random_uniform([7, 3], seed=3),
    "uniform limits": lambda tf: tf.random_uniform([5], -2.0, 3.5, seed=3),
    "uniform 64": lambda tf: tf.random_uniform([3, 5], -2, 3.5, dtype=tf.float64, seed=3),
    "uniform 16": lambda tf: tf.random_uniform([9], dtype=tf.float16, seed=3),
    "uniform many": lambda tf: tf.random_uniform([100003], seed=3),
    "uniform scalar": lambda tf: tf.random_uniform([], seed=1),
    "uniform fed": lambda tf: tf.random_uniform(unknown(tf, [2, 2], [2]), seed=1),
    "uniform both": lambda tf: (tf.set_random_seed(9), tf.random_uniform([4], seed=1))[1],
    "int32": lambda tf: tf.random_uniform([11], -5, 100, tf.int32, seed=4),
    "int32 full": lambda tf: tf.random_uniform([30], -(2**31), 2**31 - 1, tf.int32, seed=4),
    "int64": lambda tf: tf.random_uniform([11], -5, 10**12, tf.int64, seed=4),
    "int none": lambda tf: tf.random_uniform([11], dtype=tf.int64),
    "int empty": lambda tf: tf.random_uniform([11], 5, 5, tf.int32, seed=1),
    "shuffle": lambda tf: tf.random_shuffle(np.arange(10), seed=5),
    "shuffle rows": lambda tf: tf.random_shuffle(np.arange(30).reshape(10, 3), seed=5),
    "shuffle one": lambda tf: tf.random_shuffle([1], seed=5),
    "shuffle text": lambda tf: tf.random_shuffle(["a", "b", "c", "d"], seed=5),
    "shuffle many": lambda tf: tf.random_shuffle(np.arange(1000), seed=5),
    "shuffle part": lambda tf: tf.random_shuffle(part(tf), seed=5),
    "multinomial": lambda tf: tf.multinomial([[0.0, 1.0, 2.0], [3.0, -np.inf, 1.0]], 9, seed=5),
    "crop": lambda tf: tf.random_crop(np.arange(100).reshape(10, 10), [3, 4], seed=5),
    "normal": lambda tf: tf.random_normal([1001], seed=5),
    "normal 64": lambda tf: tf.random_normal([1001], 1, 2, tf.float64, seed=5),
    "normal 16": lambda tf: tf.random_normal([101], 1, 2, tf.float16, seed=5),
    "truncated": lambda tf: tf.truncated_normal([1001], seed=5),
    "truncated 64": lambda tf: tf.truncated_normal([1001], 1, 2, tf.float64, seed=5),
}
for _name, _function in RANDOM.items():
    case(f"random {_name}", _function)

NOT_ONE: dict[str, Case] = {
    "several texts parse_tensor": lambda tf: tf.parse_tensor(u(tf, ["a"]), tf.int32),
    "several texts read_file": lambda tf: tf.read_file(u(tf, ["a", "b"])),
    "several texts decode_jpeg": lambda tf: tf.image.decode_jpeg(u(tf, ["a"])),
    "several texts decode_png": lambda tf: tf.image.decode_png(u(tf, [["a"]])),
    "several texts decode_image": lambda tf: tf.image.decode_image(u(tf, ["a"])),
    "several texts jpeg shape": lambda tf: tf.image.extract_jpeg_shape(u(tf, ["a"])),
    "several texts is_jpeg": lambda tf: tf.image.is_jpeg(u(tf, [b"\xff\xd8\xff", b"x"])),
    "feature shape": lambda tf: tf.parse_example(["x"], {"a": tf.FixedLenFeature(None, tf.int64)}),
    "feature type": lambda tf: tf.parse_example(["x"], {"a": tf.FixedLenFeature([], None)}),
    "feature rows": lambda tf: tf.parse_example(["x"], {"a": tf.VarLenFeature(None)}),
    "feature sizes": lambda tf: tf.parse_example(
        ["x"], {"a": tf.FixedLenFeature((1, None), tf.int64)}
    ),
}
for _name, _function in NOT_ONE.items():
    case(_name, _function)
