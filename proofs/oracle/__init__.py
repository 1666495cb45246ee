"""Random programs, each run on TensorFlow itself and on `aioqueue.compat.v1`, and compared.

`programs` makes them from seeds, `stage` plays one on one of the two, `comparing` tells what
differs, and `kinder` lists, by name, where `aioqueue` does better on purpose. The command is
``python -m proofs.oracle``.
"""
