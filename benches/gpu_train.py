# SPDX-License-Identifier: Apache-2.0
"""Measures training on one GPU: real beside synthetic data, `trivial` beside the feed alone, and stalls of checkpoints.

    python benches/gpu_train.py FOLDER [--what cosmoflow,resnet50,trivial,checkpoint] [--device cuda]

`cosmoflow` and `resnet50` alternate between real and synthetic data, eagerly and compiled (aim: real >= 0.99 x
synthetic). `trivial` is a bound of what the data path can deliver (aim: 0.97 of the feed alone). `checkpoint` trains
ResNet-50 on synthetic data and writes four checkpoints to FOLDER (aim: the stall is below 5 % of the writing). The
data are made in FOLDER at the first call, and should fit into the page cache. `gpu_feed.py` uses the same volumes.

No GPU is needed to try it: `--device cpu --voxels 32 --samples 64 --images 256 --image-size 64 --batches 4,8 --checkpoint-steps 6`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench_train import ceiling
from gpu_feed import data, made, volumes_of

from penstock.datasets.images import ImageSpec, generate
from penstock.train import TrainSpec, run

CLASSES = 100


def spec(asked: argparse.Namespace, workload: str, **fields: Any) -> TrainSpec:
    """Training of the workload in bfloat16, with the fastest kernels."""
    volumes, images = asked.batches
    settings: dict[str, Any] = {"amp": True, "deterministic": False}
    if workload == "cosmoflow":
        settings |= {"recipe": "nvidia", "voxels": asked.voxels}
    else:
        settings |= {"classes": CLASSES, "image_size": asked.image_size}
    return TrainSpec(
        workload=workload,
        global_batch=volumes if workload == "cosmoflow" else images,
        settings=settings | fields.pop("settings", {}),
        device=asked.device,
        **fields,
    )


def compare(asked: argparse.Namespace, workload: str, folder: str) -> None:
    """Prints the rates on real and on synthetic data, eagerly and compiled."""
    for is_compiled in (False, True):
        result = run(
            spec(
                asked,
                workload,
                data=folder,
                settings={"compile": is_compiled},
                compare_synthetic=True,
                warm_up_steps=asked.warm_up,
            )
        )
        found = result["data_path"]
        interval = " to ".join("unknown" if one is None else f"{one:.3f}" for one in found["interval"])
        print(
            f"{workload}{', compiled' if is_compiled else ''}: real {found['real']['median']:.0f} {found['unit']}, "
            f"synthetic {found['synthetic']['median']:.0f}, ratio {found['ratio']:.3f} ({interval}); "
            f"{1e3 * found['real']['cpu_s_per_sample']:.2f} ms of CPU per sample; {found['reason']}; "
            f"{result['loader']['passes'][-1].get('device')}",
            flush=True,
        )


def checkpoint(asked: argparse.Namespace) -> None:
    """Prints the rate and the stall of checkpoints."""
    samples = 4 * asked.checkpoint_steps * asked.batches[1]
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        result = run(
            spec(
                asked, "resnet50", data=f"dummy://{samples}", checkpoint=folder, checkpoint_steps=asked.checkpoint_steps
            )
        )
    found = result["checkpoints"]
    print(
        f"{found['saves']} checkpoints of {found['bytes'] / found['saves'] / 1e6:.0f} MB: "
        f"{found['bytes_per_s'] / 1e6:.0f} MB/s, stall {1e3 * found['stall_s']:.0f} ms, "
        f"{100 * found['stall_share']:.1f} % of the writing"
    )


def main() -> int:
    """Runs the requested measurements and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--what", default="cosmoflow,resnet50,trivial,checkpoint")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--samples", type=int, default=512, help="volumes to make")
    parser.add_argument("--voxels", type=int, default=128)
    parser.add_argument("--images", type=int, default=16384, help="images to make")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument(
        "--batches", default="8,256", type=lambda text: [int(one) for one in text.split(",")], help="volumes,images"
    )
    parser.add_argument("--warm-up", type=int, default=8, help="steps at the start of a turn that rates exclude")
    parser.add_argument("--checkpoint-steps", type=int, default=50)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    what = asked.what.split(",")
    images = asked.folder / f"images-{asked.images}"
    if {"resnet50", "trivial"} & set(what):
        generate(images, ImageSpec(asked.images, CLASSES, shards=32, format="tar"))
    for name in what:
        if name == "cosmoflow":
            volumes = asked.folder / volumes_of(asked)
            compare(asked, name, str(made(volumes, lambda new: data.volumes(new, asked.samples, asked.voxels))))
        elif name == "resnet50":
            compare(asked, name, str(images / "train"))
        elif name == "trivial":
            ceiling(str(images / "train"), asked.batches[1], amp=True, classes=CLASSES, device=asked.device)
        elif name == "checkpoint":
            checkpoint(asked)
        else:
            parser.error(f"unknown measurement: {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
