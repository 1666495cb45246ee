"""Programs of control flow, variables, Python functions, and files."""

from __future__ import annotations

import random

from proofs.oracle.program import Maker
from proofs.oracle.spelling import Spell, tensor, written


def branching(draw: random.Random) -> str:
    """A choice that is made when it runs."""
    fed = f"tf.placeholder_with_default({draw.randint(0, 4)}, [])"
    pair = f"tf.placeholder_with_default({draw.random() < 0.5}, [])"
    return draw.choice((
        f"tf.cond({pair}, lambda: tf.constant(1), lambda: tf.constant(2) * 3)",
        f"tf.cond({fed} > 2, lambda: (tf.constant(1.5), 7), lambda: (tf.constant(0.5), 8))",
        f"tf.cond({pair}, lambda: tf.zeros([2]), lambda: tf.ones([3]))",
        f"tf.case([({fed} < 2, lambda: tf.constant(10)), ({fed} < 4,"
        " lambda: tf.constant(20))], default=lambda: tf.constant(30))",
        f"tf.while_loop(lambda i, s: i < {fed}, lambda i, s: (i + 1, s * 2), (0, 1))",
        f"tf.while_loop(lambda i: tf.less(i, {draw.randint(0, 9)}), lambda i: [i + 3], [0])",
        f"tf.while_loop(lambda i, v: i < {fed}, lambda i, v: (i + 1, tf.concat([v, v], 0)),"
        " (0, tf.constant([1])), shape_invariants=(tf.TensorShape([]),"
        " tf.TensorShape([None])))",
    ))  # fmt: skip


def mapping(draw: random.Random) -> str:
    """A function of each row."""
    rows = tensor(draw, "int32", (draw.randint(1, 4), 2))
    numbers = tensor(draw, draw.choice(("int32", "float32")), (draw.randint(1, 4),))
    return draw.choice((
        f"tf.map_fn(lambda row: tf.reduce_sum(row), {rows})",
        f"tf.map_fn(lambda row: (row[0], row * 2), {rows}, dtype=(tf.int32, tf.int32))",
        f"tf.map_fn(lambda n: tf.cast(n, tf.float32) / 2.0, {numbers}, dtype=tf.float32)",
        f"tf.map_fn(lambda ab: ab[0] + ab[1], ({rows}[:1], {rows}[:1]), dtype=tf.int32)",
        f"tf.foldl(lambda a, n: a * 2 + n, {numbers})",
        f"tf.scan(lambda a, n: a + n, {numbers})",
        "tf.scan(lambda a, n: a + n, tf.constant([[1, 2], [3, 4]]),"
        " initializer=tf.constant([0, 100]))",
    ))  # fmt: skip


def calling(draw: random.Random) -> str:
    """A function of Python within the graph."""
    numbers = tensor(draw, "float32", (3,))
    return draw.choice((
        f"tf.py_func(lambda x: x * 2, [{numbers}], tf.float32)",
        f"tf.py_func(lambda x: (x.sum(), np.int64(len(x))), [{numbers}],"
        " (tf.float32, tf.int64))",
        f"tf.py_func(lambda x: [b'a', b'bc'], [{numbers}], tf.string)",
        f"tf.numpy_function(lambda x: x + np.float32(1), [{numbers}], tf.float32)",
        f"tf.py_func(lambda x: {{}}['missing'], [{numbers}], tf.float32)",
        f"tf.py_func(lambda x: int('no'), [{numbers}], tf.int64)",
        f"tf.py_func(lambda x: x.astype('float64'), [{numbers}], tf.float32)",
    ))  # fmt: skip


def flows(draw: random.Random) -> list[str]:
    """Some control flow, each piece for itself."""
    spells: tuple[Spell, ...] = (branching, mapping, calling)
    return written(draw, spells, most=5, runs=draw.randint(1, 2))


INITIALIZERS = (
    "tf.zeros_initializer()", "tf.ones_initializer()", "tf.constant_initializer(3)",
    "tf.constant_initializer([[1, 2, 3], [4, 5, 6]])",
    "tf.random_uniform_initializer(-1, 2, seed=5)",
    "tf.random_normal_initializer(1.0, 0.5, seed=5)", "tf.truncated_normal_initializer(seed=5)",
    "tf.glorot_uniform_initializer(seed=5)", "tf.glorot_normal_initializer(seed=5)",
    "tf.variance_scaling_initializer(2.0, 'fan_out', seed=5)",
)  # fmt: skip
# Of two ops that find no value, it is chance which one TensorFlow tells of.
CHANGES = (
    "tf.assign(v, [[1, 2, 3], [4, 5, 6]])",
    "tf.assign_add(v, tf.ones([2, 3]) * 3)",
    "tf.assign_sub(v, tf.ones([2, 3]) * 2)",
    "v.assign(tf.zeros([2, 3]))",
    "v.assign_add(tf.ones([2, 3]))",
)
SETTINGS = (
    "v", "v.read_value()", "v * 2.0 - 1.0", "tf.is_variable_initialized(v)",
    "tf.report_uninitialized_variables()", "tf.identity(v)", "step",
)  # fmt: skip
# What reads a variable, in an operation that runs after a change of it.
READS = (
    *("v * 2.0 - 1.0", "tf.add(v, 1.0)", "v[0] + v[1]", "tf.reduce_sum(v)"),
    *("tf.identity(v)", "v.read_value()", "tf.stack([v, w])"),
)


def variables(draw: random.Random) -> list[str]:
    """Variables in scopes: made, shared, initialized, changed and looked at."""
    seeded = f"tf.set_random_seed({draw.randint(0, 99)})" if draw.random() < 0.2 else "settle()"
    reuse = draw.choice(("tf.AUTO_REUSE", "tf.AUTO_REUSE", "True", "False"))
    lines = [
        seeded,
        f"with tf.variable_scope('outer'): v = tf.get_variable('v', [2, 3], tf.float32,"
        f" {draw.choice(INITIALIZERS)})",
        f"with tf.variable_scope('outer', reuse={reuse}): w = tf.get_variable('v', [2, 3])",
        "with tf.variable_scope('outer'), tf.name_scope('n'): x = tf.constant(1, name='x')",
        "say(tf.get_variable_scope().name)",
        "step = tf.train.get_or_create_global_step()",
        f"own = tf.Variable({draw.choice(('7', '[1.0, 2.0]', repr('text')))},"
        f" trainable={draw.random() < 0.5}, name={draw.choice(('own', 'outer/v'))!r})",
        "say([v.name for v in tf.global_variables()])",
        "say([v.name for v in tf.trainable_variables()])",
        f"say(len({draw.choice(('tf.local_variables()', 'tf.all_variables()'))}))",
        "session()",
    ]
    if draw.random() < 0.9:
        every = (
            *("tf.global_variables_initializer()", "tf.initialize_all_variables()"),
            *(
                "tf.variables_initializer(tf.global_variables())",
                "[v.initializer, own.initializer]",
            ),
        )
        lines.append(f"here({draw.choice(every)})")
        for _ in range(draw.randint(0, 2)):
            change, read = draw.choice(CHANGES), draw.choice(READS)
            lines += [f"with tf.control_dependencies([{change}]): u = {read}", "near(u)", "near(u)"]
    some = draw.choices((*CHANGES, *SETTINGS, *SETTINGS), k=draw.randint(3, 9))
    lines += [f"near({fetch})" for fetch in some]
    return [*lines, "near(own)", "here(tf.assign_add(step, 2))", "here(step)"]


def patterns(draw: random.Random) -> list[str]:
    """Files with odd names, and patterns of paths that begin here, there, or at the root."""

    def name() -> str:
        return "".join(draw.choices(("a", "b", "1", ".", "-", "]", "[", "^", "!"), k=3)).strip(".")

    def wild() -> str:
        return "".join(draw.choices(WILD, k=draw.randint(1, 3)))

    lines = [GLOB]
    for _ in range(draw.randint(3, 9)):
        path = "/".join(filter(None, [name() for _ in range(draw.randint(1, 3))])) or "a"
        lines.append(f"tf.gfile.MakeDirs(folder + '/' + {path!r})")
    lines.append("tf.gfile.MakeDirs(folder + '/a/b'); tf.gfile.MakeDirs(folder + '/a1/b')")
    for _ in range(8):
        parts = [draw.choice((wild, wild, name))() or "*" for _ in range(draw.randint(1, 3))]
        before = draw.choice(("", "", "./", "a/../", "../files/", "a//", "none/../"))
        pattern = before + "/".join(parts) + draw.choice(("", "", "/"))
        lines.append(f"say(found({pattern!r}))")
        lines.append(f"say(sorted(tf.gfile.Glob(folder + '/' + {pattern!r})))")
    return lines


GLOB = """\
def found(pattern):
    import os
    before = os.getcwd()
    os.chdir(folder)
    try:
        return sorted(tf.gfile.Glob(pattern))
    finally:
        os.chdir(before)"""

WILD = (
    *("a", "b", "1", ".", "*", "?", "*", "[ab]", "[!a]", "[^b1]", "[a-z]", "[]a]", "[!]a]"),
    *("\\a", "[[:alpha:]]", "[[:digit:]b]", "-", "]", "[-]", "[a\\]]", "**", "[b-a]", "\\[", "["),
)


def files(draw: random.Random) -> list[str]:
    """Files that ops and Python read, write, find and remove."""
    lines = [
        "with tf.gfile.GFile(folder + '/a.txt', 'w') as file: file.write('one\\ntwo\\n')",
        "tf.gfile.MakeDirs(folder + '/sub/deep')",
        "session()",
    ]
    source, whether = draw.choice(("a.txt", "none")), draw.random() < 0.5
    path = draw.choice(("a.txt", "sub", "none", "sub/deep", "b.txt"))
    spells = (
        f"say(tf.gfile.Exists(folder + '/{path}'))",
        f"say(tf.gfile.IsDirectory(folder + '/{path}'))",
        f"say(sorted(tf.gfile.ListDirectory(folder + '/{draw.choice(('', 'sub', 'none'))}')))",
        f"say(sorted(tf.gfile.Glob(folder + '/{draw.choice(('*', '*.txt', 'sub/*', '?'))}')))",
        f"tf.gfile.Remove(folder + '/{path}')",
        f"tf.gfile.Rename(folder + '/{path}', folder + '/b.txt', overwrite={whether})",
        f"tf.gfile.Copy(folder + '/{source}', folder + '/b.txt', overwrite={whether})",
        f"tf.gfile.DeleteRecursively(folder + '/{draw.choice(('sub', 'none'))}')",
        f"tf.gfile.MkDir(folder + '/{draw.choice(('sub', 'new', 'x/y'))}')",
        f"say(tf.gfile.Stat(folder + '/{path}').length)",
        "say([(sorted(b), sorted(c)) for a, b, c in sorted(tf.gfile.Walk(folder + '/sub'))])",
        f"say(tf.gfile.GFile(folder + '/{path}').read())",
        "say(list(tf.gfile.Open(folder + '/a.txt')))",
        "say(tf.gfile.FastGFile(folder + '/a.txt', 'rb').readline())",
        f"say(tf.io.gfile.exists(folder + '/{path}'))",
        f"here(tf.read_file(folder + '/{path}'))",
        "here(tf.write_file(folder + '/sub/w.txt', 'written'))",
        f"here(tf.matching_files(folder + '/{draw.choice(('*', '*.txt', 'none*'))}'))",
        "here(tf.train.match_filenames_once(folder + '/*').initializer)",
    )
    return lines + draw.choices(spells, k=draw.randint(3, 9))


GRAPHS: dict[str, Maker] = {
    "control flow": flows, "variables": variables, "files": files, "patterns of files": patterns,
}  # fmt: skip
"""The kinds of programs of this module by name."""
