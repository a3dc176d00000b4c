# SPDX-License-Identifier: Apache-2.0
"""`padded` of a tokenized dataset: pads the tokens of a batch to one array, with a mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from penstock.errors import ConfigError
from penstock.feed.fields import padded_length
from penstock.feed.number_arguments import as_int

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.errors import MapFailed
    from penstock.feed.batch_columns import Ragged

__all__ = ["TokenPadding"]


@dataclass(frozen=True, slots=True)
class TokenPadding:
    """Settings with which the fields of `tokenize` are padded. Without `length`, rows have the length of the batch's
    longest sample.
    """

    length: int | None
    multiple_of: int
    values: int | Mapping[str, int]
    mask: str | None
    truncate: bool

    @classmethod
    def of(
        cls,
        to: int | Literal["longest"],
        multiple_of: int,
        value: int | Mapping[str, int],
        mask: str | None,
        *,
        truncate: bool,
        dtype: str,
    ) -> TokenPadding:
        """Check the arguments of `padded`.

        Raises:
            ConfigError: A number is invalid, or the padding value does not fit the type of the tokens.
        """
        import numpy as np

        length, multiple = padded_length(to, multiple_of, mask, ("longest",), "padded")
        values = (
            {n: as_int("value", v) for n, v in value.items()} if hasattr(value, "items") else as_int("value", value)
        )
        limits = np.iinfo(dtype)
        for number in values.values() if isinstance(values, dict) else (values,):
            if not limits.min <= number <= limits.max:
                raise ConfigError(
                    f"value: {number} is not a value of {dtype}, the type of the tokens",
                    where="padded",
                    hint='use another type: tokenize(..., dtype="int64")',
                )
        return cls(None if isinstance(length, str) else length, multiple, values, mask, truncate)

    def apply(self, columns: Mapping[str, Ragged], failed: Callable[..., MapFailed]) -> dict[str, Any]:
        """Return an array (samples x tokens) per field, and the mask of the first field. `failed(step, why, row, hint)`
        returns the error of the batch or of one row.

        Raises:
            MapFailed: A sample is too long, or `value` or `mask` does not match the names of the fields.
        """
        import numpy as np

        names = ", ".join(columns)
        values = self.values if isinstance(self.values, dict) else dict.fromkeys(columns, self.values)
        if unknown := values.keys() - columns.keys():
            raise failed(
                "padded", f"value contains `{min(unknown)}`, which is not a field of tokens (the fields are {names})"
            )
        if self.mask in columns:
            raise failed("padded", f"mask `{self.mask}` is also the name of a field of tokens")
        made: dict[str, Any] = {}
        for name, column in columns.items():
            lengths = np.diff(column.offsets)
            width = self._width(lengths, name, failed)
            is_token = np.arange(width) < lengths[:, None]
            try:
                made[name] = np.full(is_token.shape, values.get(name, 0), column.values.dtype)
            except MemoryError:
                raise failed(
                    "padded",
                    f"`{name}` of {len(lengths):,} samples x {width:,} tokens does not fit into memory",
                    hint="limit the length: padded(4096, truncate=True)",
                ) from None
            made[name][is_token] = column.values if not (lengths > width).any() else _cut(column, lengths, width)
            if self.mask is not None:
                made.setdefault(self.mask, is_token)
        return made

    def _width(self, lengths: Any, name: str, failed: Callable[..., MapFailed]) -> int:
        longest = int(lengths.max(initial=0))
        if self.length is None:
            return -(-longest // self.multiple_of) * self.multiple_of
        if longest > self.length and not self.truncate:
            raise failed(
                "padded",
                f"`{name}` has {longest:,} tokens, more than {self.length:,}",
                int(lengths.argmax()),
                hint=f"cut longer samples: padded({self.length}, truncate=True)",
            )
        return self.length


def _cut(column: Ragged, lengths: Any, width: int) -> Any:
    """Return the first `width` tokens of each sample, concatenated."""
    import numpy as np

    position = np.arange(len(column.values)) - np.repeat(column.offsets[:-1], lengths)
    return column.values[position < width]
