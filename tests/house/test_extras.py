# SPDX-License-Identifier: Apache-2.0
"""Tests optional packages: if one is missing, the error names the extra that installs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from penstock import errors
from penstock.extras import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
MODULES = {"pillow": "PIL", "pyyaml": "yaml", "vl-convert-python": "vl_convert"}
REQUIRED = ("click", "rich", "msgspec", "markdown_it", "mdurl", "pygments", "typing_extensions.py")


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """Runs Python with only Penstock and its required packages, as after `pip install penstock`."""
    folder = tmp_path_factory.mktemp("bare")
    installed = Path(sysconfig.get_path("purelib"))
    for name in REQUIRED:
        if (installed / name).exists():
            (folder / name).symlink_to(installed / name)

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-S", *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'python'}:{folder}"},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def test_extras_are_those_of_the_project():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    modules = {
        extra: {MODULES.get(name, name) for name in (re.split(r"[\[>=]", one)[0] for one in wanted)}
        for extra, wanted in declared.items()
    }
    assert modules.pop("explain") == {"py-spy"}  # a program without a module
    modules["explain"] = set()
    modules["demo"] = modules["torch"] | modules["report"]
    assert {extra: set(names) for extra, names in PACKAGES.items()} == modules


@pytest.mark.parametrize(
    ("arguments", "what", "extra"),
    [
        (["dataset", "cosmoflow", "out", "--samples", "1"], "penstock dataset cosmoflow requires numpy", "numpy"),
        (["dataset", "emulated", "unet3d", "out"], "penstock dataset emulated requires numpy", "numpy"),
        (["dataset", "images", "out", "--images", "1000"], "penstock dataset images requires PIL", "images"),
        (["demo", "--output", "out"], "penstock demo requires torch", "demo"),
    ],
)
def test_command_of_a_bare_install_names_the_extra(bare, arguments, what, extra):
    done = bare("-m", "penstock", *arguments)
    assert done.stderr.splitlines() == [
        f"error[missing-package]: {what}, which is not installed",
        f"  hint: pip install 'penstock[{extra}]'",
    ]
    assert done.returncode == 3


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("torch", "torch", "torch"),
        ("jax", "jax", "jax"),
        ("tf", "tensorflow", "tensorflow"),
        ("fs", "fsspec", "fsspec"),
    ],
)
def test_import_in_a_bare_install_names_the_extra(bare, module, package, extra):
    done = bare("-c", f"import penstock; penstock.{module}")
    assert done.stderr.splitlines()[-2:] == [
        f"penstock.errors.MissingPackage: penstock.{module} requires {package}, which is not installed",
        f"pip install 'penstock[{extra}]'",
    ]
    tried = bare(
        "-c", f"try:\n    import penstock.{module}\nexcept ModuleNotFoundError as error:\n    print(error.name)"
    )
    assert tried.stdout == f"{package}\n"


def test_listing_and_schema_of_a_bare_install_work_and_a_loader_names_the_extra(bare, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"text")
    subprocess.run(["tar", "-cf", "d.tar", "a.txt"], cwd=tmp_path, check=True)
    program = (
        "import penstock, sys; ds = penstock.open(sys.argv[1]); print(ds.schema()['txt'], ds.samples); "
        "iter(penstock.Loader(ds, batch_size=1))"
    )
    done = bare("-c", program, tmp_path / "d.tar")
    assert done.stdout == "bytes 1\n"
    assert "MissingPackage: penstock.Loader requires numpy, which is not installed\npip install" in done.stderr
    hdf5 = bare("-c", "import penstock, sys; penstock.open(sys.argv[1], format=penstock.formats.hdf5('x'))", tmp_path)
    assert "MissingPackage: format hdf5 requires h5py" in hdf5.stderr


def test_missing_package_is_what_import_raises_and_unsupported():
    error = errors.MissingPackage("penstock.torch requires torch", name="torch")
    assert isinstance(error, (ModuleNotFoundError, errors.Unsupported))
    assert (str(error), error.name, error.code) == ("penstock.torch requires torch", "torch", "missing-package")
