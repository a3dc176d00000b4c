# SPDX-License-Identifier: Apache-2.0
"""Reads a study's folder: `spec.toml` with its sizes and parts, and `expected.toml` with the published figures."""

from __future__ import annotations

import hashlib
import re
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from penstock.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["About", "Expected", "ExpectedFigure", "Part", "Study", "find_study", "list_studies", "studies_folder"]

_T = TypeVar("_T", bound=msgspec.Struct)

SPEC, EXPECTED = "spec.toml", "expected.toml"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


class About(msgspec.Struct, frozen=True):
    """Table `[study]`: what is repeated, the question that the report answers, and the publication."""

    letter: str
    title: str
    question: str
    publication: str


class Part(msgspec.Struct, frozen=True):
    """A table `[[part]]`. The module of the part is the file of its name in the study's folder, with `_` for `-`.

    Attributes:
        what: What the part does, as an imperative.
        duration: Duration by size, as printed text such as "2 min".
        programs: Programs that must be found in PATH.
        packages: Python modules that must be installed.
        root: Whether the part requires root.
        sizes: Sizes that have this part; empty for all.
        cluster: Whether the part runs on the nodes of --launcher at the size `full`; else it runs on this machine.
        full: What the part needs at the size `full`, such as a cluster.
    """

    name: str
    what: str
    duration: dict[str, str] = {}
    programs: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    root: bool = False
    sizes: tuple[str, ...] = ()
    cluster: bool = False
    full: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"a part's name consists of lower-case letters, digits and dashes (got `{self.name}`)")


class ExpectedFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A table `[[figure]]` of `expected.toml`: one row of the report.

    Attributes:
        id: Name by which parts return their values.
        group: Title of the table that contains the row.
        unit: Unit of all columns, such as `min`, `USD` or `GB/s`.
        published: Published number; None if the publication states no number.
        text: Published value as printed, such as `> 120`; by default, the number.
        bound: `above` or `below` if the publication only states a bound.
        inverted_within, predicted_within: Largest relative difference from the published value that counts as reached.
        one_machine: Whether one machine can reproduce the figure. If not, the report labels it as modelled, not
            measured.
        source: Place in the publication.
        note: What a reader must know to compare the columns.
    """

    id: str
    group: str
    label: str
    unit: str = ""
    published: float | None = None
    text: str = ""
    bound: Literal["", "above", "below"] = ""
    inverted_within: float | None = None
    predicted_within: float | None = None
    one_machine: bool = True
    source: str = ""
    note: str = ""


class Expected(msgspec.Struct, frozen=True):
    """`expected.toml`. Further tables are the study's own, and are available as `tables`.

    Attributes:
        figure: Rows of the report, in their order.
        contradiction: Places where the publication contradicts itself.
        not_comparable: Differences between the publication and this repeat.
    """

    schema_version: Literal[1]
    figure: tuple[ExpectedFigure, ...] = ()
    contradiction: tuple[str, ...] = ()
    not_comparable: tuple[str, ...] = ()
    tables: dict[str, Any] = {}


class Study(msgspec.Struct, frozen=True):
    """A study: its folder and the contents of its files. `tables` is the whole `spec.toml`."""

    name: str
    folder: Path
    about: About
    parts: tuple[Part, ...]
    sizes: dict[str, dict[str, Any]]
    tables: dict[str, Any]
    expected: Expected

    @property
    def spec_hash(self) -> str:
        """First 12 hex digits of the SHA-256 of `spec.toml` and `expected.toml`."""
        digest = hashlib.sha256()
        for name in (SPEC, EXPECTED):
            digest.update((self.folder / name).read_bytes())
        return digest.hexdigest()[:12]

    def size(self, name: str) -> dict[str, Any]:
        """Return the table `[size.NAME]`.

        Raises:
            ConfigError: The study does not have this size.
        """
        if name not in self.sizes:
            raise ConfigError(
                f"study {self.name} has no size `{name}`{_near(name, self.sizes)}; it has {', '.join(self.sizes)}",
                where="--size",
            )
        return self.sizes[name]

    def chosen(self, only: Iterable[str], size: str) -> tuple[Part, ...]:
        """Return the parts with these names, in the study's order; all parts of this size if `only` is empty.

        Raises:
            ConfigError: The study does not have a part of that name, or not at this size.
        """
        only = list(only)
        names = [part.name for part in self.parts]
        for name in only:
            if name not in names:
                raise ConfigError(
                    f"study {self.name} has no part `{name}`{_near(name, names)}; it has {', '.join(names)}",
                    where="--only",
                )
            part = self.parts[names.index(name)]
            if part.sizes and size not in part.sizes:
                raise ConfigError(
                    f"part {name} of study {self.name} does not exist at size {size} (it has {', '.join(part.sizes)})",
                    where="--only",
                )
        if only:
            return tuple(part for part in self.parts if part.name in only)
        return tuple(part for part in self.parts if not part.sizes or size in part.sizes)


def studies_folder(given: Path | None = None) -> Path:
    """Return the folder of the studies: `given`, or `studies` of the source tree that this package was imported from.

    Raises:
        NotFound: The folder does not exist. An installed wheel does not contain the studies.
    """
    if given is not None:
        if not given.is_dir():
            raise NotFound(f"{given} is not a folder", where=str(given), hint="give the folder `studies` of a checkout")
        return given.absolute()
    folder = Path(__file__).resolve().parents[3] / "studies"
    if not folder.is_dir():
        raise NotFound(
            "this installation of Penstock does not contain the studies",
            hint="clone the repository at the tag of `penstock --version`, and give --studies CHECKOUT/studies",
        )
    return folder


def list_studies(folder: Path) -> list[Study]:
    """Read all studies of a folder, sorted by letter. A folder without `spec.toml` is not a study.

    Raises:
        ConfigError: A file of a study is not valid.
    """
    found = [_read(path.parent) for path in sorted(folder.glob(f"*/{SPEC}"))]
    return sorted(found, key=lambda study: (study.about.letter, study.name))


def find_study(name: str, folder: Path) -> Study:
    """Read the study with this name.

    Raises:
        NotFound: The folder does not contain it; the error lists the studies that it contains.
        ConfigError: A file of the study is not valid.
    """
    names = sorted(path.parent.name for path in folder.glob(f"*/{SPEC}"))
    if name not in names:
        raise NotFound(
            f"study `{name}` does not exist{_near(name, names)}",
            where=name,
            hint=f"choose one of {', '.join(names)}" if names else f"{folder} contains no study",
        )
    return _read(folder / name)


def _read(folder: Path) -> Study:
    tables, expected = _toml(folder / SPEC), _toml(folder / EXPECTED)
    place = str(folder / SPEC)
    if tables.get("schema_version") != 1:
        raise ConfigError(f"{place}: schema_version is not 1 (got {tables.get('schema_version')!r})", where=place)
    about = _convert(tables.get("study", {}), About, place, "study")
    parts = tuple(_convert(part, Part, place, "part") for part in tables.get("part", []))
    sizes = tables.get("size", {})
    if not parts or not sizes:
        raise ConfigError(f"{place}: [[part]] and [size.NAME] are required", where=place)
    for part in parts:
        unknown = [size for size in (*part.sizes, *part.duration) if size not in sizes]
        if unknown:
            raise ConfigError(
                f"{place}: part {part.name} mentions size `{unknown[0]}`, which does not exist", where=place
            )
    names = [part.name for part in parts]
    if len(set(names)) < len(names):
        raise ConfigError(f"{place}: two parts have the same name ({', '.join(names)})", where=place)
    place = str(folder / EXPECTED)
    known = {"schema_version", "figure", "contradiction", "not_comparable"}
    figures = [_convert(row, ExpectedFigure, place, "figure") for row in expected.get("figure", [])]
    ids = [figure.id for figure in figures]
    if twice := [each for each in ids if ids.count(each) > 1]:
        raise ConfigError(f"{place}: figure `{twice[0]}` occurs twice", where=place)
    plain = {**{name: value for name, value in expected.items() if name in known}, "tables": expected}
    return Study(
        name=folder.name, folder=folder, about=about, parts=parts, sizes=sizes, tables=tables,
        expected=_convert(plain, Expected, place, ""),
    )  # fmt: skip


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise NotFound(f"{file} cannot be read: {error.strerror}", where=str(file)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}", where=str(file)) from error


def _convert(found: Any, kind: type[_T], place: str, table: str) -> _T:
    known = [field.name for field in msgspec.structs.fields(kind)]
    unknown = sorted(set(found) - set(known)) if isinstance(found, dict) and table else []
    if unknown:
        raise ConfigError(f"{place}: [{table}] has no key `{unknown[0]}`{_near(unknown[0], known)}", where=place)
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{place}: [{table}] {error}", where=place) from error


def _near(word: str, known: Iterable[str]) -> str:
    found = get_close_matches(word, list(known), n=1)
    return f" (did you mean `{found[0]}`?)" if found else ""
