# SPDX-License-Identifier: Apache-2.0
"""Compares the rates (pairs of image and mask per second, all cores) of Penstock and of a torch DataLoader with
torchvision v2 transforms.

    .venv/bin/python benches/peers/feed/segmentation.py [SCRATCH]

Both read the same pairs from warm local files, and do the same work: decode, RandomResizedCrop(224), flip, uint8 batches
of 32 in CHW, and labels. The DataLoader has one worker process per core; it is measured with torchvision's decoders and
with Pillow's. It runs in the environment `.tools/peers/webdataset` of kit.py, or in this one if that is missing.
Rounds are interleaved, and the best round of each program counts.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

PAIRS, BATCH, SIDE, ROUNDS = 768, 32, 224, 3
ROOT = Path(__file__).resolve().parents[3]
PEER = ROOT / ".tools/peers/webdataset/bin/python"


def write(folder: Path) -> None:
    """Writes the pairs as files (`img/N.jpg`, `mask/N.png`) and the same bytes as tars."""
    import numpy as np
    from data import add_member, picture
    from PIL import Image

    random = np.random.default_rng(1)
    for name in ("img", "mask", "tar"):
        (folder / name).mkdir(parents=True)
    pictures = [picture(seed) for seed in range(64)]
    for shard in range(4):
        with tarfile.open(folder / "tar" / f"{shard}.tar", "w", format=tarfile.USTAR_FORMAT) as out:
            for number in range(shard * PAIRS // 4, (shard + 1) * PAIRS // 4):
                coarse = random.integers(0, 21, (8, 10), np.uint8)
                labels = Image.fromarray(coarse).resize((500, 375), Image.Resampling.NEAREST).convert("P")
                labels.putpalette([value * 11 % 256 for value in range(63)])
                png = io.BytesIO()
                labels.save(png, "PNG")
                for extension, data in (("jpg", pictures[number % 64]), ("png", png.getvalue())):
                    part = "img" if extension == "jpg" else "mask"
                    (folder / part / f"{number:05}.{extension}").write_bytes(data)
                    add_member(out, f"{number:05}.{extension}", data)


def penstock_rate(folder: Path, *, exact: bool) -> float:
    import penstock

    fields: dict[str, Any] = {
        "image": penstock.image(SIDE, crop="random", flip=True, layout="CHW", exact=exact).of("jpg"),
        "mask": penstock.mask().of("png").like("image"),
    }
    dataset = penstock.open(folder / "tar").fields(**fields).shuffle(seed=1)
    return timed(penstock.torch.Loader(dataset, batch_size=BATCH, rank=0, world=1))


class Pairs:
    """Map-style dataset of pairs for the torch DataLoader."""

    def __init__(self, folder: Path, decoder: str) -> None:
        from torchvision.transforms import v2

        self.folder, self.decoder = folder, decoder
        self.work = v2.Compose([v2.RandomResizedCrop(SIDE, antialias=True), v2.RandomHorizontalFlip()])

    def __len__(self) -> int:
        return PAIRS

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        import torch
        from PIL import Image
        from torchvision import io as decoders
        from torchvision import tv_tensors
        from torchvision.transforms.v2 import functional

        image_path, mask_path = self.folder / f"img/{number:05}.jpg", self.folder / f"mask/{number:05}.png"
        with Image.open(mask_path) as stored:  # torchvision's decoder expands palettes
            mask = tv_tensors.Mask(functional.pil_to_tensor(stored))
        if self.decoder == "pillow":
            with Image.open(image_path) as stored:
                image, mask = self.work(stored.convert("RGB"), mask)
            return functional.pil_to_tensor(image), torch.as_tensor(mask[0])
        data = torch.frombuffer(bytearray(image_path.read_bytes()), dtype=torch.uint8)
        image, mask = self.work(tv_tensors.Image(decoders.decode_jpeg(data)), mask)
        return torch.as_tensor(image), torch.as_tensor(mask[0])


def torch_rate(folder: Path, decoder: str) -> float:
    import torch

    loader = torch.utils.data.DataLoader(
        Pairs(folder, decoder), batch_size=BATCH, shuffle=True, num_workers=os.cpu_count() or 1, persistent_workers=True
    )
    return timed(loader)


def timed(loader: Any) -> float:
    """Rate of the second epoch: workers have started and files are in the page cache."""
    rate = 0.0
    for _ in range(2):
        start, count = time.perf_counter(), 0
        for batch in loader:
            image, mask = (batch["image"], batch["mask"]) if isinstance(batch, dict) else batch
            assert tuple(image.shape[1:]) == (3, SIDE, SIDE)
            assert tuple(mask.shape[1:]) == (SIDE, SIDE)
            count += len(image)
        assert count == PAIRS
        rate = count / (time.perf_counter() - start)
    return rate


SIDES = {
    "penstock": lambda folder: penstock_rate(folder, exact=False),
    "penstock-exact": lambda folder: penstock_rate(folder, exact=True),
    "torch-torchvision": lambda folder: torch_rate(folder, "torchvision"),
    "torch-pillow": lambda folder: torch_rate(folder, "pillow"),
}


def main(arguments: list[str]) -> None:
    """Writes the data, runs every side in a separate process, and prints the best rates as JSON lines."""
    if len(arguments) == 2 and arguments[1] in SIDES:
        print(SIDES[arguments[1]](Path(arguments[0])))
        return
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=arguments[0] if arguments else None) as scratch:
        folder = Path(scratch) / "pairs"
        write(folder)
        for _ in range(ROUNDS):
            for side in SIDES:
                python = str(PEER) if side.startswith("torch") and PEER.exists() else sys.executable
                done = subprocess.run(
                    [python, __file__, str(folder), side], check=True, stdout=subprocess.PIPE, text=True
                )
                best[side] = max(best.get(side, 0.0), float(done.stdout))
    load = Path("/proc/loadavg").read_text().split()[0]
    peer = max(rate for side, rate in best.items() if side.startswith("torch"))
    for side, rate in best.items():
        row = {"side": side, "pairs_per_s": round(rate, 1), "of_best_torch": round(rate / peer, 2)}
        print(json.dumps({**row, "cores": os.cpu_count(), "load": load}))


if __name__ == "__main__":
    main(sys.argv[1:])
