# SPDX-License-Identifier: Apache-2.0
"""Fields of written samples: the kind of each field's values, and the checks that all samples agree.

The first sample or a schema determines the kinds. A `Field` converts one value to the form that an encoder stores. This
is `bytes`, `str`, a number, a list of `bytes` or `str`, a contiguous little-endian array, or lists of lists of `bytes`
or arrays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ConfigError, Unsupported
from penstock.feed.batch_columns import Ragged
from penstock.feed.fields import (
    FieldSpec,
    NestedSpec,
    RaggedSpec,
    RawListSpec,
    RawSpec,
    TensorSpec,
    TextSpec,
    with_masks,
)
from penstock.writer.settings import KEY

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["Field", "Fields"]

_DTYPES = {
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64"),
}
_BYTES = (bytes, bytearray, memoryview)


class Field:
    """One field of all samples.

    Attributes:
        kind: `bytes`, `str`, `int`, `float`, `array`, `bytes_list`, `str_list`, `nested` or `json`.
        dtype: NumPy's name of the element type; empty for bytes, text and JSON.
        shape: Shape of the first array.
        is_ragged: Whether arrays differ in the size of their first dimension.
        is_free: Whether arrays differ in other dimensions, too. Only the tar format can store such arrays.
        spec: Specification from the schema, or None.
        may_be_absent: Whether samples can lack the field even if its specification has no default.
        is_absent: Whether any sample lacks the field.
        element: Arrow type of the elements in Parquet; None for the type of `dtype`.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        dtype: str = "",
        *,
        spec: FieldSpec | None = None,
        frees: bool = False,
        may_be_absent: bool = False,
        element: Any = None,
    ) -> None:
        self.name, self.kind, self.dtype, self.spec = name, kind, dtype, spec
        self.may_be_absent, self.element = may_be_absent, element
        self.shape: tuple[int, ...] | None = None
        self.is_ragged = self.is_free = self.is_absent = False
        self._frees = frees
        self._numpy = np.dtype(dtype or object)
        self._limits = _limits(dtype) if kind == "int" else (0, 0)
        self.convert: Callable[[Any, int], Any] = getattr(self, f"_{kind}")
        if isinstance(spec, TensorSpec):
            self.shape = spec.shape
        elif isinstance(spec, RaggedSpec):
            self.is_ragged = True
        elif isinstance(spec, NestedSpec):
            inner = RawListSpec(errors=spec.errors) if spec.dtype is None else RaggedSpec(spec.dtype, spec.shape)
            self._inner = Field(name, _list_kind(inner), dtype, spec=inner)

    @property
    def is_optional(self) -> bool:
        """Whether samples can lack the field, because its specification has a default or any number of items."""
        return (
            self.may_be_absent
            or isinstance(self.spec, (RaggedSpec, RawListSpec, NestedSpec))
            or getattr(self.spec, "default", None) is not None
        )

    def loader_spec(self, part: str = "") -> FieldSpec | None:
        """Return the field with which a loader reads the stored values; None if no field can read them.

        Args:
            part: Name of the part of a record that contains the values, if it differs from the field's name.
        """
        spec: FieldSpec
        if self.spec is not None:
            spec = _optional(self.spec) if self.is_absent else self.spec
        elif self.kind in ("bytes", "str", "json"):
            spec = RawSpec()
        elif self.kind in ("bytes_list", "str_list"):
            spec = RawListSpec()
        elif self.kind in ("int", "float"):
            spec = TensorSpec(self.dtype, ())
        elif self.is_free or self.shape is None or (self.is_ragged and 0 in self.shape[1:]):
            return None
        elif self.is_ragged:
            spec = RaggedSpec(self.dtype, self.shape[1:])
        else:
            spec = TensorSpec(self.dtype, self.shape)
        return replace(spec, parts=(part,)) if part and part != self.name else spec  # type: ignore[call-arg]

    def to_dict(self) -> dict[str, Any]:
        """Return the kind and the shapes, for the state of a write."""
        shape = None if self.shape is None else list(self.shape)
        state = {"kind": self.kind, "dtype": self.dtype, "shape": shape, "ragged": self.is_ragged, "free": self.is_free}
        if self.may_be_absent:
            state["absent"] = self.is_absent
        return state if self.element is None else {**state, "element": str(self.element)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set the shapes of an earlier `to_dict`."""
        self.shape = None if state["shape"] is None else tuple(state["shape"])
        self.is_ragged, self.is_free = state["ragged"], state["free"]
        self.is_absent = state.get("absent", False)

    def _differs(self, value: Any, sample: int, what: str) -> ConfigError:
        want = f"{self.dtype} array" if self.kind == "array" else self.kind.replace("_", " of ", 1)
        if self.kind == "float":
            want = self.dtype
        if self.kind.endswith("_list"):
            want = f"list of {self.kind.removesuffix('_list')}"
        if self.kind == "nested":
            want = str(self.spec)
        source = "by the schema" if self.spec is not None else "as in sample 0"
        return ConfigError(
            f"write: sample {sample:,}: `{self.name}` is {what or _what(value)}, instead of {want} ({source})",
            where="samples",
            hint="convert the values of a field to one type, or give write() a schema",
        )

    def _bytes(self, value: Any, sample: int) -> bytes:
        if type(value) is bytes:
            return value
        if isinstance(value, _BYTES):
            return bytes(value)
        if self.spec is not None and isinstance(value, str):
            return self._text(value, sample).encode()
        raise self._differs(value, sample, "")

    def _str(self, value: Any, sample: int) -> str:
        if isinstance(value, str):
            return self._text(value, sample)
        raise self._differs(value, sample, "")

    def _text(self, text: str, sample: int) -> str:
        """Check that UTF-8 can represent a text. The encoder of tar checks keys."""
        if not _is_unicode(text) and not (self._frees and self.name == KEY):
            raise ConfigError(
                f"write: sample {sample:,}: `{self.name}` contains an unpaired surrogate, which UTF-8 cannot represent",
                where="samples",
                hint="remove or replace it before you write the text, or store bytes",
            )
        return text

    def _int(self, value: Any, sample: int) -> int:
        if isinstance(value, np.ndarray) and value.shape == ():
            value = value[()]
        if isinstance(value, (int, np.integer, np.bool_)):
            number, (least, most) = int(value), self._limits
            if least <= number <= most:
                return number
            raise self._differs(value, sample, f"{number}")
        raise self._differs(value, sample, "")

    def _float(self, value: Any, sample: int) -> float:
        if isinstance(value, self._numpy.type) or (type(value) is float and self.dtype == "float64"):
            return float(value)
        if isinstance(value, (float, int, np.floating, np.integer)) and not isinstance(value, bool):
            number = np.asarray(value)
            # Reject a NumPy number of a wider type, as for arrays. Accept a Python float, because it has no fixed type.
            is_other = isinstance(value, np.floating) and not np.can_cast(number.dtype, self._numpy)
            if not is_other and _fits(number, self._numpy):
                return float(value)
            raise self._differs(value, sample, f"{value!r}")
        raise self._differs(value, sample, "")

    def _array(self, value: Any, sample: int) -> NDArray[Any]:
        array = value if isinstance(value, np.ndarray) else np.asarray(value)
        if array.dtype != self._numpy and array.dtype.newbyteorder("=") != self._numpy:
            # Convert lists, which have no element type, and arrays for which a schema sets a wider type.
            is_list = not hasattr(value, "dtype")
            casts = _fits(array, self._numpy) or (is_list and array.size == 0)
            may_cast = is_list or self.spec is not None
            if not (casts and may_cast):
                problem = " that does not fit" if may_cast else ""
                raise self._differs(value, sample, f"{array.dtype} array{problem}")
        if array.shape == (0,) and isinstance(self.spec, RaggedSpec):
            array = array.reshape(0, *self.spec.shape)  # the shape of an empty list comes from the schema
        if array.shape != self.shape:
            self._vary(array.shape, sample)
        if array.dtype is self._numpy and array.flags.c_contiguous:
            return array
        return np.asarray(array, dtype=self._numpy, order="C")

    def _vary(self, shape: tuple[int, ...], sample: int) -> None:
        """Record a shape that differs from the first shape."""
        if isinstance(self.spec, RaggedSpec):
            if shape[1:] != self.spec.shape or not shape:
                raise self._shaped(shape, f"[{', '.join(['any', *map(str, self.spec.shape)])}]", sample)
            return
        if isinstance(self.spec, TensorSpec):
            raise self._shaped(shape, str(list(self.spec.shape)), sample)
        if self.shape is None:
            self.shape = shape
        elif shape and len(shape) == len(self.shape) and shape[1:] == self.shape[1:]:
            self.is_ragged = True
        elif self._frees:
            self.is_free = True
        else:
            raise Unsupported(
                f"write: sample {sample:,}: `{self.name}` has the shape {list(shape)}, but an earlier sample has "
                f"{list(self.shape)}; only the first dimension can differ, because the format does not store shapes",
                where="samples",
                hint='store the bytes and the shape as two fields, or use format="tar" (WebDataset can read such '
                "arrays, but penstock.open cannot)",
            )

    def _shaped(self, shape: tuple[int, ...], want: str, sample: int) -> ConfigError:
        return ConfigError(
            f"write: sample {sample:,}: `{self.name}` has the shape {list(shape)}, but the schema says {want}",
            where="samples",
        )

    def _bytes_list(self, value: Any, sample: int) -> list[bytes]:
        if isinstance(value, (list, tuple)):
            if all(isinstance(one, _BYTES) for one in value):
                return [bytes(one) for one in value]
            if self.spec is not None and all(isinstance(one, str) for one in value):
                return [self._text(one, sample).encode() for one in value]
        raise self._differs(value, sample, "")

    def _str_list(self, value: Any, sample: int) -> list[str]:
        if isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value):
            return [self._text(one, sample) for one in value]
        raise self._differs(value, sample, "")

    def _nested(self, value: Any, sample: int, level: int = 1) -> list[Any]:
        """Convert lists of lists. The innermost lists become arrays or lists of `bytes`."""
        assert isinstance(self.spec, NestedSpec)
        if isinstance(value, Ragged):
            value = value.to_list()
        if not isinstance(value, (list, tuple)):
            raise self._differs(value, sample, f"{_what(value)} in level {level}" if level > 1 else "")
        if level + 1 < self.spec.depth:
            return [self._nested(one, sample, level + 1) for one in value]
        return [self._inner.convert(one, sample) for one in value]

    def _json(self, value: Any, sample: int) -> str:
        try:
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise Unsupported(
                f"write: sample {sample:,}: `{self.name}` cannot be stored as JSON: {error}", where="samples"
            ) from None
        return self._text(text, sample)


class Fields:
    """The fields of a dataset, in the order of the first sample or of the schema."""

    def __init__(self, fields: list[Field]) -> None:
        self.fields = fields
        self._names = {field.name for field in fields}

    @classmethod
    def of_schema(
        cls,
        schema: Mapping[str, FieldSpec],
        *,
        frees: bool,
        may_be_absent: bool = False,
        elements: Mapping[str, Any] | None = None,
    ) -> Fields:
        """Create the fields of a schema: `penstock.tensor`, `ragged`, `raw`, `raw_list`, `list` and `text`.

        Args:
            may_be_absent: Whether samples can lack any field.
            elements: Arrow types of the elements of some fields in Parquet, by name.

        Raises:
            ConfigError: A field is of another kind, or a mask has the name of another field.
        """
        with_masks(dict(schema))  # also checks the names
        made = []
        for name, spec in schema.items():
            options: dict[str, Any] = {
                "spec": spec,
                "may_be_absent": may_be_absent,
                "element": (elements or {}).get(name),
            }
            if isinstance(spec, TensorSpec) and spec.shape == () and np.dtype(spec.dtype).kind in "biu":
                made.append(Field(name, "int", spec.dtype, **options))
            elif isinstance(spec, (TensorSpec, RaggedSpec)) and spec.dtype in _DTYPES:
                made.append(Field(name, "array", spec.dtype, frees=frees, **options))
            elif isinstance(spec, (RawSpec, RawListSpec)):
                made.append(Field(name, "bytes" if isinstance(spec, RawSpec) else _list_kind(spec), **options))
            elif isinstance(spec, TextSpec):
                made.append(Field(name, "str", **options))
            elif isinstance(spec, NestedSpec) and (spec.dtype is None or spec.dtype in _DTYPES):
                made.append(Field(name, "nested", spec.dtype or "", **options))
            else:
                raise ConfigError(
                    f"schema: `{name}` must be a penstock.tensor, ragged, raw, raw_list, list or text (got {spec!r})",
                    where="schema",
                )
        return cls(made)

    @classmethod
    def of_sample(cls, sample: Any, *, frees: bool, narrows: bool) -> Fields:
        """Create the fields of the first sample. With `narrows`, lists of Python floats become float32, as in a
        tf.Example.

        Raises:
            ConfigError, Unsupported: The sample is empty, or the type of a value is not supported.
        """
        if not isinstance(sample, Mapping) or not sample:
            problem = "has no fields" if isinstance(sample, Mapping) else f"is {_what(sample)}, instead of a dict"
            raise ConfigError(f"write: sample 0 {problem}", where="samples")
        return cls([Field(name, *_kind(name, value, narrows), frees=frees) for name, value in sample.items()])

    @classmethod
    def of_state(cls, states: Mapping[str, Mapping[str, Any]], *, frees: bool) -> Fields:
        """Create the fields of an earlier write from its `to_dict`."""
        return cls([Field(name, state["kind"], state["dtype"], frees=frees) for name, state in states.items()])

    def to_dict(self) -> dict[str, Any]:
        """Return the kinds and shapes of all fields, by name."""
        return {field.name: field.to_dict() for field in self.fields}

    def restore(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Set the shapes of an earlier `to_dict`."""
        for field in self.fields:
            field.restore(states[field.name])

    def values(self, sample: Mapping[str, Any], number: int) -> list[Any]:
        """Convert a sample to one value per field. The value is None for an optional field that the sample lacks.

        Raises:
            ConfigError: The sample has other fields, or a value of another type or shape.
        """
        if type(sample) is not dict and not isinstance(sample, Mapping):
            raise ConfigError(
                f"write: sample {number:,} is {_what(sample)}, instead of a dict of its fields", where="samples"
            )
        found: list[Any] = []
        absent = False
        for field in self.fields:
            value = sample.get(field.name)
            if value is None:
                absent = True
                found.append(None)
            else:
                found.append(field.convert(value, number))
        if absent or len(sample) != len(found):
            self._check(sample, found, number)
        return found

    def _check(self, sample: Mapping[str, Any], found: list[Any], number: int) -> None:
        other = [name for name in sample if name not in self._names and sample[name] is not None]
        if other:
            raise ConfigError(
                f"write: sample {number:,} has the field `{other[0]}`, which is not among the fields "
                f"{_listed(self._names)}",
                where="samples",
                hint="give every sample the fields of the first sample; for optional fields, give write() a schema "
                "with defaults",
            )
        for field, value in zip(self.fields, found, strict=True):
            if value is not None:
                continue
            field.is_absent = field.may_be_absent
            if not field.is_optional:
                raise ConfigError(
                    f"write: sample {number:,} lacks the field `{field.name}`",
                    where="samples",
                    hint="give every sample this field, or give write() a schema in which it has a default",
                )


def _optional(spec: FieldSpec) -> FieldSpec:
    """Return the field that `Dataset.schema` returns for a value that some samples lack: a ragged field, or a field
    with an empty default.
    """
    if isinstance(spec, TensorSpec) and spec.default is None:
        return RaggedSpec(spec.dtype, spec.shape[1:], spec.parts, presence=spec.presence)
    if isinstance(spec, RawSpec) and spec.default is None:
        return replace(spec, default=b"")
    if isinstance(spec, TextSpec) and spec.default is None:
        return replace(spec, default="")
    return spec


def _list_kind(spec: RawListSpec | RaggedSpec) -> str:
    return "array" if isinstance(spec, RaggedSpec) else "bytes_list" if spec.errors is None else "str_list"


def _listed(names: set[str]) -> str:
    shown = sorted(names)[:8]
    return ", ".join(f"`{name}`" for name in shown) + (", ..." if len(names) > len(shown) else "")


def _is_unicode(text: str) -> bool:
    return text.isascii() or text.encode(errors="ignore").decode() == text


def _what(value: Any) -> str:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype} {list(value.shape)}"
    return f"a {type(value).__name__}"


def _limits(dtype: str) -> tuple[int, int]:
    if dtype == "bool":
        return 0, 1
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def _fits(array: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Return whether `dtype` can represent the values of an array. Floats can be rounded, but not to infinity; integers
    must not change.
    """
    is_int = array.dtype.kind in "iu"
    if is_int and dtype.kind in "iu":
        return bool((array.astype(dtype) == array).all())
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        found = array.astype(dtype)
        if is_int:
            return bool((found.astype(array.dtype) == array).all())
    return bool((np.isfinite(found) == np.isfinite(array)).all())


def _kind(name: str, value: Any, narrows: bool) -> tuple[str, str]:  # noqa: FBT001 - one caller
    """Return the kind and the element type of a value of the first sample."""
    if not isinstance(name, str) or not name or not _is_unicode(name):
        raise ConfigError(f"write: sample 0 has a field whose name is {name!r}, instead of text", where="samples")
    if name.rpartition(".")[2] == "json" and isinstance(value, (dict, list, str)):
        return ("str" if isinstance(value, str) else "json"), ""
    if isinstance(value, _BYTES):
        return "bytes", ""
    if isinstance(value, str):
        return "str", ""
    if isinstance(value, (bool, np.bool_)):
        return "int", "bool"
    if isinstance(value, (int, np.integer)):
        return "int", value.dtype.name if isinstance(value, np.integer) else "int64"
    if isinstance(value, (float, np.floating)):
        return "float", value.dtype.name if isinstance(value, np.floating) else "float64"
    if isinstance(value, dict):
        return "json", ""
    if isinstance(value, (list, tuple)):
        if not value:
            raise ConfigError(
                f"write: sample 0: `{name}` is an empty list, whose type is unknown",
                where="samples",
                hint=f"give write() a schema, such as schema={{{name!r}: penstock.ragged('int64'), ...}}",
            )
        if all(isinstance(one, _BYTES) for one in value):
            return "bytes_list", ""
        if all(isinstance(one, str) for one in value):
            return "str_list", ""
    if hasattr(value, "__array__") or isinstance(value, (list, tuple)):
        try:
            array = np.asarray(value)
        except (TypeError, ValueError) as error:
            if isinstance(value, (list, tuple)) and all(isinstance(one, (list, tuple)) for one in value):
                raise ConfigError(
                    f"write: sample 0: `{name}` is a list of lists of unequal lengths or types",
                    where="samples",
                    hint='give write() a schema, and format="parquet": '
                    f"schema={{{name!r}: penstock.list(penstock.ragged('int64')), ...}}",
                ) from None
            raise _unsupported(name, value, f" ({error})") from None
        if array.dtype.name in _DTYPES:
            return "array", "float32" if narrows and array.dtype.name == "float64" and not hasattr(
                value, "dtype"
            ) else array.dtype.name
        raise _unsupported(name, value, f" of {array.dtype}")
    raise _unsupported(name, value, "")


def _unsupported(name: str, value: Any, why: str) -> Unsupported:
    return Unsupported(
        f"write: sample 0: `{name}` is a {type(value).__module__}.{type(value).__qualname__}{why}, which no format stores",
        where="samples",
        hint="convert it to bytes (an encoded image), text, a number, a NumPy array or a list of these",
    )
