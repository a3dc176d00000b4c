# SPDX-License-Identifier: Apache-2.0
"""Data sizes of the demo. F scales the tiers' rates with the volume size, so timings are comparable across sizes."""

from __future__ import annotations

import msgspec

from penstock.plan.reference_job import JOB

__all__ = ["SIZES", "Size"]

PUBLISHED_VOXELS = 128


class Size(msgspec.Struct, frozen=True):
    """One size of the demo.

    Attributes:
        learn_samples, held_out: Samples of the real training, 32 voxels per side.
        learn_epochs, learn_batch: Epochs and batch size of the real training.
        voxels: Side of a volume of the storage comparison.
        distinct: Number of different volumes that are generated for the comparison.
        volumes: Number of names under which these volumes are served; the comparison reads each name once.
        free_bytes: Required free disk space.
    """

    learn_samples: int
    held_out: int
    learn_epochs: int
    learn_batch: int
    voxels: int
    distinct: int
    volumes: int
    free_bytes: int
    learn_voxels: int = 32

    @property
    def scale(self) -> float:
        """F, the factor by which the tiers' rates are multiplied.

        A volume with `voxels` per side has (voxels / 128)^3 times the bytes of a published volume. With every rate
        multiplied by this factor, one file and one step take as long as in the published job.
        """
        return (self.voxels / PUBLISHED_VOXELS) ** 3

    @property
    def batch(self) -> int:
        """Samples per step of the storage comparison: the published global batch, 32 GPUs x 4."""
        return JOB.global_batch

    @property
    def sample_bytes(self) -> int:
        """Raw bytes of one volume of the comparison."""
        return self.voxels**3 * 4 * 2


SIZES = {
    "small": Size(
        learn_samples=640,
        held_out=160,
        learn_epochs=6,
        learn_batch=4,
        voxels=64,
        distinct=64,
        volumes=640,
        free_bytes=2_500_000_000,
    ),
    # For the test suite: runs the same code on a fraction of the data.
    "tiny": Size(
        learn_samples=96,
        held_out=32,
        learn_epochs=2,
        learn_batch=4,
        voxels=64,
        distinct=8,
        volumes=256,
        free_bytes=1_200_000_000,
    ),
}
