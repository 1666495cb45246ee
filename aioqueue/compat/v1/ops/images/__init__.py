"""Pictures, as ``tf.image`` has them: files, geometry, colours and boxes.

What is integer is TensorFlow's to the last bit; floats are its own up to rounding.
"""
