"""The sources that users make: in memory, from iterables, and mixtures of others.

`aioqueue.sources` has what stages, workers and pipelines need of a source. A `Source` also has the
methods that add a stage, so it stands above the pipeline that these make.
"""
