# SPDX-License-Identifier: Apache-2.0
"""Installs the loaders for `penstock bench feed --against ...`, each into its own environment.

    .venv/bin/python benches/peers/feed/kit.py [NAME ...]

An environment is `.tools/peers/NAME`; `penstock bench feed --peers .tools/peers` looks there. torch is pinned to the
version in `.venv`, so that uv links its files instead of downloading them again; every other package is the newest
version that resolves. If a peer does not install, the script prints the last lines of the error and continues with the
others.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PEERS = ROOT / ".tools/peers"

TORCH = f"torch=={metadata.version('torch')}"

PACKAGES: dict[str, tuple[str, ...]] = {
    "tfdata": ("tensorflow-cpu",),
    "libdeflate": ("deflate", "crc32c", "numpy"),
    "webdataset": ("webdataset", TORCH, "torchvision", "numpy"),
    "litdata": ("litdata", TORCH, "torchvision", "numpy"),
    "mosaicml": ("mosaicml-streaming", TORCH, "torchvision", "numpy<2.2", "transformers<5"),
    "grain": ("grain", "numpy"),
    "tfrecord": ("tfrecord", TORCH, "numpy", "crc32c"),
    "s3torchconnector": ("s3torchconnector", TORCH, "numpy"),
    "obstore": ("obstore", TORCH, "numpy"),
    "s3dlio": ("s3dlio", TORCH, "numpy"),
    "spdl": ("spdl", TORCH, "numpy"),
    "dali": ("nvidia-dali-cuda120", "numpy"),
    "ffcv": ("ffcv", TORCH, "torchvision", "opencv-python-headless", "numpy"),
    "datago": ("datago", "numpy", "pillow"),
}
"""Packages of each peer, by the names that --against accepts."""


def install(name: str) -> str | None:
    """Makes the environment again from scratch; returns the last lines of the installer's error, or None."""
    folder = PEERS / name
    uv = str(Path(sys.executable).with_name("uv"))
    subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)], check=True)
    done = subprocess.run(
        [
            uv,
            "pip",
            "install",
            "--quiet",
            "--compile-bytecode",
            "--python",
            str(folder / "bin/python"),
            *PACKAGES[name],
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    if done.returncode == 0:
        (folder / "installed").touch()
        return None
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return "\n    ".join(lines[-6:]) or f"exit {done.returncode}"


def main(names: list[str]) -> int:
    """Installs the named peers, or all that are missing."""
    unknown = [name for name in names if name not in PACKAGES]
    if unknown:
        print(f"{', '.join(unknown)}: none of {', '.join(PACKAGES)}", file=sys.stderr)
        return 2
    refused = 0
    for name in names or [name for name in PACKAGES if not (PEERS / name / "installed").exists()]:
        why = install(name)
        refused += why is not None
        print(f"{name}: installed" if why is None else f"{name}: not installed\n    {why}", flush=True)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
