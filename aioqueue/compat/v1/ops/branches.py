"""Choice and repetition: `cond`, `case` and `while_loop`.

Their functions are called once, to build; of what they build, only the chosen branch runs, and a
loop's body as often as it must. What a function uses from outside is computed in any case, before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from aioqueue.compat.v1.core import dtypes, nest
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.default_graph import get_default_graph
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Body, Graph, Operation, Tensor, trace
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.core.shapes import TensorShape, as_shape
from aioqueue.compat.v1.errors import InvalidArgumentError
from aioqueue.compat.v1.ops.control import with_dependencies
from aioqueue.compat.v1.ops.printing import Assert

__all__ = ("case", "cond", "while_loop")

Results = list[tuple[DType, TensorShape]]


class _Part:
    """A traced function: how an operation that owns it runs it.

    Args:
        body: of the function; its outputs are what it returned.
        arguments: the tensors in it that stand for its arguments.
    """

    def __init__(self, body: Body, arguments: Sequence[Tensor] = ()) -> None:
        self.body = body
        self.given = (*arguments, *body.captures)

    def run(self, step: Any, arguments: Sequence[Any], captured: Mapping[Tensor, Any]) -> list[Any]:
        """Run it once; returns the values of its outputs."""
        values = [*arguments, *(captured[one] for one in self.body.captures)]
        results: list[Any] = step.run_body(self.body.outputs, self.given, values)
        return results


def _owner(
    graph: Graph,
    op_type: str,
    inputs: Sequence[Tensor],
    parts: Sequence[_Part],
    results: Results,
    kernel: Callable[..., list[Any]],
) -> list[Tensor]:
    """The operation that owns some traced functions, with what they capture for inputs.

    ``kernel(step, values of inputs, values of captures by tensor)`` returns a list.
    """
    captures = list(dict.fromkeys(one for part in parts for one in part.body.captures))
    controls = dict.fromkeys(one for part in parts for one in part.body.controls)
    count = len(inputs)

    def run(step: Any, *values: Any) -> Any:
        captured = dict(zip(captures, values[count:], strict=True))
        found = kernel(step, values[:count], captured)
        return found if len(found) != 1 else found[0]

    with graph.control_dependencies(controls):
        return graph.create_op(
            op_type,
            [*inputs, *captures],
            results,
            run,
            waits=any(part.body.waits for part in parts),
            attrs={"scoped": False, "bodies": [part.body for part in parts]},
        ).outputs


def _returned(body: Body, results: Sequence[Any], dtype: Sequence[DType | None]) -> None:
    """Make tensors of what a traced function returned; they become its body's outputs."""
    with body.graph.as_default(), body.graph.building_in(body):
        for one, wanted in zip(results, dtype, strict=True):
            if isinstance(one, Operation):
                body.outputs.append(one)
                if one.body is not body:
                    body.controls[one] = None
            else:
                tensor = convert_to_tensor(one, wanted)
                body.capture(tensor)
                body.outputs.append(tensor)


def _result(output: Tensor | Operation) -> tuple[DType, TensorShape]:
    """Dtype and shape of one output; what an operation gives is a bool, as in TensorFlow."""
    if isinstance(output, Operation):
        return dtypes.bool, TensorShape(())
    return output.dtype, output.shape


def cond(
    pred: Any,
    true_fn: Callable[[], Any] | None = None,
    false_fn: Callable[[], Any] | None = None,
    strict: bool = False,
    name: str | None = None,
    fn1: Callable[[], Any] | None = None,
    fn2: Callable[[], Any] | None = None,
) -> Any:
    """What one of two functions makes, as `pred` decides in each run.

    Both functions are called now; only what the chosen one built runs.

    Args:
        pred: a bool scalar tensor.
        true_fn: returns tensors, values or operations, nested in any way.
        false_fn: returns the same nesting, with the same dtypes.
        strict: whether a list or tuple of one is returned as that, not as its element.
        name: of the scope.
        fn1: the old name of `true_fn`.
        fn2: the old name of `false_fn`.

    Returns:
        What the functions return, as tensors; a bool for an operation.

    Raises:
        TypeError: `pred` is not a bool tensor, or a function is not callable.
        ValueError: `pred` is not a scalar, or the functions return different nestings or dtypes.
    """
    functions = [true_fn if fn1 is None else fn1, false_fn if fn2 is None else fn2]
    for which, one in zip(("true_fn", "false_fn"), functions, strict=True):
        if not callable(one):
            raise TypeError(f"'{which}' must be callable.")
    if isinstance(pred, bool):
        raise TypeError("'pred' must not be a Python bool.")
    with name_scope(name, "cond", [pred]):
        condition = convert_to_tensor(pred)
        if condition.dtype is not dtypes.bool:
            raise TypeError(
                f"Input 'pred' of 'Switch' Op has type {condition.dtype.name} that does not match "
                "expected type of bool."
            )
        if condition.shape.ndims not in (None, 0):
            raise ValueError(f"Shape must be rank 0 but is rank {condition.shape.ndims}")
        return _branch(condition, functions, strict)


def _branch(condition: Tensor, functions: Sequence[Any], strict: bool) -> Any:
    graph = condition.graph
    bodies, structures = [], []
    for which, function in zip(("true_fn", "false_fn"), functions, strict=True):
        body, returned = trace(graph, function)
        if returned is None:
            raise ValueError(f"'{which}' must have a return value.")
        if not strict and isinstance(returned, list | tuple) and len(returned) == 1:
            returned = returned[0]
        bodies.append(body)
        structures.append(returned)
    if not any(map(nest.flatten, structures)):
        raise ValueError("'true_fn' and 'false_fn' must return at least one result.")
    nest.assert_same_structure(*structures)
    for body, returned in zip(bodies, structures, strict=True):
        flat = nest.flatten(returned)
        _returned(body, flat, [None] * len(flat))
    results: Results = []
    for true, false in zip(*(map(_result, body.outputs) for body in bodies), strict=True):
        if true[0] is not false[0]:
            raise ValueError(
                "Outputs of 'true_fn' and 'false_fn' must have the same type(s). Received "
                f"{true[0].name} from 'true_fn' and {false[0].name} from 'false_fn'."
            )
        results.append((true[0], true[1].most_general_compatible_shape(false[1])))
    parts = [_Part(body) for body in bodies]

    def kernel(step: Any, values: Sequence[Any], captured: Mapping[Tensor, Any]) -> list[Any]:
        chosen = parts[0 if _truth(values[0]) else 1]
        found = chosen.run(step, (), captured)
        for index, output in enumerate(chosen.body.outputs):
            if isinstance(output, Operation):
                found[index] = np.bool_(values[0])
        return found

    outputs = _owner(graph, "Merge", [condition], parts, results, kernel)
    return nest.pack_sequence_as(structures[0], outputs)


def _truth(value: Any) -> bool:
    if np.ndim(value):
        raise InvalidArgumentError(
            None, None, f"The condition must be a scalar, but it has shape {list(np.shape(value))}"
        )
    return bool(value)


def case(
    pred_fn_pairs: Any,
    default: Callable[[], Any] | None = None,
    exclusive: bool = False,
    strict: bool = False,
    name: str = "case",
) -> Any:
    """What the function of the first true predicate makes.

    Args:
        pred_fn_pairs: pairs of a bool scalar tensor and a function, or a dict of them.
        default: the function if no predicate is true; None if that is an error of the run.
        exclusive: whether more than one true predicate is an error of the run.
        strict: as for `cond`.
        name: of the scope.

    Raises:
        TypeError: a predicate is not a bool scalar, or a function is not callable.
        ValueError: there are no pairs.
    """
    pairs = list(pred_fn_pairs.items() if isinstance(pred_fn_pairs, Mapping) else pred_fn_pairs)
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not callable(pair[1]):
            raise TypeError(f"pred_fn_pairs: got {pair!r}; expected (predicate, function)")
    if not pairs and default is None:
        raise ValueError("pred_fn_pairs: got no pairs, and no default")
    with name_scope(name, "case", [pred for pred, _ in pairs]):
        checks = []
        preds = [convert_to_tensor(pred) for pred, _ in pairs]
        if default is None:
            checks.append(Assert(_any(preds), ["None of the conditions evaluated as True", *preds]))
            default = pairs.pop()[1]
        if exclusive:
            checks.append(
                Assert(_at_most_one(preds), ["More than one condition evaluated as True", *preds])
            )
        chosen: Callable[[], Any] = default
        for pred, function in reversed(pairs):
            chosen = _otherwise(pred, function, chosen, strict)
        if not checks:
            return chosen()
        with get_default_graph().control_dependencies(checks):
            made = chosen()
        if pairs:
            return made
        # The one function that there is may have returned what was there before the checks.
        return nest.map_structure(lambda one: with_dependencies(checks, one), made)


def _otherwise(
    pred: Any, function: Callable[[], Any], otherwise: Callable[[], Any], strict: bool
) -> Callable[[], Any]:
    return lambda: cond(pred, function, otherwise, strict=strict)


def _count(preds: Sequence[Tensor], test: Callable[[int], bool]) -> Tensor:
    return (
        get_default_graph()
        .create_op(
            "CountTrue",
            preds,
            [(dtypes.bool, TensorShape(()))],
            lambda step, *values: np.bool_(test(sum(map(bool, values)))),
        )
        .outputs[0]
    )


def _any(preds: Sequence[Tensor]) -> Tensor:
    return _count(preds, lambda count: count > 0)


def _at_most_one(preds: Sequence[Tensor]) -> Tensor:
    return _count(preds, lambda count: count <= 1)


def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    shape_invariants: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
    maximum_iterations: Any = None,
    return_same_structure: bool = False,
) -> Any:
    """What `loop_vars` are after `body` was applied to them as long as `cond` of them is true.

    They come nested as `body` returns them: a tuple for a list of variables, if it makes tuples.

    Args:
        cond: takes the loop variables; returns a bool scalar.
        body: takes the loop variables; returns the next ones, with the same nesting and dtypes.
        loop_vars: the first ones: tensors or values, nested in any way.
        shape_invariants: shapes that hold in every iteration, nested alike; None for those of the
            first ones.
        parallel_iterations: accepted; iterations follow each other.
        back_prop: accepted; there are no gradients.
        swap_memory: accepted.
        name: of the scope.
        maximum_iterations: a limit, a number or a scalar tensor; None for none.
        return_same_structure: whether a list or tuple of one is returned as that, not as its
            element.

    Raises:
        TypeError: a function is not callable, or `body` changes a dtype.
        ValueError: there are no variables, or `body` changes nesting or shapes.
    """
    del parallel_iterations, back_prop, swap_memory
    if not callable(cond) or not callable(body):
        raise TypeError(f"'{'body' if callable(cond) else 'cond'}' must be callable.")
    if not nest.flatten(loop_vars):
        raise ValueError("'loop_vars' must be provided.")
    with name_scope(name, "while", nest.flatten(loop_vars)):
        first = [convert_to_tensor(one) for one in nest.flatten(loop_vars)]
        shapes = [one.shape for one in first]
        if shape_invariants is not None:
            shapes = [as_shape(one) for one in _invariants(shape_invariants)]
        kinds = list(zip([one.dtype for one in first], shapes, strict=True))
        limit = [] if maximum_iterations is None else [convert_to_tensor(maximum_iterations)]
        following, outputs = _loop(cond, body, loop_vars, kinds, [*first, *limit])
    if not return_same_structure and isinstance(loop_vars, list | tuple) and len(outputs) == 1:
        return outputs[0]
    return nest.pack_sequence_as(following, outputs)


def _invariants(structure: Any) -> list[Any]:
    if isinstance(structure, TensorShape):
        return [structure]
    if isinstance(structure, Mapping):
        return [one for key in sorted(structure) for one in _invariants(structure[key])]
    return [one for part in structure for one in _invariants(part)]


def _loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    kinds: Results,
    inputs: Sequence[Tensor],
) -> tuple[Any, list[Tensor]]:
    """What the body returns, whose nesting the result has, and the variables at the end."""
    graph = get_default_graph()
    test_body, test_arguments, kept = _traced(graph, cond, loop_vars, kinds)
    _returned(test_body, [kept], [dtypes.bool])
    again_body, again_arguments, following = _traced(graph, body, loop_vars, kinds)
    if nest.is_nested(loop_vars) and not nest.is_nested(following):
        following = [following]
    nest.assert_same_structure(loop_vars, following, check_types=False)
    _returned(again_body, nest.flatten(following), [dtype for dtype, _ in kinds])
    for output, (_, shape) in zip(again_body.outputs, kinds, strict=True):
        if not _keeps(shape, _result(output)[1]):
            raise ValueError(
                f"The shape of a loop variable is not an invariant for the loop. It enters with "
                f"shape {shape}, but has shape {_result(output)[1]} after one iteration. Use the "
                "`shape_invariants` argument to say what holds in every iteration."
            )
    test, again = _Part(test_body, test_arguments), _Part(again_body, again_arguments)
    count = len(kinds)

    def kernel(step: Any, values: Sequence[Any], captured: Mapping[Tensor, Any]) -> list[Any]:
        current = list(values[:count])
        left = int(values[count]) if len(values) > count else -1
        while left and _truth(test.run(step, current, captured)[0]):
            current = again.run(step, current, captured)
            step.check()
            left -= 1
        return current

    return following, _owner(graph, "Exit", inputs, [test, again], kinds, kernel)


def _traced(
    graph: Graph, function: Callable[..., Any], loop_vars: Any, kinds: Results
) -> tuple[Body, list[Tensor], Any]:
    """A loop's function as a body, the tensors that stand for its arguments, and its result."""
    arguments: list[Tensor] = []

    def build() -> Any:
        for kind in kinds:
            made = graph.create_op("LoopVariable", (), [kind], _no_value)
            arguments.append(made.outputs[0])
        packed = nest.pack_sequence_as(loop_vars, arguments)
        if isinstance(packed, Mapping):
            return function(**packed)
        return function(*packed) if isinstance(packed, list | tuple) else function(packed)

    body, returned = trace(graph, build)
    return body, arguments, returned


def _no_value(step: Any) -> None:
    raise AssertionError("a loop variable is given its value by the loop")


def _keeps(invariant: TensorShape, shape: TensorShape) -> bool:
    """Whether everything that `invariant` says holds for `shape`."""
    promised, found = invariant.as_tuple(), shape.as_tuple()
    if promised is None:
        return True
    if found is None or len(found) != len(promised):
        return False
    return all(one is None or one == two for one, two in zip(promised, found, strict=True))
