# SPDX-License-Identifier: Apache-2.0
"""Tests elbencho's CSV: its columns, unusual files, and a round trip without changes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.bench.importers.elbencho import COLUMNS, parse, render
from penstock.bench.rows import End, Row
from penstock.bench.verdict import classify
from penstock.errors import Corrupt

# One line per phase, as version 2.1 writes it: fields that do not apply are empty, and the command is not quoted as CSV
# requires.
_COMMAND = '"elbencho" "-w" "-t" "8" "--hosts" "n1 n2" "/mnt/pool" '


def line(**fields):
    filled = {
        "ISO date": "2026-03-09T15:41:14.123-0800",
        "path type": "dir",
        "paths": "1",
        "hosts": "2",
        "threads": "8",
        "dirs": "1",
        "files": "1600",
        "file size": "1048576",
        "block size": "1048576",
        "direct IO": "1",
        "random": "0",
        "IO depth": "1",
        "shared paths": "1",
        "truncate": "0",
        "version": "2.1-0",
        "command": _COMMAND,
        **fields,
    }
    return ",".join(filled.get(column, "") for column in COLUMNS)


def phase(operation, first=(0, 0, 0), last=(0, 0, 0), **more):
    fields = {"operation": operation, **more}
    for end, (ms, entries, mib) in (("[first]", first), ("[last]", last)):
        fields |= {f"time ms {end}": str(ms), f"entries {end}": str(entries), f"MiB {end}": str(mib)}
        if ms:
            fields |= {
                f"entries/s {end}": str(round(entries * 1000 / ms)),
                f"IOPS {end}": str(round(entries * 1000 / ms)),
                f"MiB/s {end}": str(round(mib * 1000 / ms)),
                f"CPU% {end}": "37",
            }
    return line(**fields)


HEAD = ",".join(COLUMNS)
WRITE = phase(
    "WRITE",
    (9_000, 24_000, 24_000),
    (10_000, 25_600, 25_600),
    **{"Ent lat us [min]": "912", "Ent lat us [avg]": "5811", "Ent lat us [max]": "90211"},
)


def text(*lines):
    return "\n".join([HEAD, *lines]) + "\n"


def test_columns_are_elbencho_s_in_its_order():
    assert len(COLUMNS) == 55
    assert COLUMNS[16:19] == ["operation", "time ms [first]", "time ms [last]"]
    assert COLUMNS[-18:-15] == [
        "rwmix read entries/s [first]",
        "rwmix read entries/s [last]",
        "rwmix read IOPS [first]",
    ]
    assert COLUMNS[-2:] == ["version", "command"]


def test_parse_phase_has_both_ends_and_latencies():
    (row,) = parse(text(WRITE), "a.csv")
    assert (row.operation, row.hosts, row.threads, row.workers, row.direct) == ("WRITE", 2, 8, 16, True)
    assert (row.first.time_s, row.last.time_s, row.last.entries, row.last.cpu) == (9.0, 10.0, 25_600, 0.37)
    assert row.last.bytes_per_s == 2560 * (1 << 20)
    assert (row.entry_latency.min_us, row.entry_latency.mean_us, row.io_latency) == (912, 5811, None)


def test_parse_rate_rounded_to_nothing_comes_from_count_and_time():
    slow = phase("READ", (90_000, 30, 30), (100_000, 32, 32)).replace(",0,0,0,0,0,0,", ",0,0,0,0,0,0,")
    (row,) = parse(text(slow), "a.csv")
    assert row.last.entries_per_s == pytest.approx(0.32)


def test_parse_files_put_behind_each_other_are_one():
    assert [r.operation for r in parse(text(WRITE) + text(phase("READ", last=(1000, 5, 5))), "a.csv")] == [
        "WRITE",
        "READ",
    ]


def test_parse_phase_ended_by_a_time_limit_has_no_entries():
    fields = {"time ms [first]": "45247", "time ms [last]": "45253", "MiB [last]": "218627", "MiB/s [last]": "4831"}
    (row,) = parse(text(line(operation="WRITE", **fields)), "a.csv")
    assert row.last.entries_per_s is None
    assert row.last.bytes_per_s == pytest.approx(4831 * (1 << 20), rel=1e-3)


def test_parse_table_copied_from_a_paper_has_rates_alone():
    (row,) = parse("operation,hosts,threads,file size,MiB/s [last]\nREAD,4,8,256k,1000\n", "a.csv")
    assert (row.file_size_bytes, row.last.time_s, row.last.bytes_per_s) == (262_144, 0.0, 1000 * (1 << 20))


def test_parse_readers_of_a_mix_are_a_row_of_their_own():
    mixed = phase("WRITE", last=(1000, 700, 700), **{"rwmix read MiB [last]": "300", "rwmix read MiB/s [last]": "300"})
    rows = parse(text(mixed), "a.csv")
    assert [r.operation for r in rows] == ["WRITE", "RWMIX"]
    assert rows[1].last.bytes_per_s == 300 * (1 << 20)


def test_parse_older_file_with_fewer_columns_is_read():
    keep = [c for c in COLUMNS if not c.startswith("rwmix") and c != "command"]
    values = dict(zip(COLUMNS, WRITE.split(","), strict=True))
    (row,) = parse(",".join(keep) + "\n" + ",".join(values[c] for c in keep) + "\n", "a.csv")
    assert row.last.entries == 25_600


@pytest.mark.parametrize(
    "lines", [[WRITE], [phase("MKDIRS", (2, 8, 0), (5, 16, 0)), WRITE, phase("SYNC", last=(3, 0, 0))]]
)
def test_file_comes_out_as_it_went_in(lines):
    assert render(parse(text(*lines), "a.csv")) == text(*lines)


@pytest.mark.parametrize(
    "operation", ["READ", "WRITE", "READ+s", "WRITE+s", "WRITE+s+r", "RWMIX30", "RWMIX70+s", "MIX-T4", "NET"]
)
def test_operation_of_elbencho_s_options_moves_bytes(operation):
    """elbencho's options appear in the operation's name: `+s` adds stats, `+r` reads, `RWMIX` mixes by percentage."""
    lines = [phase(operation, last=(10_000, 400 * t, 400 * t), threads=str(t)) for t in (1, 4, 16)]
    cells = classify(parse(text(*lines), "a.csv")).cells
    assert [(c.operation, c.threads, round(c.bytes_per_s / (1 << 20))) for c in cells] == [
        (operation, t, 40 * t) for t in (1, 4, 16)
    ]


def test_render_mix_of_ours_is_named_by_its_share_of_reads():
    mixed = [
        Row(operation=name, path_type="file", last=End(time_s=1.0, ios=n, ios_per_s=n, bytes=n * 4096.0))
        for name, n in (("WRITE", 300.0), ("RWMIX", 700.0))
    ]
    assert [r.operation for r in parse(render(mixed), "a.csv")] == ["RWMIX70", "RWMIX"]


@pytest.mark.parametrize(
    ("broken", "output"),
    [
        ("date,rate\n1,2\n", "not an elbencho CSV"),
        (text(line(operation="READ")), "READ has neither a time nor a rate"),
        (text(line(**{"operation": "READ", "time ms [last]": "soon"})), "'soon', not a number"),
        (text(line(**{"operation": "READ", "time ms [last]": "nan"})), "not a finite number"),
        (text(line(**{"time ms [last]": "3"})), "the operation is missing"),
    ],
)
def test_parse_broken_file_is_told_with_its_place(broken, output):
    with pytest.raises(Corrupt, match=output) as result:
        parse(broken, "a.csv")
    assert "a.csv" in str(result.value)


@settings(deadline=None)
@given(st.text(max_size=400), st.lists(st.text(max_size=40), max_size=60))
def test_prop_parse_any_text_ends_in_rows_or_one_error(tail, fields):
    for given_text in (tail, HEAD + "\n" + tail, HEAD + "\n" + ",".join(fields) + "\n"):
        try:
            rows = parse(given_text, "a.csv")
        except Corrupt:
            continue
        render(rows)


def cut(value):
    """elbencho uses integer division: every figure is truncated, not rounded."""
    return str(int(value))


@settings(deadline=None)
@given(
    st.integers(1_000, 10**10),
    st.floats(0, 1),
    st.integers(1, 10**9),
    st.sampled_from([0, 4096, 262_144, 1 << 20, 67_108_864]),
    st.sampled_from([4096, 1 << 20]),
    st.floats(0, 100),
    st.sampled_from(["dir", "file", "blockdev", "bucket"]),
)
def test_prop_line_as_elbencho_counts_it_comes_out_as_it_went_in(last_us, part, files, size, block, cpu, kind):
    """Makes a line from microseconds, files and bytes with elbencho's arithmetic."""
    files = min(files, last_us * 10**9 // max(size, 1))  # at most 1 PB/s, so that a double is exact to the byte
    fields = {"operation": "READ", "path type": kind, "file size": str(size), "block size": str(block)}
    for end, us, done in (("[first]", max(1, int(last_us * part)), int(files * part)), ("[last]", last_us, files)):
        counts = {"entries": done, "IOPS": done * max(1, size // block), "MiB": done * size}
        fields |= {f"time ms {end}": cut(us / 1000), f"CPU% {end}": cut(cpu)}
        fields |= {f"entries/s {end}": str(counts["entries"] * 10**6 // us), f"entries {end}": str(done)}
        if size:
            fields[f"IOPS {end}"] = str(counts["IOPS"] * 10**6 // us)
            fields |= {
                f"MiB/s {end}": str(counts["MiB"] * 10**6 // us // (1 << 20)),
                f"MiB {end}": str(counts["MiB"] >> 20),
            }
    result = text(line(**fields))
    assert render(parse(result, "a.csv")) == result


figure = st.one_of(st.none(), st.integers(0, 10**12))


@settings(deadline=None)
@given(
    st.sampled_from(["READ", "WRITE", "STAT", "MKDIRS"]), st.integers(1, 10**7), figure, figure, st.integers(1, 4096)
)
def test_prop_rows_survive_the_way_out_and_in(operation, ms, entries, mib, threads):
    shown = {"entries [last]": entries, "MiB [last]": mib}
    fields = {name: str(value) for name, value in shown.items() if value is not None}
    once = text(line(**{"operation": operation, "threads": str(threads), "time ms [last]": str(ms), **fields}))
    rendered = render(parse(once, "a.csv"))
    assert parse(rendered, "a.csv")[0].last.entries == entries
    assert render(parse(rendered, "a.csv")) == rendered
