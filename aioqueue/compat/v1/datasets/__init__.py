"""``tf.data`` as far as scripts with queues use it: datasets, their stages, their iterators."""
