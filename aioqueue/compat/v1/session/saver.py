"""`tf.train.Saver`: keeps variables in files, and gives them back."""

from __future__ import annotations

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
    read_checkpoint,
    remove_checkpoint,
    write_checkpoint,
    write_state,
)
from aioqueue.compat.v1.session.session import BaseSession

__all__ = ("Saver",)

_FAILED = (
    "Restoring from checkpoint failed. This is most likely due to a {what}. Please ensure that you"
    " have not altered the graph expected based on the checkpoint. Original error:\n\n{why}"
)
_MISSING = "Variable name or other graph key that is missing from the checkpoint"
_MISMATCH = "mismatch between the current graph and the graph from the checkpoint"


class Saver:
    """Keeps variables in files, and gives them back.

    A checkpoint is one file, ``<name>.npz``, which is whole at any moment. `restore` also reads
    checkpoints that TensorFlow has written, of its second version.

    Args:
        var_list: a list of variables, or a dict of them by the names in the file; None for all
            global variables of the graph.
        reshape: whether an array may have another shape than its variable.
        sharded: accepted; there is one file.
        max_to_keep: how many checkpoints to keep; None or 0 for all.
        keep_checkpoint_every_n_hours: of those that would go, keep one each so many hours.
        name: accepted.
        restore_sequentially: accepted.
        saver_def: accepted if None.
        builder: accepted if None.
        defer_build: whether the variables are looked for when they are needed first.
        allow_empty: whether there may be no variables.
        write_version: accepted.
        pad_step_number: whether numbers of steps in names have eight digits.
        save_relative_paths: whether paths in the file ``checkpoint`` begin at its folder.
        filename: accepted.

    Raises:
        TypeError: `var_list` has something else than variables.
        ValueError: there are no variables, or two of one name.
    """

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
        write_version: int = 2,
        pad_step_number: bool = False,
        save_relative_paths: bool = False,
        filename: str | None = None,
    ) -> None:
        del sharded, name, restore_sequentially, write_version, filename
        if saver_def is not None or builder is not None:
            raise NotImplementedError(
                "saver_def, builder: graphs of savers are not read: give var_list"
            )
        self._given = var_list
        self._reshape = reshape
        self._max_to_keep = max_to_keep or 0
        self._hours = keep_checkpoint_every_n_hours
        self._next_kept = time.time() + self._hours * 3600
        self._allow_empty = allow_empty
        self._pad = pad_step_number
        self._relative = save_relative_paths
        self._variables: dict[str, Variable] | None = None
        self._last: list[tuple[str, float]] = []
        if not defer_build:
            self.build()

    def build(self) -> None:
        """Find the variables, unless that has been done.

        Raises:
            TypeError: there is something else than variables.
            ValueError: there are none, or two of one name.
        """
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
        """Write the values that the variables have in a session.

        Args:
            sess: the session.
            save_path: the path of the checkpoint, without an ending.
            global_step: a number that is put behind it, or the tensor of it.
            latest_filename: the name of the file ``checkpoint``.
            meta_graph_suffix: accepted.
            write_meta_graph: accepted; graphs are not written.
            write_state: whether to write the file ``checkpoint``, and to count this one.
            strip_default_attrs: accepted.
            save_debug_info: accepted.

        Returns:
            The path with the number.

        Raises:
            FailedPreconditionError: a variable is not initialised; nothing is written.
            TypeError: `sess` is no session.
            ValueError: the folder is not there, or a name is wrong.
        """
        del meta_graph_suffix, write_meta_graph, strip_default_attrs, save_debug_info
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
        """Give the variables the values of a checkpoint, all of them or, after an error, none.

        Args:
            sess: the session.
            save_path: what `save` returned, or the path of a checkpoint of TensorFlow.

        Raises:
            DataLossError: it is damaged.
            InvalidArgumentError: a value has another shape or type than its variable.
            NotFoundError: it lacks a variable.
            ValueError: there is no such checkpoint.
        """
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
        """The value of a variable, if it fits."""
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

    # Which checkpoints there are.

    @property
    def last_checkpoints(self) -> list[str]:
        """The checkpoints that are kept, the latest last."""
        return [path for path, _ in self._last]

    def recover_last_checkpoints(self, checkpoint_paths: Iterable[str]) -> None:
        """Count the checkpoints of an earlier run as one's own, those that are there.

        Args:
            checkpoint_paths: as in `CheckpointState.all_model_checkpoint_paths`.
        """
        there = [path for path in checkpoint_paths if checkpoint_exists(path)]
        self._last = [(path, _written(path)) for path in there]

    def _remember(self, path: str, latest_filename: str | None) -> None:
        """Write the file ``checkpoint``; remove the checkpoints that are too many."""
        gone: list[tuple[str, float]] = []
        if self._max_to_keep > 0:
            self._last = [one for one in self._last if one[0] != path]
            self._last.append((path, time.time()))
            while len(self._last) > self._max_to_keep:
                gone.append(self._last.pop(0))
        folder = os.path.dirname(path)
        write_state(folder, path, self.last_checkpoints, latest_filename, self._relative)
        for old, when in gone:
            if when > self._next_kept:
                self._next_kept += self._hours * 3600
            else:
                remove_checkpoint(old)


def _by_name(given: Any) -> dict[str, Variable]:
    """The variables that a saver is given, by the names in the file."""
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


def _written(path: str) -> float:
    """When a checkpoint was written."""
    for ending in (".npz", ".index"):
        if os.path.isfile(path + ending):
            return os.path.getmtime(path + ending)
    return 0.0
