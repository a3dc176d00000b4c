# SPDX-License-Identifier: Apache-2.0
"""Reader of IOR's output (table, JSON or CSV; one row per iteration) and of mdtest's rate summary.

Does not judge the figures. The tables are meant for people, and their columns differ between versions. Therefore, the
reader finds columns by their headings.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.bench.rows import End, Latency, Row
from penstock.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "looks_like_ior",
    "looks_like_ior_csv",
    "looks_like_ior_json",
    "looks_like_mdtest",
    "parse_ior",
    "parse_ior_csv",
    "parse_ior_json",
    "parse_mdtest",
]

_MIB = 1 << 20
_HEAD = re.compile(r"^\s*access\s+bw\(MiB/s\)")
_CSV_HEAD = re.compile(r"^access,bw\(MiB/s\),.*$", re.MULTILINE)
# Columns of the table, mapped to their names in the JSON output.
_COLUMNS = {
    "access": "access",
    "bwMiB": "bw(MiB/s)",
    "iops": "IOPS",
    "latency": "Latency(s)",
    "blockKiB": "block(KiB)",
    "xferKiB": "xfer(KiB)",
    "totalTime": "total(s)",
}
# Suffixes that IOR -b and mdtest -w accept. All are powers of two.
_SHORT = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_MDTEST = {
    "Directory creation": "MKDIRS",
    "Directory stat": "STATDIRS",
    "Directory removal": "RMDIRS",
    "File creation": "WRITE",
    "File stat": "STAT",
    "File read": "READ",
    "File removal": "RMFILES",
}
# Max, min, mean and standard deviation over the iterations. If the table has per-rank figures, the max, min and mean of
# these figures come first.
_RATE = re.compile(r"^\s*(\w+ \w+)\s*:?(?:\s+[\d.]+){2,5}\s+([\d.]+)\s+[\d.]+\s*$")
_LAUNCHED = re.compile(r"^\s*(mdtest\S*) was launched with (\d+) total task\(s\) on (\d+) node", re.MULTILINE)


def looks_like_ior(text: str) -> bool:
    """Whether a text contains IOR's results table."""
    return "MPI Coordinated Test of Parallel I/O" in text or any(_HEAD.match(line) for line in text.splitlines()[:400])


def looks_like_ior_json(text: str) -> bool:
    """Whether a text contains the output of IOR with -O summaryFormat=JSON; warnings may precede it."""
    return '"Command line"' in text and '"tests"' in text and '"Began"' in text


def looks_like_ior_csv(text: str) -> bool:
    """Whether a text contains the output of IOR with -O summaryFormat=CSV; warnings may precede it."""
    return _CSV_HEAD.search(text) is not None


def looks_like_mdtest(text: str) -> bool:
    """Whether a text contains mdtest's output."""
    return _LAUNCHED.search(text) is not None


def _whole(text: str | None, place: str) -> int | None:
    if text is None:
        return None
    try:
        return max(1, int(text))
    except ValueError:
        raise Corrupt(f"{place}: {text!r} is not a whole number", where=place) from None


def _number(text: str, place: str) -> float | None:
    if text in ("-", "NA"):
        return None
    try:
        value = float(text)
    except ValueError:
        raise Corrupt(f"{place}: {text!r} is not a number", where=place) from None
    if not 0 <= value < 1e30:
        raise Corrupt(f"{place}: {text} is out of range", where=place)
    return value


def parse_ior(text: str, place: str) -> list[Row]:
    """Parse IOR's table into rows. The text may contain several runs.

    Raises:
        Corrupt: The table is invalid.
    """
    return list(_runs(text, place))


def _runs(text: str, place: str) -> Iterator[Row]:
    options: dict[str, str] = {}
    version, command, began = "IOR", "", ""
    heads: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        at = f"{place}, line {number}"
        if line.lstrip().startswith("IOR-"):
            version, options, heads = line.split(":")[0].strip(), {}, []
        elif _HEAD.match(line):
            heads = line.split()
        elif heads and (values := line.split()) and values[0] in ("write", "read") and len(values) == len(heads):
            yield _ior_row(dict(zip(heads, values, strict=True)), options, f"{version} {command}".strip(), began, at)
        elif line.startswith("Summary of all tests"):
            heads = []
        elif not heads and " : " in f"{line} ":
            name, _, value = line.partition(":")
            options[name.strip()] = value.strip()
            command = value.strip() if name.strip() == "Command line" else command
            began = value.strip() if name.strip() == "Began" else began


def parse_ior_json(text: str, place: str) -> list[Row]:
    """Parse IOR's JSON into rows, one for each operation of each iteration.

    Raises:
        Corrupt: The JSON is invalid, or lacks IOR's tests and their results.
    """
    try:
        document, _ = json.JSONDecoder().raw_decode(text[text.index("{") :])
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{place} is not valid IOR JSON output: {error}", where=place) from None
    rows = []
    for number, test in enumerate(_tables(document.get("tests"), f"{place}: `tests`")):
        at = f"{place}, test {number}"
        options = test.get("Options")
        if not isinstance(options, dict):
            raise Corrupt(f"{at}: `Options` is missing", where=place)
        repeats: Counter[str] = Counter()
        for result in _tables(test.get("Results"), f"{at}: `Results`"):
            cells = {column: str(result[name]) for name, column in _COLUMNS.items() if name in result}
            access = cells.get("access", "")
            if access not in ("write", "read"):
                continue
            cells["iter"] = str(repeats[access])
            repeats[access] += 1
            source = f"IOR-{document.get('Version', '')} {document.get('Command line', '')}"
            began = str(test.get("StartTime", document.get("Began", "")))
            rows.append(_ior_row(cells, {name: str(value) for name, value in options.items()}, source, began, at))
    return rows


def _tables(found: Any, place: str) -> list[dict[str, Any]]:
    if isinstance(found, list):  # IOR 3 puts the results of each iteration into a separate list
        found = [each for part in found for each in (part if isinstance(part, list) else [part])]
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise Corrupt(f"{place} must be a list of JSON objects", where=place)
    return found


def parse_ior_csv(text: str, place: str) -> list[Row]:
    """Parse IOR's CSV into rows. The CSV contains neither the command nor the number of nodes, segments and files, so
    one host is assumed.

    Raises:
        Corrupt: A value is not a number.
    """
    rows: list[Row] = []
    heads: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if _CSV_HEAD.match(line):
            heads = line.replace("Latency,", "Latency(s),").split(",")
        elif heads and (values := next(csv.reader([line]), [])) and values[0] in ("write", "read"):
            at = f"{place}, line {number}"
            if len(values) != len(heads):
                raise Corrupt(f"{at}: {len(values)} columns, but the header has {len(heads)}", where=place)
            cells = dict(zip(heads, values, strict=True))
            row = _ior_row(cells, {"tasks": cells.get("numTasks", "1")}, "IOR", "", at)
            rows.append(msgspec.structs.replace(row, file_size_bytes=None))
    return rows


def _ior_row(cells: dict[str, str], options: dict[str, str], source: str, began: str, place: str) -> Row:
    tasks = _whole(options.get("tasks"), place) or 1
    each = _whole(options.get("clients per node"), place) or tasks
    hosts = _whole(options.get("nodes"), place) or max(1, tasks // each)
    block = _number(cells.get("block(KiB)", "-"), place)
    transfer = _number(cells.get("xfer(KiB)", "-"), place)
    segments = _whole(options.get("segments"), place) or 1
    own_file = options.get("access") == "file-per-process"
    one = int(block * 1024 * segments) if block else None
    rate = _number(cells.get("bw(MiB/s)", "-"), place)
    time_s = _number(cells.get("total(s)", "-"), place)
    if time_s == 0 and rate and one:  # IOR prints four decimals, so a very short time is printed as 0
        time_s = one * tasks / (rate * _MIB)
    if rate is None or not time_s:
        raise Corrupt(f"{place}: a result has no rate or no time", where=place)
    latency = _number(cells.get("Latency(s)", "-"), place)
    command = source.partition(" ")[2]
    return Row(
        operation=cells["access"].upper(),
        path_type="dir" if own_file else "file",
        hosts=hosts,
        threads=max(1, tasks // hosts),
        files=1 if own_file else None,
        file_size_bytes=one if own_file or one is None else one * tasks,
        block_size_bytes=int(transfer * 1024) if transfer else None,
        direct="odirect" in command.lower() or " -B" in command,
        random=options.get("ordering in a file") == "random" or " -z" in command,
        last=End(
            time_s=time_s,
            bytes=rate * _MIB * time_s,
            bytes_per_s=rate * _MIB,
            ios_per_s=_number(cells.get("IOPS", "-"), place),
            entries=float(tasks) if own_file else None,
        ),
        io_latency=Latency(mean_us=latency * 1e6) if latency else None,
        repeat=int(_number(cells.get("iter", "0"), place) or 0),
        created=began,
        source=source.partition(" ")[0],
        raw={"command": command} if command else {},
    )


def _flag(command: list[str], name: str) -> int:
    """Return the size after a flag in mdtest's command; 0 without the flag."""
    if name not in command[:-1]:
        return 0
    found = re.fullmatch(r"(\d+)([kmgt]?)", command[command.index(name) + 1], re.IGNORECASE)
    return int(found[1][:18]) * _SHORT[found[2].lower()] if found else 0


def parse_mdtest(text: str, place: str) -> list[Row]:
    """Parse mdtest's summary into rows, with the mean over its iterations. An operation that did not run (0.000) has no
    row.

    Raises:
        Corrupt: The text has no summary.
    """
    runs = list(_LAUNCHED.finditer(text))
    if not runs or "SUMMARY rate" not in text:
        raise Corrupt(f"{place} is not complete mdtest output: the summary of rates is missing", where=place)
    ends = [*(run.start() for run in runs[1:]), len(text)]
    return [
        row for run, end in zip(runs, ends, strict=True) for row in _mdtest_run(run, text[run.start() : end], place)
    ]


def _mdtest_run(run: re.Match[str], text: str, place: str) -> Iterator[Row]:
    tasks, hosts = max(1, int(run[2][:9])), max(1, int(run[3][:9]))
    line = next((line for line in text.splitlines() if line.lstrip().startswith("Command line used:")), "")
    try:
        command = shlex.split(line.partition(":")[2])
    except ValueError:
        command = line.split()
    files = re.search(r"^\s*\d+ tasks, (\d+) files", text, re.MULTILINE)
    each = max(1, int(files[1][:15]) // tasks) if files else None
    # The table of rates may be followed by a table of times with the same row names.
    for shown in text.partition("SUMMARY rate")[2].partition("SUMMARY ")[0].splitlines():
        found = _RATE.match(shown)
        if not found or found[1] not in _MDTEST:
            continue
        rate = _number(found[2], place)
        if not rate:
            continue
        operation = _MDTEST[found[1]]
        size = _flag(command, {"WRITE": "-w", "READ": "-e"}.get(operation, ""))
        done = float(each * tasks) if each else None
        yield Row(
            operation=operation,
            hosts=hosts,
            threads=max(1, tasks // hosts),
            files=each,
            file_size_bytes=size,
            block_size_bytes=size or None,
            last=End(
                time_s=done / rate if done else 1.0, entries=done, entries_per_s=rate, bytes_per_s=rate * size or None
            ),
            source=run[1],
            raw={"command": " ".join(command)} if command else {},
        )
