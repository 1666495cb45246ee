"""Cases of ops on whole tensors: casts, products, reductions, shapes, selections, writing."""

from __future__ import annotations

from tests.compat.op_cases import case, expression

CALLS = r"""
cast [1.9, -1.9], int32 | [1, -1], float64 | [1, 0, -1], bool | [True, False], float32
cast [300, -1], uint8 | np.array([2 ** 40 + 5]), int32 | constant([1.0]), float32
cast u([1.5]), 'int64' | ['1'], int32
saturate_cast [300.0, -5.0, 7.5], uint8 | [300, -5, 7], int8 | np.array([1e+20, -1e+20]), int64
clip_by_value [1.0, 5.0, 9.0], 2.0, 6.0 | constant([1, 5, 9]), 2, 6 | part(), -1.0, 1.0
logical_and [True, False], [True, True] | constant([1]), constant([0])
logical_or [True, False], False
logical_xor [True, False], True
logical_not [True, False]
equal constant(['a', 'b\x00']), 'b\x00' | constant([True, False]), True
less constant('a'), constant('b')
sin constant([1])
add_n [constant([1, 2]), constant([3, 4]), [5, 6]] | [constant([1, 2])]
add_n [constant([1]), constant([1.0])] | [constant([1]), constant([1, 2])] | []
add_n [part(), np.ones([2, 3], np.float32)]
matmul [[1.0, 2.0], [3.0, 4.0]], [[1.0], [2.0]] | constant([[1, 2]]), constant([[1], [2]])
matmul f(3, 2), f(3, 4), transpose_a=True
matmul values('float64', 2, 3), values('float64', 4, 3), transpose_b=True | f(5, 2, 3), f(5, 3, 4)
matmul part(), f(3, 4) | u(f(2, 3)), f(3, 4) | [[1.0, 2.0]], [[1.0, 2.0]]
matmul u([[1.0]]), u([[1.0], [2.0]]) | constant([1.0]), constant([1.0])
reduce_sum f(2, 3, 4), 1 | f(2, 3, 4), [0, -1] | f(2, 3, 4), [0, -1], keepdims=True
reduce_sum f(2, 3), 0, keep_dims=True | f(2, 3), reduction_indices=[1] | f(2, 3), []
reduce_sum u(f(2, 3)), 1 | part(), 1 | part(), 0 | part(), unknown(1, []) | f(2, 3), 2
reduce_sum u(f(2, 3)), 5 | np.full(3, 100, np.int8) | constant([True])
reduce_mean [-3, -4] | i(2, 3), 1 | np.zeros([0], np.float32)
reduce_max np.zeros([0], np.float32) | [1.0, np.nan] | values('int64', 2, 3), -1
reduce_min np.zeros([0, 2], np.int32), 0
reduce_all [[True, False], [True, True]], 1 | np.zeros([0], '?')
reduce_any [[True, False], [False, False]], 1
argmax f(2, 3), 1 | f(2, 3, 4), -1 | [1, 3, 3] | [1, 3, 3], output_type=int32 | [1, 3, 3], 2
argmax u([1, 3, 3]), 2 | f(2, 3), dimension=1
cumsum f(2, 3), 1 | [1, 2, 3], exclusive=True | [1, 2, 3], reverse=True
cumsum [1, 2, 3], exclusive=True, reverse=True | u([1, 2, 3]), 3
cumprod [1, 2, 3], exclusive=True, reverse=True
reshape i(2, 3), [3, 2] | i(2, 3), [-1] | i(2, 3), [3, -1] | [1], [] | 'a', [1, 1]
reshape i(2, 3), np.array([6]) | u(i(2, 3)), [-1, 2] | part(), [-1, 3, 1]
reshape part(), unknown([3, 2], [2]) | part(), u([3, 2]) | part(), stack([shape(part())[0], 3, 1])
reshape part(), [shape(part())[0], 3] | part(), concat([shape(part()), [1]], 0)
reshape i(6), shape(i(2, 3)) | i(6), TensorShape([2, 3]) | i(6), [TensorShape([2, 3])[0], 3]
reshape [1, 2], [3] | [1, 2], [3, -1] | u([1, 2]), [3] | u([1, 2]), [3, -1] | u([1, 2]), [-1, -1]
reshape [1, 2], [2.0]
expand_dims [1, 2], 0 | [1, 2], -1 | 'a', 0 | part(), 1 | u([1]), 1 | [1, 2], dim=1 | [1, 2], 4
expand_dims u([1, 2]), 4
squeeze i(2, 1, 3), 1 | i(2, 1, 3), [-2] | i(2, 1, 3), [0] | i(2, 1, 3), [7] | u(i(2, 1, 3)), [0]
squeeze unknown(i(1, 3), [None, 3]), 0
stack [[1, 2], [3, 4]] | [constant([1, 2]), [3, 4], [5, 6]], 1
stack [constant([1, 2]), [3, 4], [5, 6]], -1 | [1.0, constant(2.0)] | ['a', 'b'] | [part(), part()]
stack [part(), constant(f(2, 3))] | [constant([1, 2]), constant([1, 2, 3])]
stack [u([1, 2]), u([1, 2, 3])] | [[1, 2], [3, 4]], 5 | [constant(1), constant(1.0)]
unstack i(2, 3), axis=1 | part(), 2 | constant(['a', 'b']) | part() | part(), axis=1
unstack part(), axis=4 | [1, 2, 3], 2
concat [[1, 2], [3]], 0 | [i(2, 3), i(2, 1)], 1 | [i(2, 3), i(2, 1)], -1 | [constant([1, 2])], 0
concat [['a'], ['b', 'c']], 0 | [part(), part()], 0 | [part(), part()], 1
concat [part(), constant(f(2, 1))], 1 | [u([1]), constant([2])], 0 | [i(2, 3), i(3, 2)], 0
concat [constant([[1]]), constant([1])], 0 | [u([[1]]), u([1])], 0 | [u([[1]]), u([[1, 2]])], 0
concat [constant([1]), constant([1])], 3 | [constant([1]), constant([1.0])], 0
split i(6), 3 | i(2, 4), 2, 1 | i(6), 1 | i(6), [1, 2, 3] | i(2, 6), [1, -1], 1 | part(), 2
split part(), 3, 1 | [1, 2], 3 | u([1, 2]), 3 | u([1, 2]), [1, 2]
tile [1, 2], [3] | i(2, 3), [1, 2] | ['a'], [2] | part(), [2, 2] | part(), unknown([2, 2], [2])
tile [1, 2], [1, 2] | u([1, 2]), [1, 2]
pad [1, 2], [[1, 2]] | f(2, 3), [[1, 0], [0, 2]], constant_values=7
pad [1, 2, 3], [[2, 1]], 'REFLECT' | [1, 2, 3], [[2, 1]], 'SYMMETRIC' | part(), [[1, 1], [0, 1]]
pad part(), unknown([[1, 1], [0, 1]], [2, 2]) | [1, 2], [[1, 1], [1, 1]]
pad u([1, 2]), [[1, 1], [1, 1]] | [1, 2], [[1, 1]], 'wrap'
transpose i(2, 3, 4), [1, 2, 0] | part(), [1, 0] | [1, 2], [1, 0] | u([1, 2]), [1, 0]
reverse i(2, 3), [1] | i(2, 3), [0, -1] | u([1, 2]), [3]
gather [1, 2, 3], [2, 0] | [1, 2, 3], 1 | f(4, 2), [[0, 3]] | f(4, 2), [1, 1], axis=1
gather ['a', 'b'], [1] | part(), [0, 1, 0] | u([1, 2]), u([0, 7]) | u([1, 2]), u(-1)
gather_nd i(2, 3), [[0, 1], [1, 2]] | i(2, 3), [[1], [0]] | i(2, 3), [1, 2] | u([1, 2]), u([[7]])
slice i(3, 4), [1, 0], [2, 3] | i(3, 4), [1, 1], [-1, -1] | part(), [0, 1], [1, -1]
slice part(), [1, 0], [-1, 2] | part(), unknown([1, 0], [2]), [1, 2] | [1, 2], [1], [5]
slice u([1, 2]), [1], [5] | u([1, 2]), [4], [1]
strided_slice i(6), [1], [5], [2] | i(3, 4), [0, 1], [2, 3]
strided_slice i(3, 4), [1, 1], [2, 3], [1, 1], begin_mask=2, end_mask=1, shrink_axis_mask=0
strided_slice i(3, 4), [1, 1], [2, 3], [1, 1], shrink_axis_mask=1 | i(6), [4], [0], [-2]
boolean_mask [1, 2, 3], [True, False, True] | i(2, 3), [[True, False, True], [False, True, False]]
boolean_mask i(2, 3), [True, False] | i(2, 3), [True, False, True], axis=1
boolean_mask part(), unknown([True, False], [None]) | [1], True | [1, 2], u([True, False])
boolean_mask [1, 2], [True]
where [[True, False], [True, True]] | [True, False], [1, 2], [3, 4]
where [True, False], i(2, 3), -i(2, 3) | True, [1, 2], [3, 4]
where [True, False], ['a', 'b'], ['c', 'd'] | [True], [1], None | [True, False], [1, 2], [3]
where [True], constant([1]), constant([1.0])
one_hot [0, 2, 5, -1], 3 | [0, 2], 3, 5, -5 | [0, 2], 3, on_value=True, off_value=False
one_hot [0, 2], 3, dtype=int64 | [0, 2], 3, axis=0 | 1, 3 | [[0], [1]], 2 | [0, 1], unknown(2, [])
one_hot unknown([0, 1], [None]), 4 | [0, 1], 4, constant(1), constant(1.0)
fill [2, 3], 7 | [2], 'a' | unknown([2], [1]), 1.5 | u([-1]), 1.5
zeros [2, 3] | [2, 3], int32 | [] | [2], string | [2], bool | [2000] | shape(part())
zeros [shape(part())[0], 2] | TensorShape([2, 3]) | 3
ones [2, 3], float64 | [2], bool | [2], string
zeros_like [1, 2], float32 | constant(['a'])
ones_like part(), int32
range 4 | 3, 7 | 10, 1, -3 | 0.0, 1.0, 0.1 | 0, 1.0, 0.3 | 4, dtype=int64 | constant(4, int64)
range np.int64(4) | unknown(4, []) | size([1, 2, 3]) | 3, 1 | 0, 1, 0 | unknown(3, []), 1 | 0
linspace 0.0, 1.0, 5 | 2.0, 3.0, 1 | np.float64(1), np.float64(9), 4
eye 3 | 2, 3, dtype=int32 | 2, batch_shape=[3]
shape part(), out_type=int64 | 'abc'
size part()
rank u([1])
meshgrid [1, 2, 3], [4, 5] | [1, 2, 3], [4, 5], indexing='ij'
nn.top_k [1.0, 3.0, 2.0, 3.0], 3 | i(2, 5), 2 | part(), 2 | [1.0], 2
unique [3, 1, 3, 2, 1] | ['b', 'a', 'b'] | [3, 1, 3], int64 | [[1]]
unique_with_counts [3, 1, 3, 2, 1]
sequence_mask [1, 3, 0] | [1, 3, 0], 5 | [1, 3], 2, dtype=float32 | [[1], [2]]
reduce_join [['a', 'b'], ['c', 'd']], 1 | [['a', 'b'], ['c', 'd']]
reduce_join [['a', 'b'], ['c', 'd']], 0, separator=','
nn.softmax f(2, 3)
nn.relu [-1.0, 2.0]
scatter_nd [[0], [2], [0]], [1, 2, 3], [4] | [[0, 1], [2, 0]], [1.0, 2.0], [3, 2]
scatter_nd [[1]], [[1.0, 2.0]], [3, 2] | [[0], [7]], [1, 2], [4] | [[0], [1]], [1, 2, 3], [4]
scatter_nd u([[0], [1]]), u([1, 2, 3]), [4] | [[0], [1]], [1, 2], unknown([4], [1])
floormod [5, -5], 3
realdiv [5.0, -5], 3.0
scalar_mul 2, constant([5.0, -5])
scattered 'update', [0, 2], [3.0, 5.0] | 'add', [0, 2], [3.0, 5.0] | 'sub', [0, 2], [3.0, 5.0]
scattered 'update', [0, 2], 3.0 | 'update', [1], [[7.0, 8.0]], [[1.0, 2.0], [4.0, 5.0]]
scattered 'update', [0, 7], [3.0, 5.0] | 'update', [0, 1], [3.0, 5.0, 6.0]
scattered 'add', [0, 0], [3.0, 5.0] | 'add', [0, 0], np.array([3, 5])
scattered 'add', [0.0, 0.0], [3.0, 5.0]
scattered 'nd_update', [[0], [2]], [3.0, 5.0] | 'nd_add', [[0], [0]], [3.0, 5.0]
scattered 'nd_sub', [[0], [2]], [3.0, 5.0] | 'nd_update', [[0], [9]], [3.0, 5.0]
scattered 'nd_update', [[0], [1]], [3.0, 5.0, 6.0]
scalar_mul [1, 2], constant([3.0])
cast [1.5], float32 | constant([1 + 2j]), float32
parts cast(SparseTensor([[0]], [1.5], [2]), int32)
convert_to_tensor [size(unknown([1, 2, 3], [None])), 10], int64
add_n [u([1]), u([1, 2])]
matmul [[1.0]], [[1.0]], transpose_a=True, adjoint_a=True
reduce_sum [[1]], 0, reduction_indices=0
reshape i(3), stack([2, unknown(-1, [])])
expand_dims [1] | [1, 2], unknown(0, [])
transpose u([[1, 2]]), [0, 0] | [[1, 2]], [0, 0] | [[1, 2]], [0, 5]
pad ['a'], [[1, 0]]
unstack u([1, 2, 3]), 2
concat [u([1]), u([2])], unknown(3, []) | [part(), part()], unknown(0, [])
split [1, 2], constant(2) | [1, 2], u([1, 1]) | u([1, 2]), 2, 3
zeros TensorShape([None])
range 1, 5, -1
meshgrid [1], [2], indexing='ab'
strided_slice [1], [0], [1], [0] | u([1]), u([0]), [1], [0]
slice u([1, 2]), [0, 0], [1, 1] | u([1, 2]), [0], unknown([1], [1]) | [1, 2], [0, 0], [1, 1]
gather u([1]), [0], axis=3 | [1, 2], [0], axis=unknown(0, []) | [1], [0], axis=3
gather_nd u([1]), u([[0, 0]]) | [1], [[0, 0]]
where u([True]), u([1, 2]), u([1, 2, 3])
nn.top_k u([1.0]), 3
scattered 'update', [0, 1], u([3.0]) | 'nd_update', [[0]], u([3.0, 5.0])
scattered 'update', [0], constant([1])
random_uniform u([-1]), seed=1 | [1], dtype='bool' | [1], 5, 5, dtype=int32, seed=1
random_normal [1], dtype=int32
random_crop [1, 2], [3], seed=1
multinomial u([1.0]), 3, seed=1
check_numerics u([1.0, np.inf]), 'x' | u([np.nan, -np.inf]), 'x' | u([1.0]), 'x'
verify_tensor_all_finite u([1.0]), 'x' | u([np.nan]), 'x'
after assert_equal(1, 2, message='x') | assert_equal(u(1), 2) | assert_equal([1, 2], [1, 2])
after assert_less(u([1, 3]), 3) | assert_less_equal(u([4]), 3, data=['x'])
after assert_greater(u(1), 1)
after assert_none_equal(u([1, 2]), 1, summarize=1) | assert_greater_equal(u([1]), 1)
after assert_positive(u(0)) | assert_negative(u(0), message='x') | assert_non_positive(u(1))
after assert_non_negative(constant(-1)) | assert_positive(constant([1]))
after assert_rank(f(3), 2) | assert_rank(f(3), 1) | assert_rank(u(f(3)), 2) | assert_rank(f(3), [1])
after assert_rank_at_least(f(3), 2) | assert_rank_at_least(u(f(3)), 2)
after assert_rank_at_least(f(3), 1)
sparse_to_dense [1, 3], [4], 5, -1 | [1, 3], [4], [5, 6, 7] | [1, 5], [4], [5, 6]
parts sparse_reshape(sparse(), [4, -1])
parts deserialize_many_sparse(stack([serialize_sparse(sparse())] * 2), string)
serialize_sparse sparse()
parse_tensor 'abc', int32 | serialize_tensor(constant([1])), float32
parse_tensor serialize_tensor(constant([[1, 2]])), int32 | serialize_tensor('a'), string
parse_tensor serialize_tensor(['a', 'b']), string | serialize_tensor(constant(1.5)), float32
parse_tensor serialize_tensor([True]), 'bool' | serialize_tensor(np.float16(2)), float16
arg_max i(2, 3), 1
arg_min i(2, 3), 0, int32
reverse_v2 i(2, 3), [1]
stop_gradient i(2, 3)
"""
"""An op in each row, and the arguments of its cases; see `op_cases.Scope` for the names."""

for _row in CALLS.strip().splitlines():
    _op, _, _cases = _row.partition(" ")
    for _arguments in _cases.split(" | "):
        case(f"{_op}({_arguments})", expression(f"{_op}({_arguments})"))
