# SPDX-License-Identifier: Apache-2.0
"""Base class of datasets and mixtures: take, shard, repeat, map and decode, and the properties that a loader reads.

Implements the steps that convert a sample order to the positions of an epoch, and estimates the object reads per batch.
These steps do not read samples.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from penstock.errors import ConfigError, Unsupported
from penstock.feed.number_arguments import as_int, as_int_or_none

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from penstock import _native
    from penstock.feed.first_epoch import FirstEpochFeed
    from penstock.feed.map_step import MapStep
    from penstock.feed.node_cache import NodeCache
    from penstock.feed.pack import PackStep
    from penstock.feed.pool_locality import Locality
    from penstock.feed.tokenize import TokenizeStep

__all__ = ["STORED_STEPS", "DatasetBase", "Step", "cut", "expected_reads", "stored_steps"]

_MAX_STEPS_CHARS = 400
"""Maximum number of characters of steps that a state contains verbatim. Longer steps are hashed, so that a state stays
under 1 KB."""

Step = tuple[str, Any, int]
"""One requested step: ("take", n, 0), ("shard", index, count), ("repeat", times, 0) or ("shuffle", 0, 0). For select,
filter and resample, the second element is an object, whose `repr` describes the step in messages, and whose `str`
identifies the step in a state.
"""

STORED_STEPS = ("select", "filter", "resample")
"""Steps that choose samples in stored order, even if they are called after `shuffle`."""


def expected_reads(samples: int, objects: float, window: int, batch: float, world: int) -> float:
    """Average number of objects that a global batch reads, over all ranks.

    A rank reads an object once per window if the object contains any of the rank's samples. Let w be the number of
    samples in a window, b the number in a rank's slice of a batch, and g the greatest common divisor of w and b. On
    average, the slices of r = (w - g) / b + 1 ranks (at most all ranks) overlap a window. Each of these ranks needs
    n = w / r random samples of the window. An object of m samples contains none of these n samples with probability
    C(w - m, n) / C(w, n).
    """
    if samples == 0 or objects == 0 or batch <= 0:
        return 0.0
    blocks = min(window, objects)
    w, b = samples * blocks / objects, batch / world
    g = math.gcd(round(w), round(b)) if w.is_integer() and float(b).is_integer() else min(1.0, b)
    ranks = min(float(world), (w - g) / b + 1)
    m, n = w / blocks, w / ranks
    if w - m < n:
        missed = 0.0
    else:
        lg = math.lgamma
        missed = math.exp(lg(w - m + 1) + lg(w - n + 1) - lg(w - m - n + 1) - lg(w + 1))
    return blocks * (1 - missed) * ranks * batch / w


@dataclass(slots=True)
class _Computed:
    """Cache of values that are computed once. Pickled copies do not contain the values."""

    course: _native.Sampler | None = None
    identity: dict[str, Any] | None = None

    def __reduce__(self) -> tuple[type[_Computed], tuple[()]]:
        return (_Computed, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetBase:
    """Base class of `Dataset` and `Mixture`. Immutable: each method returns a new object."""

    steps: tuple[Step, ...] = ()
    map_steps: tuple[MapStep, ...] = ()
    tokenizing: TokenizeStep | None = None
    packing: PackStep | None = None
    _made: _Computed = field(default_factory=_Computed, init=False, repr=False, compare=False)

    def __getitem__(self, index: object) -> Any:
        """Not supported, because a dataset only describes the data. Python also calls this method for iteration."""
        raise Unsupported(
            f"a dataset supports neither iteration nor indexing (got index {index!r}), because it only describes "
            "the data",
            hint="read batches by penstock.Loader(dataset, batch_size=...); for a torch DataLoader, use "
            "penstock.torch.MapDataset(dataset)",
        )

    def take(self, count: int) -> Self:
        """Return the first `count` samples of each epoch, or all samples if there are fewer.

        Before `shuffle`, these are the first samples in stored order, which are the same in every epoch. After
        `shuffle`, these are the first samples in the order of each epoch.
        """
        count = as_int("count", count)
        if not 0 <= count < 2**63:
            raise ConfigError(f"take: {count} is not a valid number of samples", where="take")
        return self._step("take", count, 0)

    def shard(self, index: int, count: int) -> Self:
        """Return part `index` of `count` contiguous parts. The parts cover all samples, and their sizes differ by at
        most one sample.

        Before `shuffle`, the part has the same samples in every epoch (for example, for a validation set). After
        `shuffle`, it is a part of each epoch's order, and contains different samples in each epoch. Do not divide a
        dataset among ranks with `shard`, because a `Loader` already divides each batch among ranks.
        """
        index, count = as_int("index", index), as_int("count", count)
        if not 0 <= index < count < 2**63:
            raise ConfigError(
                f"shard: index must be from 0 to count - 1 (got index {index} with count {count})", where="shard"
            )
        return self._step("shard", index, count)

    def repeat(self, times: int) -> Self:
        """Join `times` epochs into one. Epoch e of the result consists of the epochs e x times to (e + 1) x times - 1
        of this dataset. Each of these epochs keeps its own order.
        """
        times = as_int("times", times)
        if not 1 <= times < 2**63:
            raise ConfigError(f"repeat: {times} is not a valid number of repeats", where="repeat")
        return self._step("repeat", times, 0)

    def map(self, fn: Callable[..., dict[str, Any]], workers: int = 0) -> Self:
        """Apply `fn` to every sample, in `workers` spawned processes. The sample order does not change.

        `fn(sample)` takes a dict of NumPy views of one sample and returns a dict. In a batch, arrays and numbers of
        equal shape become an array; lists, bytes and text become a list. Each sample has its own seed in each epoch,
        which does not depend on ranks or workers. If `fn` has a parameter named `seed`, `fn` receives the seed.
        Otherwise, the generators of `random`, NumPy and torch are seeded before each call. If `map` is called several
        times, the functions run one after another in the same process.

        Args:
            workers: Number of processes per rank; 0 runs `fn` in this process.
        """
        from penstock.feed.map_step import MapStep

        if self.tokenizing is not None or self.packing is not None:
            raise ConfigError("map: must come before tokenize() and pack()", where="map")
        return replace(self, map_steps=(*self.map_steps, MapStep.of(fn, workers)))

    def decode(
        self,
        fn: Callable[..., Any],
        workers: int = 0,
        threads: int | None = None,
        *,
        rebatch: bool = False,
        timeout_s: float = 600.0,
    ) -> Self:
        """Decode every sample with `fn` before batching. `fn` can return one sample, none, or several.

        `fn(sample)` takes a dict as in `map`, or only the record's `bytes` if the whole record is the only field. It
        returns a dict (one sample), None (no sample), or an iterable of dicts (any number of samples). Seeds, the kinds
        of values, and several functions in sequence are as in `map`. In threads, the global random generators are not
        seeded, so `fn` should have a parameter `seed`.

        Without `rebatch`, batch k contains the outputs for the samples that batch k would have without `decode`. The
        size of a batch then varies if `fn` drops or adds samples, but the number of batches does not change. A state is
        equal on all ranks, and valid for any number of ranks. With `rebatch`, every batch has the requested number of
        outputs. Ranks then have different numbers of batches, a loader has no length, and a state is valid only for the
        same rank, world size and global batch.

        If `fn` raises an exception, the loader's `on_error` applies. `raise` ends the pass with an error that names the
        record and contains the traceback. `skip` leaves the sample out and counts it in the report. With `rebatch`,
        `substitute` has the same effect as `skip`, because the next output takes the sample's place. Without `rebatch`,
        `substitute` has the same effect as `raise`.

        Args:
            workers: Number of processes per rank, for functions that hold the GIL. 0 runs `fn` in this process.
            threads: Number of threads per rank, for functions that release the GIL. Give either `workers` or `threads`.
            rebatch: Form batches of equal size from the outputs.
            timeout_s: Time limit of one sample in seconds; requires workers or threads. If a sample takes longer, the
                pass ends with an error.
        """
        from penstock.feed.map_step import MapStep

        if self.tokenizing is not None or self.packing is not None:
            raise ConfigError("decode: must come before tokenize() and pack()", where="decode")
        step = MapStep.of(fn, workers, threads=threads, timeout_s=timeout_s, decodes=True, rebatch=rebatch)
        return replace(self, map_steps=(*self.map_steps, step))

    @property
    def decodes(self) -> bool:
        """True if functions can drop or add samples."""
        return any(step.decodes for step in self.map_steps)

    @property
    def rebatches(self) -> bool:
        """True if batches of equal size are formed from the outputs of functions."""
        return any(step.rebatch for step in self.map_steps)

    def tokenize(
        self,
        tokenizer: Any,
        field: str | Sequence[str] = "text",
        *,
        into: str = "tokens",
        dtype: object = "int64",
        special_tokens: bool = True,
        key: str | None = None,
    ) -> Self:
        """Replace a text field by its tokens, a ragged field with the name `into`. The sample order does not change.
        `padded` converts the tokens of a batch to one array.

        A thread tokenizes the next batches while the caller works on the current one. A state contains a digest of the
        tokenizer, and a loader with another tokenizer rejects the state.

        Args:
            tokenizer: A `tokenizers.Tokenizer`, a fast tokenizer of `transformers`, or a function. A function takes the
                texts of a batch as a list (one argument for each field). It returns a list with one sequence of
                integers for each text, or a dict of such lists by field name.
            field: Name of the text field. For a function, also the names of several fields.
            dtype: Type of a token: uint16, int32, uint32 or int64.
            special_tokens: Whether the tokenizer adds its special tokens. Ignored for a function.
            key: Name and version of a function, for the digest; by default its attribute `digest`.
        Raises:
            ConfigError: A function has neither a digest nor a key, or the tokenizer is not callable.
        """
        from penstock.feed.tokenize import TokenizeStep

        if self.tokenizing is not None or self.packing is not None:
            raise ConfigError("tokenize: the dataset is already tokenized or packed", where="tokenize")
        names = (field,) if isinstance(field, str) else tuple(field)
        step = TokenizeStep.of(tokenizer, names, into, dtype, special_tokens=bool(special_tokens), key=key)
        return replace(self, tokenizing=step)

    def padded(
        self,
        to: int | Literal["longest"] = "longest",
        *,
        multiple_of: int = 1,
        value: int | Mapping[str, int] = 0,
        mask: str | None = "mask",
        truncate: bool = False,
    ) -> Self:
        """Pad the tokens of each batch to one array, samples x tokens: `ds.tokenize(tokenizer).padded(multiple_of=8)`.

        The thread that tokenizes also pads. To pad a stored field, call `padded` of the field, such as
        `ragged("int32").padded()`.

        Args:
            to: Number of tokens per row; or `longest`, the length of the longest sample in this rank's batch.
            multiple_of: With `longest`, the number of tokens per row is rounded up to a multiple of this number.
            value: Padding value, for all token fields or by field name (such as -100 for labels).
            mask: Name of a second array (bool, samples x tokens): True for tokens, False for padding. If the tokenizer
                returns several fields, this is the mask of the first field. With None, there is no mask.
            truncate: Cut samples that are longer than a row to their first tokens. If False, such a sample is an error.
        Raises:
            ConfigError: An argument is invalid, or the dataset is not tokenized, already padded, or already packed.
        """
        from penstock.feed.token_padding import TokenPadding

        if self.tokenizing is None or self.packing is not None or self.tokenizing.padding is not None:
            state = "not tokenized" if self.tokenizing is None else "packed" if self.packing else "already padded"
            raise ConfigError(
                f"padded: the dataset is {state}",
                where="padded",
                hint="to pad a stored field, call padded() of the field: .fields(x=penstock.ragged(dtype).padded()); "
                "to pad lists that decode() returns, call tokenize() first: "
                '.tokenize(lambda lists: lists, "x", into="x", key="lists-1")'
                if self.tokenizing is None
                else None,
            )
        padding = TokenPadding.of(to, multiple_of, value, mask, truncate=bool(truncate), dtype=self.tokenizing.dtype)
        return replace(self, tokenizing=replace(self.tokenizing, padding=padding))

    def pack(
        self,
        length: int,
        *,
        fields: str | Sequence[str] = "tokens",
        bos: int | None = None,
        eos: int | None = None,
        pad: int | Mapping[str, int] = 0,
        dtype: object = "int64",
        split: bool = True,
        documents: int = 256,
        count_tokens: bool = False,
    ) -> Self:
        """Join the samples (documents of tokens) and cut them into windows of `length` tokens, which are the samples of
        batches.

        A batch has the packed fields and three fields with one value per token. `segment_ids` (int32) is the number of
        the token's document in the window: 1 for the first document, and 0 for padding. `position_ids` (int32) is the
        index of the token in the document or, if the document began in an earlier window, in the window. `mask` (bool)
        is False for padding. For a mixture with `source=True`, `source` (int32) is the number of each token's dataset,
        and -1 for padding. Other fields are left out.

        By default, each rank packs the documents of its own slices, so ranks have different numbers of batches, and a
        loader has no length. A state takes at most 1 KB, and can refer to a token inside a document. It is valid for
        any `batch_size`, but only for the same rank and number of ranks.

        With `count_tokens`, the documents of all ranks are packed together. Batches are then the same on any number of
        ranks, a loader has a length, and a state is valid on any number of ranks. Before the first pass, all documents
        are read and tokenized to count their tokens; the counts are cached.

        Args:
            length: Number of tokens in a window.
            fields: Ragged field of tokens, or several fields of equal lengths (such as tokens and labels).
            bos, eos: Tokens to add before (`bos`) and after (`eos`) each document; only with one field.
            pad: Padding value, for all fields or by field name.
            dtype: Type of the packed fields, if they are integers.
            split: Continue a document in the next window if it does not fit. If False, such a document begins a new
                window, and only documents longer than a window are split.
            documents: Number of samples that a rank reads at a time, at most 2^24 - 1. Without `count_tokens`, this
                number also determines which documents a rank gets.
            count_tokens: Count the tokens of all documents first. Takes about 36 bytes of memory per document. Not
                allowed after `map` or `decode`, or with `on_error="skip"`.
        Raises:
            ConfigError: An argument is invalid.
        """
        from penstock.feed.fields import dtype_name
        from penstock.feed.pack import PackStep

        if self.packing is not None:
            raise ConfigError("pack: the dataset is already packed", where="pack")
        if self.tokenizing is not None and self.tokenizing.padding is not None:
            raise ConfigError("pack: cannot be combined with padded(), because windows have no padding", where="pack")
        names = (fields,) if isinstance(fields, str) else tuple(fields)
        by_name = pad if isinstance(pad, Mapping) else dict.fromkeys(names, pad)
        if unknown := by_name.keys() - set(names):
            raise ConfigError(
                f"pack: pad names `{min(unknown)}`, which is not one of the fields ({', '.join(names)})", where="pack"
            )
        step = PackStep(
            length=as_int("length", length),
            fields=names,
            bos=as_int_or_none("bos", bos),
            eos=as_int_or_none("eos", eos),
            pads=tuple(as_int("pad", by_name.get(name, 0)) for name in names),
            dtype=dtype_name(dtype),
            split=bool(split),
            documents=as_int("documents", documents),
            count_tokens=bool(count_tokens),
        )
        step.check()
        return replace(self, packing=step)

    @property
    def is_mapped(self) -> bool:
        """True if Python code changes the batches: `map`, `decode`, `tokenize` or `pack`."""
        return bool(self.map_steps) or self.tokenizing is not None or self.packing is not None

    @property
    def takes_no_steps(self) -> bool:
        """True if `map`, `decode`, `tokenize` or `pack` was called, after which the order is fixed."""
        is_chained = any(not step.is_source for step in self.map_steps)
        return is_chained or self.tokenizing is not None or self.packing is not None

    def _step(self, *step: Any) -> Self:
        if self.takes_no_steps:
            raise ConfigError(f"{step[0]}: must come before map(), decode(), tokenize() and pack()", where=step[0])
        return replace(self, steps=(*self.steps, step))

    def _steps_repr(self) -> str:
        parts = [
            f"{name} {a}/{b}" if name == "shard" else f"{name} {a!r}" for name, a, b in self.steps if name != "shuffle"
        ]
        for each in self.map_steps:
            name = getattr(each.function, "__qualname__", None) or repr(each.function)
            where = (
                f" in {each.workers} workers" if each.workers else f" in {each.threads} threads" if each.threads else ""
            )
            parts.append(f"{'decode' if each.decodes else 'map'} {name}{where}")
        if self.tokenizing is not None:
            parts.append(f"tokenize {', '.join(self.tokenizing.fields)}")
            if self.tokenizing.padding is not None:
                parts.append(f"padded {self.tokenizing.padding.length or 'to the longest'}")
        if self.packing is not None:
            parts.append(f"pack {self.packing.length:,}")
        return "".join(f", {text}" for text in parts)

    # Properties that a subclass defines.

    @property
    def indexed(self) -> bool:
        """True if samples have positions. False for a dataset that was opened with `indexed=False`."""
        return True

    @property
    def specs(self) -> tuple[tuple[str, Any], ...]:
        """Names of the fields that were set, with their specifications."""
        raise NotImplementedError

    def batch_fields(self) -> dict[str, Any]:
        """Return the fields of a batch: the fields that were set, otherwise the default fields."""
        return dict(self.specs)

    @property
    def is_shuffled(self) -> bool:
        """True if the order differs from epoch to epoch."""
        return self.seed is not None

    @property
    def has_random_fields(self) -> bool:
        """True if the crop or the flip of a field differs from epoch to epoch."""
        return any(getattr(spec, "is_random", False) for _, spec in self.specs)

    @property
    def differs_by_epoch(self) -> bool:
        """True if epochs differ in their order, crops or `map` seeds."""
        return self.seed is not None or self.has_random_fields or any(each.wants_seed for each in self.map_steps)

    def caches(self) -> list[NodeCache | None]:
        """Return the node cache of each dataset that this dataset consists of."""
        raise NotImplementedError

    @property
    def locality(self) -> Locality | None:
        """Locality of the objects, for a dataset in a pool."""
        return None

    @property
    def is_local(self) -> bool:
        """True for a node's own part of a dataset in a pool."""
        return False

    @property
    def seed(self) -> int | None:
        """Seed of the order."""
        raise NotImplementedError

    @property
    def window(self) -> int:
        """Number of objects whose samples are mixed."""
        raise NotImplementedError

    @property
    def needed_bytes(self) -> int | None:
        """For a dataset of patches, the total stored size in bytes of the chunks that patches read, each chunk counted
        once. Otherwise None.
        """
        return None

    @property
    def rung(self) -> str:
        """Source of the record counts."""
        raise NotImplementedError

    @property
    def fingerprint(self) -> str:
        """Hash that identifies the logical dataset."""
        raise NotImplementedError

    def _base(self) -> _native.Sampler:
        """Return the sampler to which the steps after the first `stored_steps(self.steps)` steps are applied."""
        raise NotImplementedError

    def _gets(self, batch: float, world: int) -> float:
        raise NotImplementedError

    @property
    def objects(self) -> int | None:
        """Number of objects; None for a mixture."""
        return None

    def part_with(self, state: Mapping[str, Any]) -> Self | None:  # noqa: ARG002 - for a dataset that can find it
        """Return the part of this dataset that `state` was saved from, if all of its objects still exist."""
        return None

    @property
    def is_counted(self) -> bool:
        """False while the records are counted in the background."""
        return True

    def awaits_scan(self) -> bool:
        """Whether the number of samples is unknown until a scan is complete."""
        return False

    def first_epoch_feed(
        self,
        batch: int,  # noqa: ARG002 - for a dataset that can start early
        make: Callable[[_native.Sampler | None], _native.Feed],  # noqa: ARG002
    ) -> FirstEpochFeed | None:
        """Return a feed that starts before all records are counted. None if all records are counted, or if an epoch
        cannot start without all counts. `batch` is the global batch size. `make` creates the feed of a sampler or, for
        None, of the whole dataset.
        """
        return None

    # Properties that a loader reads.

    def course(self) -> _native.Sampler:
        """Return the sampler of this dataset's epochs. Counts the records if that has not been done yet."""
        if self._made.course is not None:
            return self._made.course
        course = self._base()
        for name, a, b in self.steps[stored_steps(self.steps) :]:
            course = _apply(course, name, a, b)
        self._made.course = course
        return course

    @property
    def source_numbers(self) -> list[int] | None:
        """Number of each dataset in the field `source`, in the order of the sampler; None for batches without this
        field.
        """
        return None

    @property
    def samples(self) -> int:
        """Number of samples in an epoch."""
        return self.course().samples

    def identity(self) -> dict[str, Any]:
        """Return the values that must be equal in a state and in this dataset. As JSON, they take under 750 bytes."""
        if self._made.identity is None:
            mine: dict[str, Any] = {
                "fingerprint": self.fingerprint,
                "seed": self.seed,
                "window": self.window,
                "samples": self.samples,
            }
            if self.objects is not None:
                mine["objects"] = self.objects
            if self.steps:
                steps = " ".join(f"{name}:{a}:{b}" for name, a, b in self.steps)
                mine["steps"] = (
                    steps
                    if len(steps) <= _MAX_STEPS_CHARS
                    else hashlib.blake2b(steps.encode(), digest_size=16).hexdigest()
                )
            if self.tokenizing is not None:
                mine["tokenizer"] = self.tokenizing.digest
            self._made.identity = mine
        return dict(self._made.identity)

    def expected_gets(self, batch: float, world: int = 1) -> float:
        """Average number of object reads for a global batch, over all ranks. The number increases with `window`.

        An object above 16 MiB is read in parts of 8 MiB, with one request per part. A cache reduces the number of
        reads.
        """
        return self._gets(batch, world)


def stored_steps(steps: Sequence[Step]) -> int:
    """Return the number of steps that apply to samples in stored order. These are the steps before `shuffle` or,
    without a shuffle, all steps up to the last step of `STORED_STEPS`.
    """
    names = [name for name, _, _ in steps]
    if "shuffle" in names:
        return names.index("shuffle")
    return max((at + 1 for at, name in enumerate(names) if name in STORED_STEPS), default=0)


def cut(samples: int, name: str, a: int, b: int) -> tuple[int, int]:
    """Return the range of positions that `take` or `shard` selects."""
    return (0, min(a, samples)) if name == "take" else (samples * a // b, samples * (a + 1) // b)


def _apply(course: _native.Sampler, name: str, a: int, b: int) -> _native.Sampler:
    if name == "shuffle":
        return course
    if name == "repeat":
        return course.repeat(a)
    return course.range(*cut(course.samples, name, a, b))
