# SPDX-License-Identifier: Apache-2.0
"""Tests figures of merit, sweep files and the statistics of scaling. Issue 16, point 6."""

from __future__ import annotations

import math
import os
import random
import re
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.app.cells import Cell, Run
from penstock.bench.app.figure import Figure, parse_figure, read_figure, read_worlds
from penstock.bench.app.presets import PRESETS, prepare
from penstock.bench.app.spec import Spec, Variant, load_spec, variants_of
from penstock.bench.app.statistics import amdahl, gustafson, paired_ratio, share_of_rounds
from penstock.bench.app.summary import summarise
from penstock.bench.app.torchrun import torchrun_argv
from penstock.bench.student_t import student_quantile
from penstock.cli.bench.app_output import print_summary
from penstock.cluster.containers import command_line_prefix, folder_in_container, make_mount_points
from penstock.errors import ConfigError, NotFound, RankFailed
from penstock.protocols import Node

_GROMACS = "Performance:      123.456        0.194\n"
_NS = r"ns/day=Performance:\s+([0-9.]+)"


def test_figure_reads_the_group_of_the_named_expression():
    assert read_figure(parse_figure(_NS), ["", _GROMACS]) == 123.456
    assert parse_figure("a=b=(1)").pattern == "b=(1)"


@pytest.mark.parametrize("text", ["Performance", "=x", " =x", "name=", "ns/day=("])
def test_figure_that_is_not_name_and_expression_is_refused(text):
    with pytest.raises(ConfigError, match="figure"):
        parse_figure(text)


def test_figure_that_matches_nothing_is_a_clear_error():
    with pytest.raises(ConfigError, match=r"figure ns/day: .* matches nothing in 11 characters") as caught:
        read_figure(parse_figure(_NS), ["hello", " world"])
    assert "by hand" in caught.value.hint


def test_figure_that_matches_twice_is_an_error_until_pick_allows_it():
    output = [_GROMACS + _GROMACS.replace("123.456", "100")]
    with pytest.raises(ConfigError, match=r"matches 2 times: 123.456, 100") as caught:
        read_figure(parse_figure(_NS), output)
    assert "--pick" in caught.value.hint
    values = {pick: read_figure(parse_figure(_NS, pick), output) for pick in ("first", "last", "mean", "sum")}
    assert values == pytest.approx({"first": 123.456, "last": 100.0, "mean": 111.728, "sum": 223.456})


def test_figure_on_every_rank_points_to_separate_jobs():
    with pytest.raises(ConfigError, match="matches 2 times, on 2 ranks") as caught:
        read_figure(parse_figure(_NS), [_GROMACS, _GROMACS])
    assert "one MPI job" in caught.value.hint


@pytest.mark.parametrize("text", ["x: nan", "x: -1", "x: 0", "x: inf", "x: two", "x: "])
def test_figure_that_is_not_a_positive_number_is_refused(text):
    with pytest.raises(ConfigError, match=r"not a number|finite number above 0"):
        read_figure(parse_figure("x=x: (.*)"), [text])


@given(st.floats(1e-6, 1e12), st.lists(st.sampled_from(["step 3", "", "rate:", "x"]), max_size=4))
def test_figure_finds_its_number_between_other_lines(value, lines):
    output = "\n".join([*lines, f"the rate is {value!r} now", *lines])
    assert read_figure(Figure("r", r"^the rate is (\S+) now$"), [output]) == value


def test_worlds_are_those_that_the_ranks_print():
    assert read_worlds(r"on (\d+) procs", ["on 1 procs\n", "on 1 procs\n"]) == [1, 1]
    assert read_worlds("on .* procs", ["nothing"]) == []
    with pytest.raises(ConfigError, match="not a whole number"):
        read_worlds("on (.*) procs", ["on two procs"])


# ---------------------------------------------------------------- specs


def _spec(**given):
    return Spec(**{"command": ("x",), **given})


def test_sizes_spread_ranks_over_nodes():
    shown = lambda spec: [(s.ranks, s.nodes) for s in spec.sizes(spec.variant[0])]  # noqa: E731
    assert shown(_spec(ranks=(4, 1, 2))) == [(1, 1), (2, 1), (4, 1)]
    assert shown(_spec(ranks=(1, 2, 4, 8), ranks_per_node=2)) == [(1, 1), (2, 1), (4, 2), (8, 4)]
    assert shown(_spec(ranks=(3, 4, 6), ranks_per_node=2)) == [(3, 3), (4, 2), (6, 3)]
    assert shown(_spec(ranks=(2, 4), node_counts=(1, 2))) == [(2, 1), (2, 2), (4, 1), (4, 2)]
    assert shown(_spec(ranks=(1, 4), node_counts=(2,))) == [(4, 2)]
    with pytest.raises(ConfigError, match="none of 3 can be spread evenly over 2 nodes"):
        _spec(ranks=(3,), node_counts=(2,)).sizes(Variant(name="native"))


def test_placeholders_are_replaced_in_each_argument():
    spec = _spec(
        command=("md", "-n={ranks}/{nodes}", "{size}", "{ranks_per_node} {x}"), ranks=(2, 8), ranks_per_node=4, size=10
    )
    weak = Spec(command=spec.command, ranks=(2, 8), ranks_per_node=4, size=10, scaling="weak")
    small, large = spec.sizes(spec.variant[0])
    assert spec.argv(large, spec.variant[0]) == ["md", "-n=8/2", "10", "4 {x}"]
    assert weak.argv(small, spec.variant[0])[2] == "10"
    assert weak.argv(large, spec.variant[0])[2] == "40"
    assert _spec(command=("{size}",), size=0.5).argv(small, spec.variant[0]) == ["0.5"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"command": ()}, "command"),
        ({"ranks": ()}, "ranks"),
        ({"ranks": (2, 2)}, "each given only once"),
        ({"ranks": (0,)}, "at least 1"),
        ({"repeats": 0}, "repeats"),
        ({"timeout_s": 0}, "timeout-s"),
        ({"variant": (Variant(name="a"), Variant(name="a"))}, "all names must differ"),
        ({"variant": ()}, "at least one"),
        ({"world": "on ("}, "world: .* is not a regular expression"),
    ],
)
def test_spec_that_is_not_valid_names_its_key(given, message):
    with pytest.raises(ConfigError, match=message):
        _spec(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"container": "image.sif"}, "is not RUNTIME:IMAGE"),
        ({"container": "lxc:image"}, "is not RUNTIME:IMAGE"),
        ({"bind": "socket"}, "bind: `socket`"),
        ({"container_bind": ("/a:/b",)}, "need the key container"),
        ({"way": "inside"}, "need the key container"),
        ({"ranks_per_node": 0}, "ranks-per-node"),
    ],
)
def test_variant_that_is_not_valid_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        Variant(name="v", **given)


def test_variants_of_flags_cross_ways_and_bindings():
    made = variants_of("charliecloud:/i", ("host-mpirun", "inside"), ("none", "core"), container_bind=("/a:/b",))
    assert [(v.name, v.bind, v.way, v.container is not None) for v in made] == [
        ("native, none", "none", "host-mpirun", False),
        ("charliecloud, host mpirun, none", "none", "host-mpirun", True),
        ("charliecloud, mpirun inside, none", "none", "inside", True),
        ("native, core", "core", "host-mpirun", False),
        ("charliecloud, host mpirun, core", "core", "host-mpirun", True),
        ("charliecloud, mpirun inside, core", "core", "inside", True),
    ]


def test_torchrun_starts_once_per_node_with_one_meeting_point():
    nodes = [Node("h1", "10.0.0.1"), Node("h2", "10.0.0.2")]
    argv = torchrun_argv(["python", "train.py"], nodes, 4)
    port = next(word for word in argv if word.startswith("--master-port="))
    assert 20000 <= int(port.partition("=")[2]) < 32000
    options = ["--nnodes=2", "--node-rank={rank}", "--master-addr=10.0.0.1", port, "--nproc-per-node=4", "--no-python"]
    assert argv[-8:] == [*options, "python", "train.py"]
    assert "--standalone" in torchrun_argv(["x"], nodes[:1], 2)
    for python_program in (["train.py", "--steps", "5"], ["-m", "package.train"]):
        argv = torchrun_argv(python_program, nodes, 4)
        assert "--no-python" not in argv
        assert argv[-len(python_program) :] == python_program


@pytest.mark.parametrize(
    ("variants", "given", "has_copies"),
    [
        ([{"container": "charliecloud:/i"}], {}, False),
        ([{"container": "podman:i"}], {}, False),
        ([{"container": "charliecloud:/i", "way": "inside"}], {}, True),
        ([{"container": "pyxis:i"}], {"launcher": "slurm"}, True),
        ([{"container": "charliecloud:/i"}], {"launcher": "local"}, True),
        ([{"container": "charliecloud:/i", "env": {"OMPI_MCA_smsc": "xpmem"}}], {}, True),
        ([{"container": "charliecloud:/i"}], {"set": {"args": "--mca btl_vader_single_copy_mechanism cma"}}, True),
    ],
)
def test_direct_copies_are_off_if_ranks_have_containers_of_their_own(variants, given, has_copies, monkeypatch):
    made = [Variant(name="native"), *(Variant(name=str(at), **each) for at, each in enumerate(variants))]
    spec = _spec(variant=tuple(made), ranks=(2,), **given)
    names = {"OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMPI_MCA_smsc": "^cma"}
    assert spec.without_direct_copies() == ({} if has_copies else names)
    cells = [Cell(variant=v.name, ranks=2, nodes=1, problem_size=1, mpi="Open MPI v4.1.4") for v in made]
    assert any("direct copies" in note for note in summarise(spec, cells).notes) is not has_copies
    monkeypatch.setenv("OMPI_MCA_smsc", "cma")
    assert spec.without_direct_copies() == {}


def test_folder_in_container_follows_binds_and_the_runtimes_own_mounts(tmp_path, monkeypatch):
    image = tmp_path / "image"
    (image / "home").mkdir(parents=True)
    (image / "out").symlink_to("/mnt")
    monkeypatch.setenv("TMPDIR", "/tmp/job7")

    def seen(folder, *binds, container=f"charliecloud:{image}", creates=True):
        return folder_in_container(container, binds, folder, creates_mount_point=creates)

    assert seen("/data/a", "/data:/in") == ((), "/in/a")
    assert seen("/in/a", "/data:/in") is None
    assert seen("/tmp/job7/a") == ((), "/tmp/a")
    assert seen("/tmp/other") is None
    assert seen("/dev/shm/a") == ((), "/dev/shm/a")
    assert seen("/home") == (("/home:/home",), "/home")
    assert seen("/scratch/a") == (("/scratch/a:/scratch/a",), "/scratch/a")
    assert seen("/scratch/a", creates=False) is None
    assert seen("/out/a") is None, "a link of the image points to this machine's folder"
    assert seen("/scratch/a", container="charliecloud:name") is None
    assert seen("/tmp/other", container="docker:i") == (("/tmp/other:/tmp/other",), "/tmp/other")
    assert not (image / "scratch").exists()
    make_mount_points(f"charliecloud:{image}", ("/scratch/a:/scratch/a", "/x:/out/new"))
    assert (image / "scratch/a").is_dir()
    assert not Path("/mnt/new").exists()


def test_command_line_prefix_names_variables_and_never_their_values():
    prefix = command_line_prefix("docker:md:1", way="host-mpirun", binds=("/a:/b",), env=("TOKEN",), gpus=True)
    assert {"--env=TOKEN", "--volume=/a:/b", "--gpus=all"} <= set(prefix.argv)
    assert prefix.argv[-1] == "md:1"
    inside = command_line_prefix("apptainer:md.sif", way="inside", binds=(), env=(), gpus=False)
    assert inside.is_outermost
    for container in ("docker:md", "pyxis:md"):
        with pytest.raises(ConfigError, match="does not support mpirun inside"):
            command_line_prefix(container, way="inside", binds=(), env=(), gpus=False)


def test_sweep_file_has_the_flags_as_keys(tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text(
        'command = ["md", "{size}"]\nlauncher = "mpi"\nranks = [1, 2]\nranks-per-node = 2\ntimeout = "5min"\n'
        "[figure]\nname = 'ns/day'\npattern = 'P: (\\d+)'\nkind = 'step-rate'\n"
        '[[variant]]\nname = "far"\nbind = "cpus:0"\n[variant.env]\nX = "1"\n[[variant]]\nname = "near"\nranks-per-node = 1\n'
    )
    spec = load_spec(file)
    assert (spec.timeout_s, spec.ranks_per_node, spec.figure.kind) == (300.0, 2, "step-rate")
    assert [(v.name, v.bind, v.env, v.ranks_per_node) for v in spec.variant] == [
        ("far", "cpus:0", {"X": "1"}, None),
        ("near", None, {}, 1),
    ]


def test_sweep_file_takes_a_figure_as_text_and_a_preset(tmp_path, lmp):
    file = tmp_path / "sweep.toml"
    file.write_text("command = ['x']\nfigure = 'r=rate (\\d+)'\nmpi-check = false\n")
    spec = load_spec(file)
    assert (spec.figure.name, spec.figure.pattern, spec.checks_mpi) == ("r", r"rate (\d+)", False)
    assert (spec.launcher, spec.ranks) == ("mpi", (1, 2))
    file.write_text("preset = 'lammps-lj'\nsize = 2\nset = { program = 'mpirun.openmpi' }\n")
    spec = load_spec(file, preset_folder=tmp_path)
    assert (spec.command[0], spec.figure.name, spec.size) == ("lmp", "timesteps/s", 2)
    assert (tmp_path / "in.lj-melt").is_file()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "command"),
        ("preset = 'x'", "preset: `x` is not one of lammps-lj"),
        ("command = ['x']\nrank = [1]", "rank"),
        ("command = 'x'", "command"),
        ("command = ['x']\nranks = ['a']", "ranks"),
        ("command = [", "sweep.toml"),
        ("command = ['x']\n[figure]\nname = 'a'\npattern = '('", "regular expression"),
        ("command = ['x']\n[[variant]]\nname = 'a'\nway = 'outside'", "way"),
    ],
)
def test_sweep_file_that_is_not_valid_is_named(tmp_path, text, message):
    file = tmp_path / "sweep.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_spec(file)
    assert "sweep.toml" in str(caught.value)
    with pytest.raises(NotFound, match="does not exist"):
        load_spec(tmp_path / "none.toml")


# ---------------------------------------------------------------- statistics


@given(st.floats(0, 1), st.lists(st.integers(1, 64), min_size=2, max_size=6, unique=True))
def test_fits_recover_the_serial_share(share, counts):
    times = [(float(q), 7.0 * (share + (1 - share) / q)) for q in counts]
    assert amdahl(times) == pytest.approx(share, abs=1e-6)
    scaled = [(float(q), q - share * (q - 1)) for q in {1, *counts}]
    assert gustafson(scaled) == pytest.approx(share, abs=1e-9)


@pytest.mark.parametrize("count", [1, 3])
def test_shares_are_limited_for_faster_than_linear_and_for_slower_runs(count):
    for points, fit, share in (
        ({1: 10.0, 2: 4.0}, amdahl, 0.0),
        ({1: 10.0, 2: 14.0}, amdahl, 1.0),
        ({1: 1.0, 2: 2.5}, gustafson, 0.0),
    ):
        found = share_of_rounds([points] * count, fit)
        assert found.value == pytest.approx(share)
        assert (found.low is None) == (count == 1)


def test_student_quantile_agrees_with_tables():
    table = {1: 12.706, 4: 2.776, 10: 2.228, 11: 2.201, 15: 2.131, 30: 2.042, 120: 1.980}
    for freedom, value in table.items():
        assert student_quantile(freedom) == pytest.approx(value, abs=0.003)
    assert all(a > b for a, b in pairwise(student_quantile(n) for n in range(1, 40)))


def test_paired_ratio_cancels_drift():
    drift = [1.0, 1.5, 2.5, 4.0]
    found = paired_ratio([2 * d for d in drift], drift)
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))
    single = paired_ratio([3.0], [2.0])
    assert (single.value, single.low, single.high) == (1.5, None, None)


def test_paired_interval_contains_the_truth_at_its_level():
    draw = random.Random(4)
    inside = 0
    for _ in range(400):
        logs = [draw.gauss(math.log(1.1), 0.05) for _ in range(4)]
        found = paired_ratio([math.exp(x) for x in logs], [1.0] * 4)
        inside += found.low <= 1.1 <= found.high
    assert 0.92 <= inside / 400 <= 0.98


@pytest.mark.parametrize("count", [3, 8])
@pytest.mark.parametrize("law", ["amdahl", "gustafson"])
def test_interval_of_a_share_contains_the_truth_at_its_level(law, count):
    draw = random.Random(1)
    inside = 0
    for _ in range(300):
        rounds = []
        for _ in range(count):
            noise = {q: math.exp(draw.gauss(0, 0.05)) for q in (1.0, 2.0, 4.0, 8.0)}
            if law == "amdahl":
                rounds.append({q: x * (0.1 + 0.9 / q) for q, x in noise.items()})
            else:
                rounds.append({q: (q - 0.1 * (q - 1)) * noise[1.0] / x for q, x in noise.items()})
        found = share_of_rounds(rounds, amdahl if law == "amdahl" else gustafson)
        inside += found.low <= 0.1 <= found.high
    assert 0.91 <= inside / 300 <= 0.98


# ---------------------------------------------------------------- summaries


def _measured(spec, value_of, noise=0.0):
    """Cells of a spec whose runs have the value `value_of(ranks, variant)`, with seeded noise."""
    draw = random.Random(3)
    cells = []
    for variant in spec.variant:
        for size in spec.sizes(variant):
            values = [value_of(size.ranks, variant.name) * draw.gauss(1, noise) for _ in range(spec.repeats)]
            runs = [Run(round=r, wall_s=1.0, value=v, cpus=("0",) * size.ranks) for r, v in enumerate(values)]
            cells.append(Cell(variant=variant.name, ranks=size.ranks, nodes=size.nodes, problem_size=1, runs=runs))
    return cells


@pytest.mark.parametrize(
    ("scaling", "kind", "value_of"),
    [
        ("strong", "total-rate", lambda ranks: 100 * ranks / (0.9 + 0.1 * ranks)),
        ("strong", "step-rate", lambda ranks: 100 * ranks / (0.9 + 0.1 * ranks)),
        ("strong", "seconds", lambda ranks: 0.1 + 0.9 / ranks),
        ("weak", "total-rate", lambda ranks: ranks - 0.1 * (ranks - 1)),
        ("weak", "step-rate", lambda ranks: (ranks - 0.1 * (ranks - 1)) / ranks),
        ("weak", "seconds", lambda ranks: ranks / (ranks - 0.1 * (ranks - 1))),
    ],
)
def test_summary_efficiency_and_fit_follow_the_law(scaling, kind, value_of):
    spec = _spec(ranks=(1, 2, 4), scaling=scaling, repeats=5, figure=Figure("f", "(x)", kind=kind))
    found = summarise(spec, _measured(spec, lambda ranks, _: value_of(ranks), noise=1e-4)).variants[0]
    wanted = {1: 1.0, 2: 1 / 1.1 if scaling == "strong" else 0.95, 4: 1 / 1.3 if scaling == "strong" else 0.925}
    assert {c.ranks: c.efficiency.value for c in found.cells} == pytest.approx(wanted, rel=1e-3)
    assert found.fit.law == ("Amdahl" if scaling == "strong" else "Gustafson")
    assert found.fit.serial_share.value == pytest.approx(0.1, abs=2e-3)
    assert found.fit.deviation < 0.01
    text = "\n".join(found.verdict)
    assert re.search(r"efficiency (76\.9|92\.5) % \(.* at 4 ranks, relative to 1", text)
    assert ("at most 10 times faster" in text or "at most 9.9" in text or "at most 10." in text) == (
        scaling == "strong"
    )


def test_summary_law_that_misses_says_so():
    spec = _spec(ranks=(1, 2, 4, 8), repeats=3, figure=Figure("f", "(x)", kind="seconds"))
    seconds = {1: 8.0, 2: 4.0, 4: 2.0, 8: 3.0}
    found = summarise(spec, _measured(spec, lambda ranks, _: seconds[ranks])).variants[0]
    text = "\n".join(found.verdict)
    assert "the fastest size is 4 ranks; 8 are slower" in text
    assert "Amdahl's law does not describe these times: it misses 4 ranks by 34.8 %" in text
    assert "at most" not in text
    assert "below 80.0 % from 8 ranks on" in text


@pytest.mark.parametrize(
    ("cost", "noise", "words"),
    [
        (1.0, 0.004, "no difference shown, ≤ "),
        (1.2, 0.004, "costs "),
        (0.8, 0.004, "saves "),
        (1.02, 0.1, "no difference"),
    ],
)
def test_summary_overhead_of_a_container_in_words(cost, noise, words):
    variants = variants_of("charliecloud:/i", ("host-mpirun",), ())
    spec = _spec(ranks=(2,), repeats=6, figure=Figure("f", "(x)", kind="seconds"), variant=variants)
    cells = _measured(spec, lambda _ranks, name: cost if name.startswith("charlie") else 1.0, noise=noise)
    [overhead] = summarise(spec, cells).overheads
    assert overhead.sentence.startswith(words)
    assert overhead.cost.low < cost - 1 < overhead.cost.high
    assert overhead.is_shown == (words in ("costs ", "saves "))


@pytest.mark.parametrize(("seconds", "most"), [((0.1, 9.0), "more than 1000 %"), ((1.0, 1.8, 0.9), "197.0 %")])
def test_summary_overhead_of_runs_that_differ_too_much_has_no_conclusion(seconds, most, capsys):
    variants = variants_of("charliecloud:/i", ("host-mpirun",), ())
    spec = _spec(ranks=(2,), repeats=len(seconds), figure=Figure("f", "(x)", kind="seconds"), variant=variants)
    cells = _measured(spec, lambda _ranks, _name: 1.0)
    cells[1].runs = [Run(round=at, wall_s=value, value=value) for at, value in enumerate(seconds)]
    summary = summarise(spec, cells)
    assert re.fullmatch(
        rf"no conclusion: the runs differ too much \(-\d+\.\d % to {most}\); more --repeats would help",
        summary.overheads[0].sentence,
    )
    print_summary(summary)
    assert "; whole run with its start: no conclusion" in capsys.readouterr().out


@pytest.mark.parametrize("columns", ["60", "80", "100", "140"])
def test_table_and_sentences_keep_to_the_terminals_width(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    spec = _spec(
        ranks=(1, 2),
        repeats=3,
        figure=Figure("timesteps/s", "(x)"),
        variant=variants_of("charliecloud:/i", ("host-mpirun", "inside"), ()),
    )
    cells = _measured(spec, lambda ranks, _: 100.0 * ranks, noise=0.02)
    for cell in cells:
        cell.runs = [msgspec.structs.replace(run, cpus=("0", "1")[: cell.ranks]) for run in cell.runs]
        cell.notes = ["2 ranks share 1 CPU"]
    cells[-1].runs, cells[-1].error, cells[-1].hint = [], "rank 0: exit code 1: " + "no " * 50, "try " * 40
    print_summary(summarise(spec, cells))
    lines = capsys.readouterr().out.splitlines()
    # A row of figures without its bar needs 76 columns.
    assert max(map(len, lines)) <= max(int(columns), 76)
    assert any("█" in line for line in lines) == (int(columns) >= 100)
    assert any("CPUs 0 | 1" in line for line in lines)


def _verdict_of(seconds, *, noise=0.0, repeats=5, **given):
    """Verdict of a sweep with these seconds at each number of ranks."""
    spec = _spec(ranks=tuple(seconds), repeats=repeats, figure=Figure("f", "(x)", kind="seconds"), **given)
    return "\n".join(summarise(spec, _measured(spec, lambda ranks, _: seconds[ranks], noise)).variants[0].verdict)


def test_verdict_names_sizes_below_the_threshold_only_up_to_the_first_good_one():
    text = _verdict_of({1: 8.0, 2: 5.5, 4: 2.4, 8: 1.1})
    assert "below 80.0 % at 2 ranks" in text
    assert " on" not in text.splitlines()[1]
    assert "below 80.0 % from 4 ranks on" in _verdict_of({1: 8.0, 2: 4.0, 4: 3.0, 8: 2.5})


def test_verdict_does_not_state_what_the_intervals_do_not_show():
    flat = _verdict_of({1: 1.0, 2: 1.0, 4: 1.0}, noise=0.02)
    assert "the runs do not show that more ranks are faster" in flat
    assert "are slower" not in flat
    wide = _verdict_of({1: 8.0, 2: 4.9}, noise=0.3, repeats=3)
    assert "the runs do not show a limit of the speed-up" in wide
    assert "at most" not in wide
    assert "the runs do not show whether 2 ranks are above 80.0 %" in wide
    assert "below" not in wide


def test_verdict_of_exactly_linear_scaling_is_not_faster_than_linear():
    assert "faster than linear" not in _verdict_of({1: 0.9, 3: 0.3, 9: 0.1})


def test_verdict_states_the_size_that_the_law_starts_from():
    text = _verdict_of({ranks: 0.1 + 0.9 / ranks for ranks in (2, 4, 8)})
    assert "serial share 18.2 % of the time at 2 ranks" in text
    assert "at most 5.5 times faster than 2 ranks with any number of ranks" in text


def test_summary_failed_cell_keeps_its_reason_and_the_rest():
    spec = _spec(ranks=(1, 2, 4), repeats=3)
    cells = _measured(spec, lambda _ranks, _name: 1.0)
    cells[1].runs = []
    for _ in range(2):
        cells[1].record_failure(RankFailed("rank 0 on n0: exit code 3: no memory", hint="use less"))
    cells[2].record_failure(RankFailed("once"))
    cells[2].runs = cells[2].runs[1:]
    found = summarise(spec, cells)
    assert found.failed == 2
    row, once = found.variants[0].cells[1:]
    assert (row.error, row.hint, row.is_abandoned) == ("rank 0 on n0: exit code 3: no memory", "use less", True)
    assert (once.runs, once.failed_runs, once.is_abandoned) == (2, 1, False)
    assert once.efficiency is not None
    assert "2 ranks failed, so the verdict does not include them" in found.variants[0].verdict


def test_summary_without_runs_or_with_one_size_does_not_judge():
    spec = _spec(ranks=(1, 2))
    cells = _measured(spec, lambda _ranks, _name: 1.0)
    for cell in cells:
        cell.runs, cell.error, cell.is_abandoned = [], "broken", True
    assert summarise(spec, cells).variants[0].verdict == ("no size ran, so there is no scaling to judge",)
    cells[0].runs, cells[0].error, cells[0].is_abandoned = [Run(round=0, wall_s=1.0)], None, False
    assert "only one number of ranks ran" in summarise(spec, cells).variants[0].verdict[0]
    single = _spec(ranks=(2,))
    assert summarise(single, _measured(single, lambda _ranks, _name: 1.0)).variants[0].verdict == ()


# ---------------------------------------------------------------- presets


def test_preset_figures_read_the_programs_own_lines():
    # The line of LAMMPS in the units `lj` and `real`, of GROMACS, and of tf_cnn_benchmarks.
    lammps = (
        "Loop time of 1.4 on 4 procs for 100 steps with 32000 atoms\n\nPerformance: 30856.6 tau/day, 71.4 timesteps/s\n"
    )
    real = "Performance: 2.5 ns/day, 9.6 hours/ns, 14.9 timesteps/s, 476.8 katom-step/s\n"
    assert read_figure(PRESETS["lammps-lj"].figure, [lammps]) == 71.4
    assert read_figure(PRESETS["lammps-rhodo"].figure, [real]) == 14.9
    assert read_worlds(PRESETS["lammps-lj"].world, [lammps]) == [4]
    assert read_figure(PRESETS["gromacs"].figure, [_GROMACS]) == 123.456
    assert (
        read_figure(PRESETS["tf-cnn"].figure, ["1\timages/sec: 9.0 +/- 0.0 (jitter = 0.0)\ntotal images/sec: 145.08\n"])
        == 145.08
    )


@pytest.fixture
def lmp(tmp_path, monkeypatch):
    """A program named lmp on PATH; presets check only that it exists."""
    program = tmp_path / "bin/lmp"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)


@pytest.mark.usefixtures("lmp")
def test_preset_input_is_complete(tmp_path):
    ready = prepare("lammps-lj", (), tmp_path, {})
    assert ready.command[2] == f"{tmp_path}/in.lj-melt"
    assert "0.8442" in (tmp_path / "in.lj-melt").read_text()
    compile(PRESETS["hoomd-hexagon"].files["hexagon.py"], "hexagon.py", "exec")


def test_preset_hexagons_do_not_overlap_at_the_published_fraction():
    """The lattice of the hexagon preset: 1024² particles at packing fraction 0.7, whose flat sides face each other."""
    numbers = r"^(?:side|area|step|height|half, tall) = .*$"
    lattice: dict[str, float] = {}
    lines = re.findall(numbers, PRESETS["hoomd-hexagon"].files["hexagon.py"], re.MULTILINE)
    exec("import math\n" + "\n".join(lines), lattice)
    assert lattice["side"] == 1024
    assert lattice["step"] > 2 * lattice["tall"]
    hexagon = 6 * lattice["half"] * lattice["tall"]  # six triangles with the base 2 x half
    assert hexagon / (lattice["step"] * lattice["height"]) == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("name", "command", "kind", "message"),
    [
        ("lammps-lj", ("x",), ConfigError, "has its own command"),
        ("tf-cnn", (), ConfigError, "needs the command"),
        ("lammps-rhodo", (), NotFound, "LAMMPS_BENCH, which is not set"),
    ],
)
@pytest.mark.usefixtures("lmp")
def test_preset_that_cannot_run_says_why(tmp_path, name, command, kind, message):
    with pytest.raises(kind, match=message):
        prepare(name, command, tmp_path, {})


def test_preset_without_its_module_names_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(NotFound, match="hoomd is not installed") as caught:
        prepare("hoomd-hexagon", (), tmp_path, {})
    assert "conda-forge" in caught.value.hint


def test_summary_ratios_of_means_are_the_speed_ups():
    spec = _spec(repeats=3)
    cells = _measured(spec, lambda _r, _n: 1.0)
    for cell, walls in zip(cells, ((1.0, 5.0, 2.0), (1.0, 1.0, 4.0)), strict=True):
        cell.runs = [Run(round=r, wall_s=w) for r, w in enumerate(walls)]
    one, two = summarise(spec, cells).variants[0].cells
    assert one.wall_s == pytest.approx(10 ** (1 / 3))
    assert two.speed_up == pytest.approx(one.wall_s / two.wall_s)
