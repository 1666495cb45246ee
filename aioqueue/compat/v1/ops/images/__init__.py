"""``tf.image``: what is integer is TensorFlow's to the last bit, floats up to rounding."""
