"""`tf.train.Saver`: keeps variables in files, and gives them back."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from aioqueue.compat.v1.errors import InvalidArgumentError, NotFoundError
from aioqueue.compat.v1.ops.variables import Variable, global_variables
from aioqueue.compat.v1.ops.variables import global_step as step_in
from aioqueue.compat.v1.session.checkpoints import (
    checkpoint_exists,
    get_checkpoint_mtimes,
    read_checkpoint,
    remove_checkpoint,
    write_checkpoint,
    write_state,
)
from aioqueue.compat.v1.session.messages import SaverDef
from aioqueue.compat.v1.session.session import BaseSession

_FAILED = (
    "Restoring from checkpoint failed. This is most likely due to a {what}. Please ensure that you"
    " have not altered the graph expected based on the checkpoint. Original error:\n\n{why}"
)
_MISSING = "Variable name or other graph key that is missing from the checkpoint"
_MISMATCH = "mismatch between the current graph and the graph from the checkpoint"


class Saver:
    """Keeps variables in files, ``<name>.npz``; `restore` also reads TensorFlow's, version 2."""

    def __init__(
        self,
        var_list: Any = None,
        reshape: bool = False,
        sharded: bool = False,
        max_to_keep: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10000.0,
        name: str | None = None,
        restore_sequentially: bool = False,
        saver_def: Any = None,
        builder: Any = None,
        defer_build: bool = False,
        allow_empty: bool = False,
        write_version: int = SaverDef.V2,
        pad_step_number: bool = False,
        save_relative_paths: bool = False,
        filename: str | None = None,
    ) -> None:
        if saver_def is not None or builder is not None:
            raise NotImplementedError(
                "saver_def, builder: graphs of savers are not read: give var_list"
            )
        if defer_build and var_list:
            raise ValueError(
                "If `var_list` is provided then build cannot be deferred. Either set"
                " defer_build=False or var_list=None."
            )
        self._given = var_list
        self._reshape = reshape
        self.saver_def: SaverDef = SaverDef(
            max_to_keep=max_to_keep or 0,
            sharded=bool(sharded),
            keep_checkpoint_every_n_hours=keep_checkpoint_every_n_hours,
            version=write_version,
        )
        self._next_kept = time.time() + keep_checkpoint_every_n_hours * 3600
        self._allow_empty = allow_empty
        self._pad = pad_step_number
        self._relative = save_relative_paths
        self._variables: dict[str, Variable] | None = None
        self._last: list[tuple[str, float]] = []
        if not defer_build:
            self.build()

    def build(self) -> None:
        """Find the variables, unless that has been done."""
        if self._variables is not None:
            return
        given = global_variables() if self._given is None else self._given
        if not given and not self._allow_empty:
            raise ValueError("No variables to save")
        self._variables = _by_name(given)

    def _built(self) -> dict[str, Variable]:
        if self._variables is None:
            raise RuntimeError("Saver has not been built: call build() first.")
        return self._variables

    def save(
        self,
        sess: Any,
        save_path: str,
        global_step: Any = None,
        latest_filename: str | None = None,
        meta_graph_suffix: str = "meta",
        write_meta_graph: bool = True,
        write_state: bool = True,
        strip_default_attrs: bool = False,
        save_debug_info: bool = False,
    ) -> str:
        """Write the values that the variables have in a session."""
        variables = self._built()
        path = os.fspath(save_path)
        folder, name = os.path.split(path)
        if latest_filename is not None and os.path.split(latest_filename)[0]:
            raise ValueError("'latest_filename' must not contain path components")
        if name == (latest_filename or "checkpoint"):
            raise ValueError(f"'latest_filename' collides with 'save_path': {name!r} and {path!r}")
        if not isinstance(sess, BaseSession):
            raise TypeError(f"'sess' must be a Session; {sess}")
        if global_step is not None:
            number = (
                int(global_step)
                if isinstance(global_step, int | np.integer)
                else step_in(sess, global_step)
            )
            path += f"-{number:08d}" if self._pad else f"-{number}"
        if folder and not os.path.isdir(folder):
            raise ValueError(f"Parent directory of {path} doesn't exist, can't save.")
        values = sess.run([one.op.outputs[0] for one in variables.values()])
        write_checkpoint(path, dict(zip(variables, values, strict=True)))
        if write_state:
            self._remember(path, latest_filename)
        return path

    def restore(self, sess: Any, save_path: str | None) -> None:
        """Give the variables the values of a checkpoint, all of them or, after an error, none."""
        variables = self._built()
        if save_path is None:
            raise ValueError("Can't load save_path when it is None.")
        path = os.fspath(save_path)
        if not checkpoint_exists(path):
            raise ValueError(f"The passed save_path is not a valid checkpoint: {path}")
        values = read_checkpoint(path)
        chosen = [(one, self._fitting(name, one, values)) for name, one in variables.items()]
        for variable, value in chosen:
            variable.load(value, sess)

    def _fitting(self, name: str, variable: Variable, values: Mapping[str, Any]) -> Any:
        if name not in values:
            why = f"Key {name} not found in checkpoint"
            raise NotFoundError(None, None, _FAILED.format(what=_MISSING, why=why))
        value, shape = values[name], variable.shape
        why = ""
        is_text = isinstance(value, bytes) or np.asarray(value).dtype == object
        found = "string" if is_text else np.asarray(value).dtype.name
        if found != variable.dtype.name:
            why = (
                f"tensor_name = {name}; expected dtype {variable.dtype.name} does not equal"
                f" original dtype {found}"
            )
        elif self._reshape and shape.is_fully_defined():
            if np.size(value) == shape.num_elements():
                return np.reshape(value, shape.as_list())
            why = f"{name}: {np.size(value)} elements do not make the shape {shape.as_list()}"
        elif not shape.is_compatible_with(np.shape(value)):
            why = (
                "Assign requires shapes of both tensors to match. lhs shape="
                f" {shape.as_list()} rhs shape= {list(np.shape(value))}"
            )
        if why:
            raise InvalidArgumentError(None, None, _FAILED.format(what=_MISMATCH, why=why))
        return value

    def as_saver_def(self) -> SaverDef:
        """The options of this saver."""
        return self.saver_def

    # Which checkpoints there are.

    @property
    def last_checkpoints(self) -> list[str]:
        """The checkpoints that are kept, the latest last."""
        return [path for path, _ in self._last]

    def set_last_checkpoints(self, last_checkpoints: list[str]) -> None:
        """Count checkpoints as one's own, and never remove them."""
        assert isinstance(last_checkpoints, list)
        self._last = [(path, math.inf) for path in last_checkpoints]

    def set_last_checkpoints_with_time(
        self, last_checkpoints_with_time: list[tuple[str, float]]
    ) -> None:
        """Count checkpoints as one's own, each with the time when it was written."""
        assert isinstance(last_checkpoints_with_time, list)
        self._last = last_checkpoints_with_time

    def recover_last_checkpoints(self, checkpoint_paths: Iterable[str]) -> None:
        """Count the checkpoints of an earlier run as one's own, those that are there."""
        self._last = [
            (path, time) for path in checkpoint_paths for time in get_checkpoint_mtimes([path])
        ]

    def _remember(self, path: str, latest_filename: str | None) -> None:
        """Write the file ``checkpoint``; remove the checkpoints that are too many."""
        surplus: list[tuple[str, float]] = []
        if self.saver_def.max_to_keep > 0:
            self._last = [one for one in self._last if one[0] != path]
            self._last.append((path, time.time()))
            while len(self._last) > self.saver_def.max_to_keep:
                surplus.append(self._last.pop(0))
        folder, every = os.path.dirname(path), self.last_checkpoints
        write_state(folder, path, every, latest_filename, relative=self._relative)
        for old, when in surplus:
            if when > self._next_kept:
                self._next_kept += self.saver_def.keep_checkpoint_every_n_hours * 3600
            else:
                remove_checkpoint(old)


def _by_name(given: Any) -> dict[str, Variable]:
    if isinstance(given, Mapping):
        pairs = list(given.items())
    elif isinstance(given, Variable) or not isinstance(given, Iterable):
        raise TypeError(f"Variables to save should be passed in a dict or a list. Got {given}")
    else:
        pairs = [(getattr(getattr(one, "op", None), "name", ""), one) for one in given]
    found: dict[str, Variable] = {}
    for name, one in pairs:
        if not isinstance(name, str) or not isinstance(one, Variable):
            raise TypeError(
                "names_to_saveables must be a dict mapping string names to Tensors/Variables. Not a"
                f" variable: {one}"
            )
        if name in found:
            raise ValueError(f"At least two variables have the same name: {name}")
        found[name] = one
    return dict(sorted(found.items()))
