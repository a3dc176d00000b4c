# SPDX-License-Identifier: Apache-2.0
"""Presets: command, input and figure of merit of well-known scaling benchmarks.

Some presets contain only the figure, because the input of the benchmark belongs to the user.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.bench.app.figure import Figure
from penstock.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["PRESETS", "Prepared", "Preset", "input_folder", "prepare"]

# Shared memory of the host. All container runtimes show it at the same path: Docker and Podman because of --ipc=host,
# the other ones because they mount /dev. /tmp is another folder in Docker, and in Charliecloud if TMPDIR is set.
_SHARED = Path("/dev/shm")  # noqa: S108 - only the parent of a new folder

# Lennard-Jones melt, as in the LAMMPS benchmark of that name: 32,000 atoms per unit of size, 100 steps, density 0.8442,
# cutoff 2.5, temperature 1.44. The box grows along x, so weak scaling keeps the atoms per rank.
# Source: https://www.lammps.org/bench.html, section "Lennard-Jones liquid benchmark".
_LJ_INPUT = """\
variable        size index 1
variable        cells equal 20*${size}
units           lj
lattice         fcc 0.8442
region          melt block 0 ${cells} 0 20 0 20
create_box      1 melt
create_atoms    1 box
mass            1 1.0
velocity        all create 1.44 20171 loop geom
pair_style      lj/cut 2.5
pair_coeff      1 1 1.0 1.0 2.5
neighbor        0.3 bin
neigh_modify    delay 0 every 20 check no
fix             1 all nve
thermo          50
run             100
"""
# Hard hexagons at packing fraction 0.7, N = 1024² = 1,048,576, with HOOMD-blue 3 or later. Moves, vertices, seed,
# warm-up (1,000 steps) and measured series (4 of 50,000 steps, each at most 20 s) are those of
# github.com/glotzerlab/hoomd-benchmarks, folder hexagon (README.md, bmark.py). The initial state is a lattice, not the
# published file.
_HEXAGON_PROGRAM = """\
import math, sys, time
import hoomd
import numpy

side = 1024
device = hoomd.device.auto_select()
simulation = hoomd.Simulation(device=device, seed=20)
area = 3 * math.sqrt(3) / 8 / 0.7
step = math.sqrt(area * 2 / math.sqrt(3))
height = step * math.sqrt(3) / 2
snapshot = hoomd.Snapshot(device.communicator)
if snapshot.communicator.rank == 0:
    rows, columns = numpy.divmod(numpy.arange(side * side), side)
    x = ((columns + 0.5 * (rows % 2)) - side / 2 + 0.25) * step
    y = (rows - side / 2 + 0.5) * height
    snapshot.configuration.box = [side * step, side * height, 0, 0, 0, 0]
    snapshot.particles.types = ["A"]
    snapshot.particles.N = side * side
    snapshot.particles.position[:] = numpy.stack([x, y, numpy.zeros_like(x)], axis=1)
    quarter = math.pi / 12
    snapshot.particles.orientation[:] = [math.cos(quarter), 0, 0, math.sin(quarter)]
simulation.create_state_from_snapshot(snapshot)
moves = hoomd.hpmc.integrate.ConvexPolygon(default_d=0.17010672166874857, default_a=1.0471975511965976, nselect=4)
half, tall = 0.25, 0.433012701892219
moves.shape["A"] = {"vertices": [(0.5, 0), (half, tall), (-half, tall), (-0.5, 0), (-half, -tall), (half, -tall)]}
simulation.operations.integrator = moves


def run(steps, limit_s):
    done, began = 0, time.perf_counter()
    while done < steps and time.perf_counter() - began < limit_s:
        simulation.run(min(10, steps - done))
        done += min(10, steps - done)
    return done / (time.perf_counter() - began)


run(1000, 20)
rates = [run(50000, 20) for _ in range(4)]
if device.communicator.rank == 0:
    print(f"ranks {device.communicator.num_ranks}")
    print(f"steps per second: {sum(rates) / len(rates):.6g}")
"""


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """Definition of a well-known benchmark.

    Attributes:
        command: Arguments; empty if the user gives the command. `{folder}` is the folder of the input files.
        example: Example of a command, for presets without one.
        files: Input files, by name, which are written to that folder.
        needs: Program that the command starts. Native runs need it on this machine.
        module: Python module that must be importable.
        package: Advice for a missing program.
        note: Fact about the benchmark that the output includes.
    """

    figure: Figure
    about: str
    command: tuple[str, ...] = ()
    example: str = ""
    world: str | None = None
    files: Mapping[str, str] = {}
    needs: str | None = None
    module: str | None = None
    package: str = ""
    note: str = ""


class Prepared(msgspec.Struct, frozen=True):
    """A preset that is ready to run: its command and working folder."""

    command: tuple[str, ...]
    cwd: str | None = None


_LAMMPS_FIGURE = Figure(
    "timesteps/s", r"^Performance: \S+ \S+, (?:\S+ hours/ns, )?([0-9.]+) timesteps/s", kind="step-rate"
)
_LAMMPS_WORLD = r"^Loop time of \S+ on (\d+) procs"
PRESETS = {
    "lammps-lj": Preset(
        about="LAMMPS: Lennard-Jones melt of 32,000 atoms, 100 steps",
        command=("lmp", "-in", "{folder}/in.lj-melt", "-var", "size", "{size}", "-log", "none"),
        figure=_LAMMPS_FIGURE,
        world=_LAMMPS_WORLD,
        files={"in.lj-melt": _LJ_INPUT},
        needs="lmp",
        package="install LAMMPS, for example Debian's package lammps",
    ),
    "lammps-rhodo": Preset(
        about="LAMMPS: rhodopsin; set LAMMPS_BENCH to the folder `bench` of LAMMPS's sources (experimental)",
        command=("lmp", "-in", "in.rhodo", "-log", "none"),
        figure=_LAMMPS_FIGURE,
        world=_LAMMPS_WORLD,
        needs="lmp",
        package="install LAMMPS, for example Debian's package lammps",
        note="this preset has not run on real input yet",
    ),
    "hoomd-hexagon": Preset(
        about="HOOMD-blue: 1,048,576 hard hexagons (experimental)",
        command=(sys.executable, "{folder}/hexagon.py"),
        figure=Figure("steps/s", r"^steps per second: ([0-9.e+]+)", kind="step-rate"),
        world=r"^ranks (\d+)",
        files={"hexagon.py": _HEXAGON_PROGRAM},
        module="hoomd",
        package="install HOOMD-blue, for example from conda-forge",
        note="this preset has not run with HOOMD-blue yet; it starts from a lattice, not from the published file",
    ),
    "gromacs": Preset(
        about="GROMACS: figure only; give the command",
        example="gmx_mpi mdrun -s FILE -nsteps 5000",
        figure=Figure("ns/day", r"^Performance:\s+([0-9.]+)", kind="step-rate"),
    ),
    "tf-cnn": Preset(
        about="tf_cnn_benchmarks and programs with its output: figure only; give the command",
        example="penstock train resnet50 --synthetic --format tf_cnn",
        figure=Figure("images/s", r"^total images/sec: ([0-9.]+)"),
    ),
}


def input_folder() -> tempfile.TemporaryDirectory[str]:
    """Make a temporary folder for input files that native ranks and ranks in containers see at the same path."""
    is_shared = _SHARED.is_dir() and os.access(_SHARED, os.W_OK)
    return tempfile.TemporaryDirectory(prefix="penstock-app-", dir=_SHARED if is_shared else None)


def prepare(name: str, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Prepared:
    """Write a preset's input files, and return its command.

    Args:
        command: The user's command; required for presets without a command, and not allowed for presets with a command.
        folder: Folder for the input files.
    Raises:
        ConfigError: The preset needs a command and none is given, or a command is given and the preset has its own.
        NotFound: The program or its data is not installed.
    """
    preset = PRESETS[name]
    if bool(command) == bool(preset.command):
        fault = "has its own command" if preset.command else "needs the command of the benchmark"
        raise ConfigError(
            f"preset {name}: {fault}",
            hint="omit the command after --" if preset.command else f"append it, for example -- {preset.example}",
        )
    if preset.needs is not None and shutil.which(preset.needs) is None:
        raise NotFound(f"preset {name}: {preset.needs} is not installed", hint=preset.package)
    if preset.module is not None and importlib.util.find_spec(preset.module) is None:
        raise NotFound(f"preset {name}: {preset.module} is not installed", hint=preset.package)
    cwd = None
    if name == "lammps-rhodo":
        cwd = environment.get("LAMMPS_BENCH", "")
        lacking = [file for file in ("in.rhodo", "data.rhodo") if not cwd or not (Path(cwd) / file).is_file()]
        if lacking:
            raise NotFound(
                f"preset {name}: {' and '.join(lacking)} not found in {cwd or 'LAMMPS_BENCH, which is not set'}",
                hint="set LAMMPS_BENCH to the folder `bench` of LAMMPS's sources",
            )
    for file, text in preset.files.items():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text, encoding="utf-8")
    made = tuple(arg.replace("{folder}", str(folder)) for arg in (preset.command or command))
    return Prepared(made, cwd)
