# SPDX-License-Identifier: Apache-2.0
"""`penstock.list`: fields of lists, and of lists of lists."""

from __future__ import annotations

from dataclasses import replace

from penstock.errors import ConfigError
from penstock.feed.fields import (
    FieldSpec,
    NestedSpec,
    RaggedSpec,
    RawListSpec,
    RawSpec,
    TensorSpec,
    TextSpec,
    ragged,
    raw_list,
)

__all__ = ["list"]

_MAX_DEPTH = 8

_ITEMS = (TensorSpec, RaggedSpec, RawSpec, TextSpec, RawListSpec, NestedSpec)
"""Allowed kinds of items. Their subclasses (masks, boxes, keypoints) are not allowed, because such fields follow an
image.
"""


def list(  # noqa: A001 - the name in the API
    item: FieldSpec, *, default: tuple[()] | None = None, mask: str | None = None
) -> RaggedSpec | RawListSpec | NestedSpec:
    """Create a field of lists, whose items are values of the field `item`: `list(ragged("float32"))`.

    `list(tensor(dtype, shape))` is the same as `ragged(dtype, shape)`, and `list(raw())` the same as `raw_list()`.
    `list(text())` gives lists of `str`. Lists of lists have up to 8 levels. In a batch, lists of lists of numbers are a
    `Ragged` whose `values` are another `Ragged`, and so on for each level. Lists of byte strings or texts are Python
    lists.

    Lists of lists are read from Parquet, Arrow IPC and JSON. If all inner lists have the same length, `ragged(dtype,
    shape)` or `tensor(dtype, shape)` can read them, too. `list(ragged(dtype))` and `list(raw_list())` also read feature
    lists of a tf.SequenceExample whose steps have any number of values.

    Args:
        item: A tensor, ragged, raw, text, raw_list or list field, without `of`, `default` or `mask`.
        default, mask: As in `ragged`.
    Raises:
        ConfigError: The item is another kind of field, follows another field, or has `of`, a default or a mask.
    """
    if getattr(item, "parts", ()) or getattr(item, "default", None) is not None or getattr(item, "presence", None):
        raise ConfigError("list: .of(...), default and mask must be set on the list, not on its items", where="fields")
    is_other = any(getattr(item, name, None) for name in ("follows", "record", "audio"))
    if is_other or type(item) not in _ITEMS:
        raise ConfigError(
            "list: the item must be a tensor, ragged, raw, text, raw_list or list field, without like() and "
            f"record=True (got {item!s})",
            where="fields",
        )
    dtype: str | None
    errors: str | None = None
    match item:
        case TensorSpec():
            return ragged(item.dtype, item.shape, default=default, mask=mask)
        case RawSpec():
            return raw_list(default=default, mask=mask)
        case TextSpec():
            return replace(raw_list(default=default, mask=mask), errors=item.errors)
        case RaggedSpec():
            dtype, shape, depth = item.dtype, item.shape, 2
        case RawListSpec():
            dtype, shape, depth, errors = None, (), 2, item.errors
        case NestedSpec():
            dtype, shape, depth, errors = item.dtype, item.shape, item.depth + 1, item.errors
    if depth > _MAX_DEPTH:
        raise ConfigError(f"list: {depth} levels of lists are not supported (at most {_MAX_DEPTH})", where="fields")
    outer = raw_list(default=default, mask=mask)
    return NestedSpec(dtype, shape, depth, default=outer.default, errors=errors, presence=mask)
