"""Write checkpoints with TensorFlow: ``python -m tests.compat.record_checkpoints``.

`test_saver` reads them without TensorFlow. They are small, and have every type that variables of an
input pipeline have.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

FOLDER = Path(__file__).with_name("checkpoints")

VALUES = {
    "global_step": np.int64(7), "a/w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "names": np.array([b"one", b"", b"three" * 30], object),
    "words": np.array([[b"a"], [b"\xff\x00"]], object), "word": b"alone", "double": np.float64(2.5),
    "ints": np.array([[-1, 2**31 - 1]], np.int32), "bools": np.array([True, False]),
    "half": np.array([1.5], np.float16), "bytes": np.array([200], np.uint8),
    "empty": np.zeros((0, 3), np.float32),
}  # fmt: skip
"""What is in them: by name."""

MANY = 300
"""How many variables the other one has: names that begin alike are shortened in its index."""


def main() -> None:
    """Write both."""
    import tensorflow.compat.v1 as tf

    FOLDER.mkdir(exist_ok=True)
    with tf.Graph().as_default(), tf.Session() as sess:
        made = [tf.Variable(value, name=name, use_resource=False) for name, value in VALUES.items()]
        sess.run(tf.global_variables_initializer())
        saver = tf.train.Saver(made)
        saver.save(sess, str(FOLDER / "kinds"), write_meta_graph=False, write_state=False)
    with tf.Graph().as_default(), tf.Session() as sess:
        for number in range(MANY):
            tf.Variable(np.int32(number), name=f"layer_{number}/kernel", use_resource=False)
        sess.run(tf.global_variables_initializer())
        saver = tf.train.Saver()
        saver.save(sess, str(FOLDER / "many"), write_meta_graph=False, write_state=False)


if __name__ == "__main__":
    main()
