# SPDX-License-Identifier: Apache-2.0
"""Reads each file of a folder with Penstock and with the library of its format, and compares the values.

    uv venv /tmp/foreign-peers
    uv pip install -p /tmp/foreign-peers/bin/python tensorflow-cpu webdataset pyarrow pillow h5py zarr soundfile av zstandard lz4
    PYTHONPATH=python /tmp/foreign-peers/bin/python benches/peers/feed/foreign.py FOLDER [--only FORMAT] [--json OUT]

The files are not in this repository; docs/reference/foreign.md states where they are from. Penstock and the library
each read in a child process with a time limit and a memory limit. A child that ends is replaced. A case is one file (or
one Zarr array); its columns are compared one by one. Prints the cases that a person should check, then the table:

- `agrees`: all columns are equal. `partly`: some are, and Penstock refuses the others with a clear error.
- `both refuse`, `refuses`: a clear error of Penstock; the library refuses the file too, or reads it.
- `alone`: Penstock reads what the library refuses.
- `unclear`: an exception that is not a PenstockError, a Bug, a panic on stderr, an error without a hint, `Corrupt` for
  a file that the library reads, or a column that is missing without a reason.
- `wrong`, `crash`, `hang`: other values, a process that ended, a process that did not answer in time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import traceback
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent))
import foreign_penstock as penstock_side
import foreign_readers as readers
from foreign_readers import Case, Failure

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

VERDICTS = ("agrees", "partly", "both refuse", "refuses", "alone", "unclear", "wrong", "crash", "hang")
SHOWN = ("alone", "unclear", "wrong", "crash", "hang")
PROOFS = (
    "checksum",
    "CRC error",
    "Corrupt JPEG data",
    "no end marker",
    "convert it to PNG",
    "hex escape",
    "not closed",
    "cut off",
    "it ends ",
    "damaged or missing",
    "are missing",
    "no MPEG frame at",
    "in blocks of",
    "samples per frame, but a frame has",
    "minimum block length",
)
"""Texts that make a message clear: they describe damage that some libraries accept, or give advice."""
MEMORY_BYTES = 12 << 30
Columns = dict[str, Any]


def serve(pipe: Connection, side: str, log: str) -> None:
    """Answers cases with their columns, until the pipe is closed."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    read = penstock_side.ours if side == "ours" else readers.theirs
    while True:
        try:
            case = pipe.recv()
        except EOFError:
            return
        try:
            answer: Columns | Failure = read(case)
        except BaseException as error:
            answer = readers.failure(error)
        try:
            pipe.send(answer)
        except Exception:
            pipe.send(Failure("NotSent", traceback.format_exc(limit=1), None))


class Reader:
    """Child process of Penstock or of the library."""

    def __init__(self, side: str, timeout_s: float) -> None:
        self.side, self.timeout_s = side, timeout_s
        self.log = Path(tempfile.mkstemp(prefix=f"foreign-{side}-")[1])
        self.child: Any = None

    def read(self, case: Case) -> Columns | Failure:
        """The columns of a case. A Failure of kind `hang` or `crash` means that the child did not answer."""
        if self.child is None:
            context = multiprocessing.get_context("spawn")
            self.pipe, end = context.Pipe()
            self.child = context.Process(target=serve, args=(end, self.side, str(self.log)), daemon=True)
            self.child.start()
            end.close()
        before = self.log.stat().st_size
        self.pipe.send(case)
        try:
            if self.pipe.poll(self.timeout_s):
                answer: Columns | Failure = self.pipe.recv()
                with self.log.open("rb") as log:
                    log.seek(before)
                    panics = [line for line in log.read().splitlines() if b"panicked" in line]
                if panics and self.side == "ours":
                    return Failure("panic", panics[0].decode(errors="replace"), None)
                return answer
            kind = "hang"
        except EOFError:
            kind = "crash"
        self.child.kill()
        self.child.join()
        code, self.child = self.child.exitcode, None
        return Failure(kind, f"no answer in {self.timeout_s:g} s" if kind == "hang" else f"exit code {code}", None)


def unclear(failure: Failure, reference: Any) -> str | None:
    """Why an error of Penstock is not clear, or None."""
    if failure.kind in ("crash", "hang"):
        return failure.kind
    if not failure.is_penstock or failure.kind in ("Bug", "panic"):
        return "unclear: not an error for users"
    is_proved = any(proof in failure.message for proof in PROOFS)
    if failure.kind == "Corrupt" and not is_proved and not isinstance(reference, Failure):
        return "unclear: called damaged, and the library reads it"
    if not failure.hint and failure.kind not in ("Mismatch", "ConfigError"):  # their messages advise
        return "unclear: no hint"
    return None


def judge(case: Case, ours: Columns | Failure, theirs: Columns | Failure) -> tuple[str, list[str]]:
    """The verdict on a case, and the reasons."""
    if isinstance(ours, Failure):
        refused = isinstance(theirs, Failure) or not any(
            isinstance(values, list) and values for values in theirs.values()
        )
        why = unclear(ours, Failure("none", "no samples", None) if refused else theirs)
        if why is not None:
            return why.split(":")[0], [f"{why}: {ours}"]
        return "both refuse" if refused else "refuses", [str(ours)]
    if isinstance(theirs, Failure):
        read = [name for name, values in ours.items() if not isinstance(values, Failure)]
        return ("alone", [f"the library: {theirs}"]) if read else ("both refuse", [str(next(iter(ours.values()), ""))])
    seen: Counter[str] = Counter()
    reasons = []
    ours = penstock_side.aligned(case, ours, theirs)
    for name in dict.fromkeys([*ours, *theirs]):
        mine, peer = ours.get(name), theirs.get(name)
        if mine is None and isinstance(peer, list) and all(value in (None, [], b"") for value in peer):
            continue  # a column without values has no default field
        if mine is None:
            verdict, reason = "unclear", "missing without a reason"
        elif isinstance(mine, Failure):
            why = unclear(mine, peer)
            verdict, reason = (why or "refused").split(":")[0], f"{why or ''} {mine}".strip()
        elif peer is None:
            is_refused = any(isinstance(values, Failure) for values in theirs.values())
            verdict, reason = "alone" if is_refused else "wrong", "the library has no such column"
        elif isinstance(peer, Failure):
            verdict, reason = "alone", f"the library: {peer}"
        else:
            difference = penstock_side.difference(case, mine, peer)
            verdict, reason = ("wrong", difference) if difference else ("same", "")
        seen[verdict] += 1
        reasons += [f"{name}: {reason}"] if reason else []
    for verdict in ("wrong", "crash", "hang", "unclear", "alone"):
        if seen[verdict]:
            return verdict, reasons
    if not seen["refused"]:
        return "agrees", []
    return ("partly" if seen["same"] else "refuses"), reasons


def main() -> None:
    """Read all cases of the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", action="append", help="a format; may be repeated")
    parser.add_argument("--json", type=Path, help="a file for one line per case")
    parser.add_argument(
        "--again", type=Path, help="such a file: cases that agreed in it are counted, but not read again"
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for one case and side (default: 60)")
    arguments = parser.parse_args()
    cases = [case for case in readers.cases(arguments.folder) if not arguments.only or case.format in arguments.only]
    pools = [(Reader("ours", arguments.timeout), Reader("theirs", arguments.timeout)) for _ in range(arguments.jobs)]

    earlier = [json.loads(line) for line in arguments.again.read_text().splitlines()] if arguments.again else []
    agreed = {(row["format"], row["path"]) for row in earlier if row["verdict"] == "agrees"}

    def run(case: Case) -> tuple[Case, str, list[str]]:
        if (case.format, str(case.path.relative_to(arguments.folder))) in agreed:
            return case, "agrees", []
        pair = pools.pop()
        try:
            ours, theirs = (reader.read(case) for reader in pair)
        finally:
            pools.append(pair)
        return (case, *judge(case, ours, theirs))

    table: defaultdict[str, Counter[str]] = defaultdict(Counter)
    messages: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    out = arguments.json.open("w") if arguments.json else None
    with ThreadPoolExecutor(arguments.jobs) as threads:
        for case, verdict, reasons in threads.map(run, cases):
            path = str(case.path.relative_to(arguments.folder))
            table[case.format][verdict] += 1
            if verdict in SHOWN:
                print(
                    f"{verdict.upper():8} {case.format} {path}", *(f"    {reason}" for reason in reasons[:6]), sep="\n"
                )
            for reason in reasons if verdict not in SHOWN else ():
                messages[case.format, verdict][penstock_side.generic(reason)] += 1
            if out:
                row = {"format": case.format, "path": path, "verdict": verdict, "reasons": reasons}
                print(json.dumps(row), file=out, flush=True)
    for (kind, verdict), counted in sorted(messages.items()):
        print(f"\n{kind}, {verdict}:", *(f"{count:6} {text}" for text, count in counted.most_common(40)), sep="\n")
    print("\n| format | cases |", " | ".join(VERDICTS), "|\n|---|" + "---|" * (len(VERDICTS) + 1))
    for kind, counted in sorted(table.items()):
        print(f"| {kind} | {counted.total()} |", " | ".join(str(counted[verdict]) for verdict in VERDICTS), "|")


if __name__ == "__main__":
    main()
