"""`tf.train`'s input pipelines: producers, batchers, buckets, sparse tensors."""
