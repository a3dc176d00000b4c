# SPDX-License-Identifier: Apache-2.0
"""Tests samples that cannot be read: every rank raises the same error, leaves them out or substitutes them.

Also tests that they are counted.
"""

from __future__ import annotations

import gzip
import io
from itertools import chain

import pytest
from PIL import Image

import penstock
from penstock.errors import ConfigError, Corrupt, Unsupported

from .conftest import dataset, record, samples


def flipped(content: bytes) -> bytes:
    return content[:-10] + bytes([content[-10] ^ 1]) + content[-9:]


def with_bad_samples(made, codec="gzip"):
    """4 objects of 3 samples: sample 4 (middle of object 1) is damaged, and object 2 (samples 6 to 8) is unreadable."""
    folder = made([3] * 4, codec=codec)
    suffix = ".gz" if codec == "gzip" else ""
    pack = gzip.compress if codec == "gzip" else bytes
    middle = record(3) + flipped(record(4)) + record(5)
    (folder / f"part-0001.tfrecord{suffix}").write_bytes(pack(middle))
    (folder / f"part-0002.tfrecord{suffix}").write_bytes(b"#" * 200)
    return dataset(folder, records_per_object=3).shuffle(seed=5, window=2)


def epoch(opened, world=1, **arguments):
    """Samples of each step over all ranks, and the sums of the reports' counters."""
    steps, counted = {}, []
    for rank in range(world):
        loader = penstock.Loader(opened, global_batch=4, rank=rank, world=world, **arguments)
        made_steps = [samples(batch) for batch in loader]
        for number, rows in enumerate(made_steps):
            steps.setdefault(number, []).extend(rows)
        counted.append((loader.report()["skipped"], loader.report()["substituted"]))
        assert len(made_steps) == len(loader)
    return [steps[number] for number in sorted(steps)], tuple(map(sum, zip(*counted, strict=True)))


@pytest.mark.parametrize("codec", ["gzip", "none"])
def test_skip_leaves_out_bad_samples_and_keeps_the_number_of_batches(made, codec):
    opened = with_bad_samples(made, codec)
    one, counted = epoch(opened, on_error="skip")
    assert counted == (4, 0)
    assert sorted(chain(*one)) == [0, 1, 2, 3, 5, 9, 10, 11]
    for world in (2, 3, 5):
        assert epoch(opened, world, on_error="skip") == (one, (4, 0))


@pytest.mark.parametrize("codec", ["gzip", "none"])
def test_substitute_puts_the_same_samples_on_any_world(made, codec):
    opened = with_bad_samples(made, codec)
    one, counted = epoch(opened, on_error="substitute")
    assert counted == (0, 4)
    assert [len(rows) for rows in one] == [4, 4, 4]
    # The substitute for 4 is the next record of its object; those for 6, 7 and 8 are from the next object.
    assert sorted(chain(*one)) == sorted([0, 1, 2, 3, 5, 9, 10, 11, 5, 9, 10, 11])
    for world in (2, 3, 5):
        assert epoch(opened, world, on_error="substitute") == (one, (0, 4))


def test_skip_with_a_padded_tail_keeps_rows_of_no_weight(made):
    loader = penstock.Loader(with_bad_samples(made), global_batch=4, rank=0, world=1, tail="pad", on_error="skip")
    batches = list(loader)
    assert [len(batch["y"]) for batch in batches] == [4, 4, 4]
    dead = [row for batch in batches for row in range(4) if batch["weight"][row] == 0]
    assert len(dead) == 4
    assert all((batch["x"][batch["weight"] == 0] == 0).all() for batch in batches)
    assert "4 bad samples left out" in str(loader.report())
    assert loader.report()["bad_samples"]


def test_substitute_that_finds_nothing_raises_after_all(made):
    folder = made([1] * 3)
    for number in range(3):
        (folder / f"part-{number:04d}.tfrecord.gz").write_bytes(b"#" * 99)
    with pytest.raises(Corrupt):
        list(penstock.Loader(dataset(folder, records_per_object=1), batch_size=1, on_error="substitute"))


def test_raise_gives_the_good_batches_before_the_bad_sample(made):
    folder = made([6])
    content = b"".join(flipped(record(at)) if at == 4 else record(at) for at in range(6))
    (folder / "part-0000.tfrecord.gz").write_bytes(gzip.compress(content))
    walk = iter(penstock.Loader(dataset(folder, records_per_object=6), batch_size=2))
    assert [samples(next(walk)), samples(next(walk))] == [[0, 1], [2, 3]]
    with pytest.raises(Corrupt, match="damaged record 4"):
        next(walk)


def test_skip_and_full_batches_contradict_each_other(made):
    with pytest.raises(ConfigError, match="skip"):
        penstock.Loader(dataset(made([1])), batch_size=1, tail="drop", on_error="skip")
    with pytest.raises(ConfigError, match="`ignore`"):
        penstock.Loader(dataset(made([1], name="b")), batch_size=1, on_error="ignore")


def test_skip_and_substitute_apply_to_images_of_a_kind_that_is_not_decoded(tmp_path):
    folder = tmp_path / "class"
    folder.mkdir()
    for number in range(4):
        content = io.BytesIO()
        Image.new("RGB", (8, 8), (number, 0, 0)).save(content, "GIF" if number == 1 else "PNG")
        (folder / f"{number}.png").write_bytes(content.getvalue())
    opened = penstock.open(tmp_path, format=penstock.formats.images()).fields(image=penstock.image(8))
    with pytest.raises(Unsupported, match="GIF"):
        list(penstock.Loader(opened, batch_size=4))

    def reds(on_error):
        (batch,) = penstock.Loader(opened, batch_size=4, on_error=on_error)
        return batch["image"][:, 0, 0, 0].tolist()

    assert reds("skip") == [0, 2, 3]
    assert reds("substitute") == [0, 2, 2, 3]
