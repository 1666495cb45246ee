"""``tf.parse_example`` and its like: serialized examples to tensors."""
