"""The two libraries, as modules with the same names in them."""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from functools import cache
from typing import Any

THREADS = "16"
"""How many ops TensorFlow may run at once. By default as many as there are CPUs: some ops of
readers hold a thread while they wait, and with two of them on two CPUs nothing else would run."""

MISSING = (
    ""
    if importlib.util.find_spec("tensorflow") is not None
    else "needs the extra oracle: pip install '.[oracle]'"
)
"""Why nothing can be compared here; empty if it can."""


@cache
def theirs() -> Any:
    """TensorFlow, in graph mode and silent."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", THREADS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tf = importlib.import_module("tensorflow.compat.v1")
        tf.logging.set_verbosity(tf.logging.FATAL)
        tf.disable_v2_behavior()
    return tf


@cache
def ours() -> Any:
    """`aioqueue.compat.v1`, silent."""
    tf = importlib.import_module("aioqueue.compat.v1")
    tf.logging.set_verbosity(tf.logging.FATAL)
    return tf
