# SPDX-License-Identifier: Apache-2.0
"""Runs parts of a study and collects their results. Owns their order, their scratch folders and `results.json`.

A part is a module in the study's folder with the function `run(context) -> PartResult`. Modules of a study import each
other by relative imports. The module `answer`, if the study has one, contains `answer(result) -> str`: the answer to
the study's question, one sentence or two.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.bench.results import provenance
from penstock.errors import ConfigError, NotFound, SystemFault, Unsupported
from penstock.study.result import Claim, PartRecord, PartResult, StudyResult, read_result, write_result
from penstock.study.table import all_claims

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.cluster import Cluster
    from penstock.study.spec import Part, Study

__all__ = ["Context", "StudyRun", "lacks", "load_module", "run_study"]


class StudyRun(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a run.

    Attributes:
        only: Names of the parts to run; empty for all parts of the size.
        out: Folder of the results. With `only`, the results of other parts are kept if they have the same size and the
            study's files are unchanged.
        scratch: Folder for temporary data; None for the system's temporary folder.
        command: The command line, for the report.
        open_cluster: Opens the nodes that the user selected; None if the user selected no nodes.
        timeout_s: Time limit of each command on those nodes.
    """

    size: str
    out: Path
    only: tuple[str, ...] = ()
    scratch: Path | None = None
    command: str = ""
    open_cluster: Callable[[], Cluster] | None = None
    timeout_s: float = 7200.0


class Context:
    """Argument of a part.

    Attributes:
        study: The study: `tables` contains all of `spec.toml`, and `expected.tables` all of `expected.toml`.
        size: The table `[size.NAME]`, and `size_name` its name.
        scratch: Empty folder, removed when the part ends.
        out: Folder of the results, for files that stay.
        progress: Called with a description of the step that begins.
        done: Results of the parts that ran before, by name.
        open_cluster: Opens the selected nodes as a context manager; None if the part must create its own hosts.
        timeout_s: Time limit of each command on those nodes.
    """

    def __init__(
        self,
        study: Study,
        given: StudyRun,
        *,
        scratch: Path,
        progress: Callable[[str], None],
        done: Mapping[str, PartResult],
    ) -> None:
        self.study, self.size_name, self.size = study, given.size, study.size(given.size)
        self.scratch, self.out, self.progress, self.done = scratch, given.out, progress, done
        self.open_cluster, self.timeout_s = given.open_cluster, given.timeout_s


def load_module(study: Study, name: str) -> ModuleType:
    """Import `NAME.py` of a study's folder, with `_` for `-`.

    Raises:
        NotFound: The file does not exist.
    """
    package = f"penstock_study_{study.name.replace('-', '_')}"
    if package not in sys.modules:
        parent = ModuleType(package)
        parent.__path__ = [str(study.folder)]
        sys.modules[package] = parent
    module = name.replace("-", "_")
    if not (study.folder / f"{module}.py").is_file():
        raise NotFound(f"study {study.name} has no file {module}.py", where=str(study.folder))
    return importlib.import_module(f"{package}.{module}")


def lacks(part: Part, size: str) -> list[str]:
    """Return what this machine lacks for a part, such as "root" or "the program mfsmaster"; empty if nothing.

    At a size at which a part runs on other nodes, this machine lacks nothing.
    """
    import importlib.util
    import shutil

    if part.cluster and size == "full":
        return []
    missing = ["root"] if part.root and os.geteuid() != 0 else []
    missing += [f"the program {name}" for name in part.programs if shutil.which(name) is None]
    return missing + [f"the Python module {name}" for name in part.packages if importlib.util.find_spec(name) is None]


def run_study(study: Study, given: StudyRun, progress: Callable[[str], None]) -> StudyResult:
    """Run the parts in turn and write `results.json` after each, so that an interrupted run keeps what it measured.

    A part whose requirements are missing is skipped, and the result contains the reason.

    Raises:
        ConfigError: The size or a part does not exist.
        Unsupported: This machine lacks something for each of the parts.
        PenstockError: A part failed.
    """
    parts = study.chosen(given.only, given.size)
    missing = {part.name: lacks(part, given.size) for part in parts}
    if parts and all(missing.values()):
        reasons = "; ".join(f"{name}: {', '.join(found)}" for name, found in missing.items())
        raise Unsupported(
            f"no part of study {study.name} can run on this machine ({reasons})",
            hint="install what is missing, or use --only",
        )
    try:
        given.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SystemFault(
            f"{given.out} cannot be used as a folder: {error.strerror}", hint="use --output DIR"
        ) from error
    kept = _kept(study, given) if given.only else {}
    result = _empty(study, given.size)
    for part in parts:
        if missing[part.name]:
            kept[part.name] = _skipped(part, given, ", ".join(missing[part.name]))
        else:
            kept[part.name] = _run_part(study, part, given, progress, kept)
        ordered = tuple(kept[each.name] for each in study.parts if each.name in kept)
        result = msgspec.structs.replace(result, parts=ordered, complete=part is parts[-1])
        result = msgspec.structs.replace(result, answer=_answer(study, result))
        write_result(result, given.out)
    return result


def _run_part(
    study: Study, part: Part, given: StudyRun, progress: Callable[[str], None], kept: Mapping[str, PartRecord]
) -> PartRecord:
    module = load_module(study, part.name)
    done = {name: record.result for name, record in kept.items() if not record.skipped}
    began, created = time.monotonic(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

    def show(what: str) -> None:
        progress(f"{part.name}: {what}")

    show(part.what)
    with tempfile.TemporaryDirectory(prefix="penstock-study-", dir=given.scratch) as scratch:
        found: Any = module.run(Context(study, given, scratch=Path(scratch), progress=show, done=done))
    if not isinstance(found, PartResult):
        raise ConfigError(f"study {study.name}: part {part.name} did not return a PartResult", where=part.name)
    _refuse_unknown_figures(study, part, found)
    return PartRecord(
        name=part.name, size=given.size, created=created, seconds=round(time.monotonic() - began, 1),
        command=given.command, load_average=round(os.getloadavg()[0], 1), provenance=provenance(), result=found,
    )  # fmt: skip


def _refuse_unknown_figures(study: Study, part: Part, found: PartResult) -> None:
    known = {figure.id for figure in study.expected.figure}
    for column in (found.inverted, found.predicted, found.measured):
        if unknown := sorted(set(column) - known):
            raise ConfigError(
                f"study {study.name}: part {part.name} returned a value for figure `{unknown[0]}`, which expected.toml"
                " does not contain",
                where=part.name,
            )


def _skipped(part: Part, given: StudyRun, reason: str) -> PartRecord:
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    text = f"{part.name}: it needs {reason}"
    return PartRecord(
        name=part.name, size=given.size, created=created, command=given.command, skipped=reason,
        result=PartResult(not_measured=(text,)),
    )  # fmt: skip


def _kept(study: Study, given: StudyRun) -> dict[str, PartRecord]:
    """Parts of an earlier run in the same folder that are still valid."""
    try:
        earlier = read_result(given.out)
    except (NotFound, ConfigError):
        return {}
    if (earlier.study, earlier.size, earlier.spec_hash) != (study.name, given.size, study.spec_hash):
        return {}
    return {part.name: part for part in earlier.parts}


def _empty(study: Study, size: str) -> StudyResult:
    about, expected = study.about, study.expected
    return StudyResult(
        study=study.name, letter=about.letter, title=about.title, question=about.question,
        publication=about.publication, size=size, spec_hash=study.spec_hash, figures=expected.figure,
        contradictions=expected.contradiction, not_comparable=expected.not_comparable,
    )  # fmt: skip


def _answer(study: Study, result: StudyResult) -> str:
    if (study.folder / "answer.py").is_file():
        text: str = load_module(study, "answer").answer(result)
        return text
    claims: Sequence[Claim] = all_claims(result)
    tried = [claim for claim in claims if claim.holds is not None]
    return f"{sum(claim.holds is True for claim in tried)} of {len(tried)} claims hold"
