"""What runs, and when: `group`, `cond`, `case`, `while_loop`, `map_fn`, and placeholders."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np

from aioqueue.compat.v1.core import default_graph, dtypes, nest
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.default_graph import get_default_graph, op
from aioqueue.compat.v1.core.dtypes import DType, as_dtype
from aioqueue.compat.v1.core.graph import Body, Graph, Operation, Tensor, trace
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.core.shapes import TensorShape, as_shape
from aioqueue.compat.v1.ops.building import invalid, shape_text
from aioqueue.compat.v1.ops.effects import Assert, c_name

__all__ = (
    "case", "cond", "foldl", "group", "identity", "map_fn", "no_op", "placeholder",
    "placeholder_with_default", "scan", "stop_gradient", "while_loop",
)  # fmt: skip


def _nothing(step: Any) -> None:
    pass


def _same(step: Any, value: Any) -> Any:
    return value


def no_op(name: str | None = None) -> Operation:
    """An operation that does nothing: something to have control dependencies on."""
    return get_default_graph().create_op("NoOp", (), (), _nothing, name=name)


def identity(input: Any, name: str | None = None) -> Tensor:
    """A tensor with the value of another one, after the control dependencies here."""
    return _identity("Identity", input, name)


def stop_gradient(input: Any, name: str | None = None) -> Tensor:
    """The same as `identity`, here, where there are no gradients."""
    return _identity("StopGradient", input, name)


def _identity(op_type: str, input: Any, name: str | None) -> Tensor:
    with name_scope(name, op_type) as scope:
        tensor = convert_to_tensor(input, name="input")
        outputs = [(tensor.dtype, tensor.shape)]
        return op(op_type, [tensor], outputs, _same, name=scope).outputs[0]


def group(*inputs: Any, name: str | None = None) -> Operation:
    """An operation that has run when all of these have."""
    elements = [_element(one) for one in nest.flatten(inputs)]
    graph = elements[0].graph if elements else get_default_graph()
    with graph.control_dependencies(elements):
        called = "group_deps" if name is None else name
        return graph.create_op("NoOp", (), (), _nothing, name=called)


def _element(thing: Any) -> Tensor | Operation:
    convert = getattr(thing, "_as_graph_element", None)
    element = thing if convert is None else convert()
    if not isinstance(element, Tensor | Operation):
        raise TypeError(
            f"'inputs' should be zero or more (nested) Tensors. Received '{thing}' with type "
            f"'{type(thing)}'."
        )
    return element


def tuple_(
    tensors: Sequence[Any], name: str | None = None, control_inputs: Iterable[Any] | None = None
) -> list[Tensor | None]:
    """Tensors that have their values when all of these have been computed."""
    with name_scope(name, "tuple", [one for one in tensors if isinstance(one, Tensor)]):
        given = [None if one is None else _element(one) for one in tensors]
        elements = [one for one in given if one is not None]
        if not elements:
            raise ValueError(f"Must have at least one Tensor: {tensors}")
        gate = group(*elements, *(control_inputs or ()))
        return [
            with_dependencies([gate], one) if isinstance(one, Tensor) else None for one in given
        ]


def with_dependencies(
    dependencies: Iterable[Any], output_tensor: Any, name: str | None = None
) -> Tensor:
    """The value of a tensor, after something else has run."""
    tensor = convert_to_tensor(output_tensor)
    with (
        name_scope(name, "control_dependency", [tensor]) as scope,
        tensor.graph.control_dependencies(dependencies),
    ):
        return identity(tensor, name=scope)


def placeholder(dtype: Any, shape: Any = None, name: str | None = None) -> Tensor:
    """A tensor that each run must be fed a value for."""
    kind, static = as_dtype(dtype), as_shape(shape)
    dims = static.as_tuple()
    wanted = f"dtype {c_name(kind)}" + (f" and shape {shape_text(dims)}" if dims else "")

    def kernel(step: Any) -> Any:
        raise invalid(f"You must feed a value for placeholder tensor '{made.name}' with {wanted}")

    made = op("Placeholder", (), [(kind, static)], kernel, name=name)
    return made.outputs[0]


def placeholder_with_default(input: Any, shape: Any, name: str | None = None) -> Tensor:
    """A tensor that runs may be fed a value for, and that else has the value of `input`."""
    static = as_shape(shape)
    with name_scope(name, "PlaceholderWithDefault") as scope:
        tensor = convert_to_tensor(input, name="input")
        static.assert_is_compatible_with(tensor.shape)
        outputs = [(tensor.dtype, static)]
        made = op("PlaceholderWithDefault", [tensor], outputs, _same, name=scope)
    return made.outputs[0]


Results = list[tuple[DType, TensorShape]]


class _Part:
    def __init__(self, body: Body, arguments: Sequence[Tensor] = ()) -> None:
        self.body = body
        self.given = (*arguments, *body.captures)

    def run(self, step: Any, arguments: Sequence[Any], captured: Mapping[Tensor, Any]) -> list[Any]:
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
    """The op of traced functions; ``kernel(step, inputs, captures by tensor)`` gives a list."""
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
                    # What is outside runs in any case, and before: the body only waits for it.
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
    """What one of two functions makes. Both are called now; only what the chosen one built runs."""
    functions = [true_fn if fn1 is None else fn1, false_fn if fn2 is None else fn2]
    for which, one in zip(("true_fn", "false_fn"), functions, strict=True):
        if not callable(one):
            raise TypeError(f"'{which}' must be callable.")
    if isinstance(pred, bool):
        raise TypeError("'pred' must not be a Python bool.")
    with name_scope(name, "cond", [pred]):
        condition = _predicate(pred, None)
        if condition.shape.ndims not in (None, 0):
            raise ValueError(f"Shape must be rank 0 but is rank {condition.shape.ndims}")
        return _branch(condition, functions, strict)


def _predicate(pred: Any, name: str | None) -> Tensor:
    condition = convert_to_tensor(pred, name=name)
    if condition.dtype is not dtypes.bool:
        raise TypeError(
            f"Input 'pred' of 'Switch' Op has type {condition.dtype.name} that does not match "
            "expected type of bool."
        )
    return condition


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
        raise invalid(f"The condition must be a scalar, but it has shape {list(np.shape(value))}")
    return bool(value)


def case(
    pred_fn_pairs: Any,
    default: Callable[[], Any] | None = None,
    exclusive: bool = False,
    strict: bool = False,
    name: str = "case",
) -> Any:
    """What the function of the first true predicate makes."""
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
            some = _count(preds, lambda count: count > 0)
            checks.append(Assert(some, ["None of the conditions evaluated as True", *preds]))
            default = pairs.pop()[1]
        if exclusive:
            single = _count(preds, lambda count: count <= 1)
            checks.append(Assert(single, ["More than one condition evaluated as True", *preds]))
        chosen: Callable[[], Any] = default
        for pred, function in reversed(pairs):
            chosen = partial(cond, pred, function, chosen, strict=strict)
        if not checks:
            return chosen()
        with get_default_graph().control_dependencies(checks):
            made = chosen()
        if pairs:
            return made
        # The one function that there is may have returned what was there before the checks.
        return nest.map_structure(lambda one: with_dependencies(checks, one), made)


def _count(preds: Sequence[Tensor], test: Callable[[int], bool]) -> Tensor:
    def kernel(step: Any, *values: Any) -> Any:
        return np.bool_(test(sum(map(bool, values))))

    outputs = [(dtypes.bool, TensorShape(()))]
    return get_default_graph().create_op("CountTrue", preds, outputs, kernel).outputs[0]


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
    """What `loop_vars` are when `cond` of them is false: nested as `body` returns them."""
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
            # A condition that stays true would outlive the session that is closed meanwhile.
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
            made = graph.create_op("LoopVariable", (), [kind], _nothing)
            arguments.append(made.outputs[0])
        packed = nest.pack_sequence_as(loop_vars, arguments)
        if isinstance(packed, Mapping):
            return function(**packed)
        return function(*packed) if isinstance(packed, list | tuple) else function(packed)

    body, returned = trace(graph, build)
    return body, arguments, returned


def _keeps(invariant: TensorShape, shape: TensorShape) -> bool:
    """Whether everything that `invariant` says holds for `shape`."""
    promised, found = invariant.as_tuple(), shape.as_tuple()
    if promised is None:
        return True
    if found is None or len(found) != len(promised):
        return False
    return all(one is None or one == two for one, two in zip(promised, found, strict=True))


_SWITCH = "Switch"


class Switch(NamedTuple):
    output_false: Tensor
    output_true: Tensor


class Merge(NamedTuple):
    output: Tensor
    value_index: Tensor


def switch(data: Any, pred: Any, dtype: Any = None, name: str | None = None) -> Switch:
    """The same data twice; in each run a predicate decides which one is alive."""
    with name_scope(name, _SWITCH, [data, pred]) as scope:
        tensor = convert_to_tensor(data, dtype, name="data")
        condition = _predicate(pred, "pred")
        return Switch(
            _side(tensor, condition, False, scope), _side(tensor, condition, True, "true")
        )


def _side(data: Tensor, pred: Tensor, side: bool, name: str) -> Tensor:
    def kernel(step: Any, value: Any, chosen: Any) -> Any:
        if bool(chosen) is not side:
            raise invalid("Retval[0] does not have value")
        return value

    inputs, kinds = [data, pred], [(data.dtype, data.shape)]
    return op(_SWITCH, inputs, kinds, kernel, name=name, attrs={"side": side}).outputs[0]


def merge(inputs: Sequence[Any], name: str | None = None) -> Merge:
    """The first of some tensors that is alive: not made of a switch's side that is not chosen."""
    if not inputs:
        raise ValueError("List argument 'inputs' to 'Merge' Op with length 0 shorter than 1.")
    if any(one is None for one in inputs):
        raise ValueError(f"At least one of the merge inputs is None: {inputs}")
    with name_scope(name, "Merge", inputs) as scope:
        tensors = [convert_to_tensor(one) for one in inputs]
        kinds = [one.dtype for one in tensors]
        if any(one is not kinds[0] for one in kinds):
            names = ", ".join(one.name for one in kinds)
            raise TypeError(
                "Tensors in list passed to 'inputs' of 'Merge' Op have types"
                f" [{names}] that don't all match."
            )
        sides = [_Side(one) for one in tensors]
        given = list(dict.fromkeys(one for side in sides for one in side.needed))
        places = {tensor: place for place, tensor in enumerate(given)}

        def kernel(step: Any, *values: Any) -> Any:
            for index, side in enumerate(sides):
                found = side.run(step, [values[places[one]] for one in side.needed])
                if found is not None:
                    return found[0], np.int32(index)
            raise invalid("Retval[0] does not have value")

        shape = reduce(TensorShape.most_general_compatible_shape, [one.shape for one in tensors])
        shapes = [(kinds[0], shape), (dtypes.int32, TensorShape(()))]
        waits = any(side.waits for side in sides)
        attrs = {"scoped": False}
        made = op("Merge", given, shapes, kernel, name=scope, waits=waits, attrs=attrs)
        return Merge(*made.outputs)


class _Side:
    """One input of a merge, with what lies between it and the switches that it is made of."""

    def __init__(self, output: Tensor) -> None:
        self._output = output
        between = _made_of_switches(output.op)
        self._switched: list[Tensor] = []
        besides: list[Tensor] = []
        for one in [output, *(tensor for made in between for tensor in made.inputs)]:
            if one.op.type == _SWITCH:
                self._switched.append(one)
            elif one.op not in between:
                besides.append(one)
        self._switched = list(dict.fromkeys(self._switched))
        self._besides = list(dict.fromkeys(besides))
        preds = [one.op.inputs[1] for one in self._switched]
        self.needed = [*preds, *(one.op.inputs[0] for one in self._switched), *self._besides]
        self.waits = any(one.waits for one in between)

    def run(self, step: Any, values: Sequence[Any]) -> list[Any] | None:
        """Its value, in a list; None if it is dead."""
        count = len(self._switched)
        # One switch that chose its other side makes all dead that is made of this one.
        for one, chosen in zip(self._switched, values[:count], strict=True):
            if bool(chosen) is not one.op.attrs["side"]:
                return None
        given = [*self._switched, *self._besides]
        found: list[Any] = step.run_body([self._output], given, values[count:])
        return found


def _made_of_switches(last: Operation) -> set[Operation]:
    """The operations between the switches and the last one, that one included."""
    # Depth first, without recursion; an operation is decided on after those before it.
    depends: dict[Operation, bool] = {}
    path = [last]
    while path:
        current = path[-1]
        makers = [one.op for one in current.inputs]
        undecided = [] if current.type == _SWITCH else [one for one in makers if one not in depends]
        if undecided:
            path.extend(undecided)
            continue
        path.pop()
        depends[current] = current.type == _SWITCH or any(depends[one] for one in makers)
    return {one for one, is_made in depends.items() if is_made and one.type != _SWITCH}


Function = Callable[..., Any]


class _Rows:
    """A function traced once that runs for each row, and of what was accumulated if it `folds`."""

    def __init__(
        self, fn: Function, elems: Any, dtype: Any = None, initial: Any = None, folds: bool = False
    ) -> None:
        if not callable(fn):
            raise TypeError("fn must be callable.")
        flat = nest.flatten(elems)
        if not flat:
            raise ValueError("elems: got none; expected at least one tensor")
        self.tensors = [convert_to_tensor(one, name="elem") for one in flat]
        length = self.tensors[0].shape.with_rank_at_least(1)[0]
        for one in self.tensors[1:]:
            length = length.merge_with(one.shape.with_rank_at_least(1)[0])
        self.length: int | None = length.value
        self.first = (
            [] if initial is None else [convert_to_tensor(i) for i in nest.flatten(initial)]
        )
        self.structure = elems if initial is None else initial
        kinds = [(one.dtype, one.shape[1:]) for one in self.tensors]
        like = [(one.dtype, one.shape) for one in self.first] or kinds
        given: list[Tensor] = []

        def call() -> Any:
            states = [placeholder(*kind, name="state") for kind in like] if folds else []
            rows = [placeholder(*kind, name="row") for kind in kinds]
            given.extend([*states, *rows])
            row = nest.pack_sequence_as(elems, rows)
            return fn(nest.pack_sequence_as(self.structure, states), row) if folds else fn(row)

        graph = get_default_graph()
        self.body, result = trace(graph, call)
        found, wanted = nest.flatten(result), dtype or [kind for kind, _ in like]
        if len(wanted) != len(found):
            raise ValueError(
                f"fn returned {len(found)} tensors; expected {len(wanted)}, as dtype says"
            )
        with graph.building_in(self.body):
            pairs = zip(found, wanted, strict=True)
            self.outputs = [identity(convert_to_tensor(one, kind)) for one, kind in pairs]
        self.body.outputs = list(self.outputs)
        self.inputs = [*self.first, *self.tensors, *self.body.captures]
        self._taken = [*given, *self.body.captures]

    def arrays(self, values: Sequence[Any]) -> tuple[Sequence[Any], int, Sequence[Any]]:
        """The tensors' values of the op's inputs, their length, and what the body captures."""
        start = len(self.first)
        stop = start + len(self.tensors)
        arrays = values[start:stop]
        lengths = {len(one) for one in arrays}
        if len(lengths) > 1:
            raise invalid(f"elems: the tensors differ in length: {sorted(lengths)}")
        return arrays, lengths.pop(), values[stop:]

    def run(self, step: Any, values: Iterable[Any]) -> Sequence[Any]:
        found: Sequence[Any] = step.run_body(self.body.outputs, self._taken, list(values))
        return found

    def states(self, step: Any, values: Sequence[Any], backwards: bool) -> Iterator[Sequence[Any]]:
        arrays, length, captures = self.arrays(values)
        order = list(reversed(range(length)) if backwards else range(length))
        if self.first:
            state: Sequence[Any] = values[: len(self.first)]
        else:
            if not order:
                raise invalid("elems: got no rows; expected at least one, or an initializer")
            state = [one[order[0]] for one in arrays]
            order = order[1:]
        yield state
        for at in order:
            state = self.run(step, [*state, *(one[at] for one in arrays), *captures])
            yield state

    def op(self, kind: str, outputs: Any, kernel: Any, name: str, structure: Any) -> Any:
        waits = self.body.waits
        made = default_graph.op(kind, self.inputs, outputs, kernel, name=name, waits=waits)
        return nest.pack_sequence_as(structure, made.outputs)

    def stacked_outputs(self) -> list[tuple[DType, TensorShape]]:
        rows = TensorShape([self.length])
        return [(one.dtype, rows.concatenate(one.shape)) for one in self.outputs]


def _stacked(rows: Sequence[Sequence[Any]], tensors: Sequence[Tensor]) -> Any:
    columns = []
    for place, tensor in enumerate(tensors):
        column = [row[place] for row in rows]
        if not column:
            known = [one or 0 for one in tensor.shape.as_tuple() or ()]
            columns.append(np.zeros((0, *known), tensor.dtype.numpy))
        elif tensor.dtype == dtypes.string and not tensor.shape.ndims:
            made = np.empty(len(column), object)
            made[:] = column
            columns.append(made)
        else:
            shapes = {np.shape(one) for one in column}
            if len(shapes) > 1:
                raise invalid(f"fn: its results differ in shape: {sorted(shapes)}")
            columns.append(np.stack(column))
    return tuple(columns) if len(columns) > 1 else columns[0]


def map_fn(
    fn: Function,
    elems: Any,
    dtype: Any = None,
    parallel_iterations: int | None = None,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    name: str | None = None,
) -> Any:
    """What a function makes of each row of some tensors, stacked: one row after another."""
    with name_scope(name, "map", nest.flatten(elems)) as scope:
        rows = _Rows(fn, elems, [as_dtype(one) for one in nest.flatten(dtype)] if dtype else None)

        def kernel(step: Any, *values: Any) -> Any:
            arrays, length, captures = rows.arrays(values)
            results = [
                rows.run(step, [*(one[at] for one in arrays), *captures]) for at in range(length)
            ]
            return _stacked(results, rows.outputs)

        outputs = rows.stacked_outputs()
        if not infer_shape:
            outputs = [(kind, TensorShape(None)) for kind, _ in outputs]
        return rows.op("MapFn", outputs, kernel, scope, elems if dtype is None else dtype)


def foldl(
    fn: Function,
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> Any:
    """What a function makes of what it made before, at first `initializer`, and each row."""
    with name_scope(name, "foldl", nest.flatten(elems)) as scope:
        rows = _Rows(fn, elems, initial=initializer, folds=True)

        def kernel(step: Any, *values: Any) -> Any:
            # One state at a time: a list of them would grow with the rows.
            last = deque(rows.states(step, values, backwards=False), maxlen=1).pop()
            return tuple(last) if len(last) > 1 else last[0]

        outputs = [(one.dtype, one.shape) for one in rows.outputs]
        return rows.op("foldl", outputs, kernel, scope, rows.structure)


def scan(
    fn: Function,
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    reverse: bool = False,
    name: str | None = None,
) -> Any:
    """All that `foldl` accumulates on its way, stacked, one for each row."""
    with name_scope(name, "scan", nest.flatten(elems)) as scope:
        rows = _Rows(fn, elems, initial=initializer, folds=True)

        def kernel(step: Any, *values: Any) -> Any:
            states = list(rows.states(step, values, reverse))
            states = states[1:] if rows.first else states
            return _stacked(states[::-1] if reverse else states, rows.outputs)

        return rows.op("scan", rows.stacked_outputs(), kernel, scope, rows.structure)
