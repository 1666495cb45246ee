"""Programs of monitored sessions with hooks, and of what scripts use around a graph."""

from __future__ import annotations

import random

from proofs.oracle.program import Maker
from proofs.oracle.spelling import WORDS

__all__ = ("SESSIONS",)

HOOK = """\
class Hook(tf.train.SessionRunHook):
    def begin(self): say('begin')
    def after_create_session(self, session, coord): say('created')
    def before_run(self, context): return tf.train.SessionRunArgs(train)
    def after_run(self, context, values):
        say(int(values.results))
        if values.results >= {stop}: context.request_stop()
    def end(self, session): say('end')"""


def hooked(draw: random.Random) -> list[str]:
    """A training loop in a monitored session: hooks that look, stop, feed and fail."""
    last = draw.randint(1, 6)
    hooks = draw.sample(
        (
            f"tf.train.StopAtStepHook({draw.choice(('num_steps', 'last_step'))}={last})",
            f"tf.train.StopAtStepHook(num_steps={last})",
            "tf.train.NanTensorHook(loss, fail_on_nan_loss=False)",
            "tf.train.NanTensorHook(loss)",
            "tf.train.FinalOpsHook(step)",
            "tf.train.FeedFnHook(lambda: {fed: 7.0})",
            "tf.train.LoggingTensorHook({'loss': loss}, every_n_iter=2)",
            "Hook()",
            "Hook()",
        ),
        draw.randint(0, 3),
    )
    loss = draw.choice(("fed * 2.0", "tf.log(fed - 3.0)"))
    given = ", ".join(hooks)
    made = draw.choice((
        f"tf.train.MonitoredTrainingSession(hooks=[{given}])",
        f"tf.train.MonitoredSession(tf.train.ChiefSessionCreator(), hooks=[{given}])",
        f"tf.train.SingularMonitoredSession(hooks=[{given}])",
    ))  # fmt: skip
    lines = [
        "step = tf.train.get_or_create_global_step()", "fed = tf.placeholder_with_default(1.5, [])",
        f"(loss,) = ({loss},)", "(train,) = (tf.assign_add(step, 1),)",
        HOOK.format(stop=draw.randint(1, 9)), f"(sess,) = ({made},)",
    ]  # fmt: skip
    fetches = ("train", "train", "[train, fed * 3.0]", "{'step': train, 'loss': loss}", "loss")
    for _ in range(draw.randint(1, 8)):
        lines += [f"near({draw.choice(fetches)})", "say(sess.should_stop())"]
    if draw.random() < 0.2:
        lines.append("say(sess.run_step_fn(lambda c: c.session.run(step)))")
    # Closed at the end: who closes it twice has the hooks end twice in TensorFlow.
    return lines


NESTS = ("{'b': 1, 'a': (2, [3])}", "[1, (2, 3)]", "5", "()", "{'x': [], 'y': {'z': 'text'}}")
DTYPES = ("'float32'", "tf.int64", "np.float16", "'string'", "float", "np.uint8", "bool")


def around(draw: random.Random) -> list[str]:
    """Structures, texts, dtypes, shapes, errors, collections and scopes."""
    one = draw.choice(NESTS)
    word = draw.choice(WORDS)
    text = draw.choice((repr(word), repr(word.encode()), "5"))
    dtype, other_dtype = draw.choice(DTYPES), draw.choice(DTYPES)
    sizes = [[draw.choice((None, 1, 2, 3)) for _ in range(draw.randint(1, 3))] for _ in range(2)]
    shapes = [f"tf.TensorShape({size})" for size in sizes]
    code = draw.randint(0, 17)
    value = draw.choice(("5", "[1.5, 2]", "'text'", "[[1], [2]]", "np.ones(2)", "True", "[1, 'a']"))
    wanted = draw.choice(("", ", tf.float32", ", tf.int64", ", tf.string"))
    spells = (
        f"say(tf.nest.flatten({one}))", f"say(tf.nest.map_structure(lambda x: (x, 1), {one}))",
        f"say(tf.nest.pack_sequence_as({draw.choice(NESTS[:2])}, [7, 8, 9]))",
        f"tf.nest.assert_same_structure({one}, {one})", f"say(tf.nest.is_nested({one}))",
        f"say(tf.compat.{draw.choice(('as_bytes', 'as_str', 'as_text', 'as_str_any'))}({text}))",
        f"say(tf.as_dtype({dtype}).name)",
        f"say(tf.as_dtype({dtype}) == tf.as_dtype({other_dtype}))",
        f"say([tf.as_dtype({dtype}).is_integer, tf.as_dtype({dtype}).is_floating])",
        f"say(str({shapes[0]}.merge_with({shapes[1]})))",
        f"say({shapes[0]}.is_compatible_with({shapes[1]}))",
        f"say(str({shapes[0]}.concatenate({shapes[1]})))",
        f"say([tf.dimension_value(size) for size in {shapes[0]}.dims])",
        f"say(tf.dimension_at_index({shapes[0]}, 0).value)", f"say({shapes[0]}.num_elements())",
        f"say(tf.errors.exception_type_from_error_code({code}).__name__)",
        f"say(tf.errors.error_code_from_exception_type(tf.errors.{_error(draw)}))",
        f"say(str(tf.errors.{_error(draw)}(None, None, 'what')))",
        f"tf.add_to_collection('kept', {draw.randint(0, 9)})",
        "tf.add_to_collections(['kept', 'other'], 'x')", "say(tf.get_collection('kept'))",
        "say(tf.get_collection_ref('other'))",
        "with tf.device('/cpu:0'), tf.container('box'): t = tf.constant(1)",
        "with tf.control_dependencies([tf.no_op()]): u = tf.identity(3, name='after')",
        "with tf.name_scope('s'), tf.colocate_with(tf.constant(0).op): w = tf.zeros([2])",
        "with tf.op_scope([tf.constant(1)], None, 'old'): y = tf.ones([])",
        "g = tf.group(tf.constant(1), tf.no_op(), name='both')",
        f"(made,) = (tf.convert_to_tensor({value}{wanted}),)", "form(made)",
        f"say(tf.get_static_value(tf.constant({draw.randint(0, 9)})))",
        "say([op.name for op in tf.get_default_graph().get_operations()][-2:])",
        "say(tf.get_seed(None)[0])", "say(tf.executing_eagerly())",
        "say(tf.get_default_session() is None)",
        f"here(tf.Print(tf.constant({draw.randint(0, 9)}), ['seen']))",
        "here(tf.count_up_to(tf.get_local_variable('counted', [], tf.int32), 1))",
    )  # fmt: skip
    return ["session()", *draw.choices(spells, k=draw.randint(4, 12))]


def _error(draw: random.Random) -> str:
    kinds = ("NotFound", "Aborted", "InvalidArgument", "Internal", "DataLoss", "Unknown")
    return draw.choice(kinds) + "Error"


SESSIONS: dict[str, Maker] = {"hooks": hooked, "around a graph": around}
"""The kinds of programs of this module by name."""
