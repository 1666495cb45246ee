"""``slim.tfexample_decoder``: items made of the features of serialized examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.contrib.slim.data_decoder import DataDecoder
from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.ops import arrays, control, math
from aioqueue.compat.v1.ops import sparse as sparse_ops
from aioqueue.compat.v1.ops.casting import cast
from aioqueue.compat.v1.ops.images import codecs
from aioqueue.compat.v1.ops.sparse import sparse_reshape
from aioqueue.compat.v1.ops.text import decode_raw
from aioqueue.compat.v1.parsing.parsing import FixedLenFeature, parse_single_example

__all__ = (
    "BoundingBox",
    "Image",
    "ItemHandler",
    "ItemHandlerCallback",
    "LookupTensor",
    "SparseTensor",
    "TFExampleDecoder",
    "Tensor",
)

SIDES = ("ymin", "xmin", "ymax", "xmax")


class ItemHandler:
    """Base class of what makes an item of the tensors of some features.

    Args:
        keys: the features' names, or one.
    """

    def __init__(self, keys: str | Sequence[str]) -> None:
        self._keys = [keys] if isinstance(keys, str) else list(keys)

    @property
    def keys(self) -> list[str]:
        """The features' names."""
        return self._keys

    def tensors_to_item(self, keys_to_tensors: Mapping[str, Any]) -> Any:
        """The item.

        Args:
            keys_to_tensors: the features' tensors by their names.
        """
        raise NotImplementedError


class ItemHandlerCallback(ItemHandler):
    """Makes an item by a function.

    Args:
        keys: the features' names, or one.
        func: takes the features' tensors by their names; returns the item.
    """

    def __init__(self, keys: str | Sequence[str], func: Callable[..., Any]) -> None:
        super().__init__(keys)
        self._func = func

    def tensors_to_item(self, keys_to_tensors: Mapping[str, Any]) -> Any:
        """What the function returns."""
        return self._func(keys_to_tensors)


class Tensor(ItemHandler):
    """One feature as a dense tensor.

    Args:
        tensor_key: the feature's name.
        shape_keys: the features that have its shape, or its sizes; None for no other shape.
        shape: its shape; None for no other one.
        default_value: of the elements that a sparse feature has not.

    Raises:
        ValueError: both shapes are given.
    """

    def __init__(
        self,
        tensor_key: str,
        shape_keys: str | Sequence[str] | None = None,
        shape: Any = None,
        default_value: Any = 0,
    ) -> None:
        if shape_keys and shape is not None:
            raise ValueError("Cannot specify both shape_keys and shape parameters.")
        listed = [shape_keys] if isinstance(shape_keys, str) else list(shape_keys or ())
        super().__init__([tensor_key, *listed])
        self._tensor_key = tensor_key
        self._shape_keys = listed
        self._shape = shape
        self._default_value = default_value

    def tensors_to_item(self, keys_to_tensors: Mapping[str, Any]) -> Any:
        """The tensor."""
        tensor = keys_to_tensors[self._tensor_key]
        shape = self._shape
        if self._shape_keys:
            sizes = [_dense(keys_to_tensors[key]) for key in self._shape_keys]
            shape = arrays.reshape(arrays.stack(sizes), [-1])
        if isinstance(tensor, sparse_ops.SparseTensor):
            if shape is not None:
                tensor = sparse_reshape(tensor, cast(shape, dtypes.int64))
            default = self._default_value
            if tensor.dtype == dtypes.string and default == 0:
                default = b""
            return sparse_ops.sparse_tensor_to_dense(tensor, default)
        return tensor if shape is None else arrays.reshape(tensor, shape)


def _dense(value: Any) -> Any:
    if isinstance(value, sparse_ops.SparseTensor):
        return sparse_ops.sparse_tensor_to_dense(value)
    return value


class LookupTensor(Tensor):
    """One feature, looked up in a table.

    Args:
        tensor_key: the feature's name.
        table: the table.
        shape_keys: as for `Tensor`, and so are the others.
        shape: its shape.
        default_value: of the elements that a sparse feature has not.
    """

    def __init__(
        self,
        tensor_key: str,
        table: Any,
        shape_keys: str | Sequence[str] | None = None,
        shape: Any = None,
        default_value: Any = "",
    ) -> None:
        super().__init__(tensor_key, shape_keys, shape, default_value)
        self._table = table

    def tensors_to_item(self, keys_to_tensors: Mapping[str, Any]) -> Any:
        """What the table has for it."""
        return self._table.lookup(super().tensors_to_item(keys_to_tensors))


class SparseTensor(ItemHandler):
    """A sparse vector of two features: where its values are, and what they are.

    Args:
        indices_key: the feature with the positions.
        values_key: the feature with the values.
        shape_key: the feature with the length.
        shape: the length, as a list of one; that of the positions if neither is given.
        densify: whether the item is dense.
        default_value: of the other elements then.
    """

    def __init__(
        self,
        indices_key: str | None = None,
        values_key: str | None = None,
        shape_key: str | None = None,
        shape: Any = None,
        densify: bool = False,
        default_value: Any = 0,
    ) -> None:
        self._indices_key = indices_key or "indices"
        self._values_key = values_key or "values"
        self._shape_key = shape_key
        self._shape = shape
        self._densify = densify
        self._default_value = default_value
        keys = [self._indices_key, self._values_key]
        super().__init__([*keys, shape_key] if shape_key else keys)

    def tensors_to_item(self, keys_to_tensors: Mapping[str, Any]) -> Any:
        """The vector."""
        places = keys_to_tensors[self._indices_key]
        values = keys_to_tensors[self._values_key]
        shape: Any = places.dense_shape
        if self._shape_key:
            shape = keys_to_tensors[self._shape_key]
            shape = shape.values if isinstance(shape, sparse_ops.SparseTensor) else shape
        elif self._shape is not None:
            shape = self._shape
        indices = arrays.expand_dims(places.values, 1)
        sparse = sparse_ops.SparseTensor(indices, values.values, shape)
        if not self._densify:
            return sparse
        return sparse_ops.sparse_tensor_to_dense(sparse, self._default_value)


class Image(ItemHandler):
    """A picture of a feature with the contents of its file. Needs the extra ``images``.

    Args:
        image_key: the feature with the contents.
        format_key: the feature with the format: ``"raw"`` for plain pixels, else anything.
        shape: its shape; None for ``[height, width, channels]``.
        channels: how many channels it has.
        dtype: of its pixels.
        repeated: whether the feature has several pictures of one size.
        dct_method: accepted; JPEG files are decoded exactly.
    """

    def __init__(
        self,
        image_key: str | None = None,
        format_key: str | None = None,
        shape: Any = None,
        channels: int = 3,
        dtype: Any = dtypes.uint8,
        repeated: bool = False,
        dct_method: str = "",
    ) -> None:
        del dct_method
        self._image_key = image_key or "image/encoded"
        self._format_key = format_key or "image/format"
        super().__init__([self._image_key, self._format_key])
        self._shape = shape
        self._channels = channels
        self._dtype = dtypes.as_dtype(dtype)
        self._repeated = repeated

    def tensors_to_item(self, keys_to_tensors: Mapping[str, Any]) -> Any:
        """The picture, or pictures."""
        contents, kind = keys_to_tensors[self._image_key], keys_to_tensors[self._format_key]
        if self._repeated:
            return control.map_fn(lambda one: self._decoded(one, kind), contents, self._dtype)
        return self._decoded(contents, kind)

    def _decoded(self, contents: Any, kind: Any) -> Any:
        def from_file() -> Any:
            if self._dtype == dtypes.uint16:
                return codecs.decode_png(contents, self._channels, dtypes.uint16)
            pixels = codecs.decode_image(contents, self._channels, expand_animations=False)
            return cast(pixels, self._dtype)

        def from_pixels() -> Any:
            return decode_raw(contents, self._dtype)

        is_raw = math.logical_or(math.equal(kind, "raw"), math.equal(kind, "RAW"))
        picture = control.cond(is_raw, from_pixels, from_file)
        picture.set_shape(None)
        if self._shape is not None:
            return arrays.reshape(picture, self._shape)
        picture.set_shape([None, None, self._channels])
        return picture


class BoundingBox(ItemHandler):
    """Boxes of four features with their sides: ``[n, 4]``.

    Args:
        keys: the features' names: ``ymin``, ``xmin``, ``ymax`` and ``xmax`` if None.
        prefix: what their names begin with.

    Raises:
        ValueError: there are not four.
    """

    def __init__(self, keys: Sequence[str] | None = None, prefix: str = "") -> None:
        sides = list(SIDES if keys is None else keys)
        if len(sides) != len(SIDES):
            raise ValueError(f"BoundingBox expects 4 keys but got {len(sides)}")
        self._prefix = prefix
        super().__init__([prefix + one for one in sides])

    def tensors_to_item(self, keys_to_tensors: Mapping[str, Any]) -> Any:
        """The boxes."""
        sides = []
        for key in self.keys:
            side = keys_to_tensors[key]
            values = side.values if isinstance(side, sparse_ops.SparseTensor) else side
            sides.append(arrays.expand_dims(values, 0))
        return arrays.transpose(arrays.concat(sides, 0))


class TFExampleDecoder(DataDecoder):
    """Makes items of a serialized ``tf.train.Example``. Needs the extra ``tfrecord``.

    Args:
        keys_to_features: as for `tf.parse_single_example`.
        items_to_handlers: an `ItemHandler` for each item.
    """

    def __init__(
        self, keys_to_features: Mapping[str, Any], items_to_handlers: Mapping[str, ItemHandler]
    ) -> None:
        self._keys_to_features = dict(keys_to_features)
        self._items_to_handlers = dict(items_to_handlers)

    def list_items(self) -> list[str]:
        """The names of the items."""
        return list(self._items_to_handlers)

    def decode(self, data: Any, items: Sequence[str] | None = None) -> list[Any]:
        """The tensors of some items.

        Args:
            data: a serialized example.
            items: names of items; None for all.
        """
        example = parse_single_example(data, self._keys_to_features)
        for key, feature in sorted(self._keys_to_features.items()):
            if isinstance(feature, FixedLenFeature):
                example[key] = arrays.reshape(example[key], feature.shape)
        made = []
        for item in items or self.list_items():
            handler = self._items_to_handlers[item]
            made.append(handler.tensors_to_item({key: example[key] for key in handler.keys}))
        return made


__getattr__ = names_of(__name__)
