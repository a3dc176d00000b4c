# SPDX-License-Identifier: Apache-2.0
"""Tests the adapters for JAX, TensorFlow and torch trainers: all deliver the same order, whole and sharded.

Each test runs in a separate process, because each library claims devices and starts threads.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from .conftest import dataset, write
from .nested_parquet import nested_bytes
from .test_formats import png
from .tfrecords import example, frame

ROOT = Path(__file__).resolve().parents[2]

JAX = """
import sys, json
import numpy as np
import jax
from jax.sharding import NamedSharding, PartitionSpec as P
import penstock as ps
from penstock.jax import Loader

assert len(jax.devices()) == 4
ds = ps.open(sys.argv[1]).fields(x=ps.tensor("int16", (3, 2)), y=ps.tensor("float32", (4,))).shuffle(seed=3)
want = [batch["y"][:, 0].tolist() for batch in ps.Loader(ds, batch_size=8, tail="drop")]

plain = [np.asarray(batch["y"])[:, 0].tolist() for batch in Loader(ds, batch_size=8, tail="drop")]
assert plain == want, plain

mesh = jax.make_mesh((4,), ("data",))
loader = Loader(ds, global_batch=8, sharding=NamedSharding(mesh, P("data")))
got = list(loader)
assert [np.asarray(batch["y"])[:, 0].tolist() for batch in got] == want
first = got[0]["x"]
assert first.shape == (8, 3, 2) and first.dtype == np.int16
assert [shard.data.shape for shard in first.addressable_shards] == [(2, 3, 2)] * 4
assert len({shard.device for shard in first.addressable_shards}) == 4
total = jax.jit(lambda y: y.sum())(got[1]["y"])
assert float(total) == 4 * sum(want[1])

two = jax.make_mesh((2, 2), ("data", "model"))
of_y = ds.fields(y=ps.tensor("float32", (4,)))
loader = Loader(of_y, global_batch=8, sharding=NamedSharding(two, P("data", "model")))
batch = next(iter(loader))
assert np.asarray(batch["y"])[:, 0].tolist() == want[0]
assert {shard.data.shape for shard in batch["y"].addressable_shards} == {(4, 2)}

drops = of_y.decode(lambda sample: {"y": sample["y"]} if sample["y"][0] % 2 else None, rebatch=True)
kept = [y for batch in want for y in batch if y % 2]
got = list(Loader(drops, global_batch=4, sharding=NamedSharding(mesh, P("data"))))
assert [int(y) for batch in got for y in np.asarray(batch["y"])[:, 0]] == [int(y) for y in kept[: len(got) * 4]]
try:
    next(iter(Loader(of_y.decode(drops.map_steps[0].function), global_batch=8, sharding=loader.sharding)))
except ps.errors.ConfigError as error:
    assert "rows cannot be divided" in str(error) and "rebatch=True" in error.hint, error

state = json.loads(json.dumps(loader.state_dict()))
other = Loader(ds, global_batch=8, sharding=NamedSharding(mesh, P("data")))
other.load_state_dict(state)
assert [np.asarray(batch["y"])[:, 0].tolist() for batch in other] == want[1:]
for bad in ("ragged",):
    try:
        Loader(ds, global_batch=8, sharding=NamedSharding(mesh, P("data")), tail=bad)
    except ps.errors.ConfigError:
        print("ok")
"""

JAX_VALUES = """
import sys
import jax
import numpy as np
import penstock as ps

def of(name, **fields):
    ds = ps.open(f"{sys.argv[1]}/{name}", **({"format": ps.formats.npy(rows=True)} if name.endswith("npy") else {}))
    return next(iter(ps.jax.Loader(ds.fields(**fields) if fields else ds, batch_size=4, rank=0, world=1)))

def refused(name, **fields):
    try:
        print(of(name, **fields))
    except ps.errors.ConfigError as error:
        return str(error), error.hint
    raise SystemExit("not refused")

wide = {"large.npy": "1099511627781", "negative.npy": "-2147483649", "unsigned.npy": "4294967296", "huge.npy": "1e+300"}
if sys.argv[2] == "narrow":
    assert of("small.npy")["array"].tolist() == [0, 1, -(2**31), 2**31 - 1]
    assert np.isnan(of("odd.npy")["array"][0]) and np.isinf(np.asarray(of("odd.npy")["array"])[1:]).all()
    for name, value in wide.items():
        text, hint = refused(name)
        assert f"fields: array contains {value}, which does not fit" in text, text
        assert "JAX_ENABLE_X64=1" in hint
    text, hint = refused("text.tar")
    assert "fields: " in text and "is bytes" in text and "penstock.Loader" in hint, text
    text, _ = refused("text.tar", txt=ps.ragged("uint8"))
    assert "txt is ragged uint8" in text, text
else:
    for name in wide:
        (array,) = of(name).values()
        assert array.dtype.itemsize == 8 and np.asarray(array).tolist() == np.load(f"{sys.argv[1]}/{name}").tolist()
print("ok")
"""

LIGHTNING = """
import sys, logging, warnings
warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
import torch
import lightning.pytorch as pl
import penstock as ps

ds = ps.open(sys.argv[1]).fields(y=ps.tensor("float32", (4,)))
train = ps.torch.Loader(ds.shuffle(seed=3), batch_size=4, rank=0, world=1)
held = ps.torch.Loader(ds.take(6), batch_size=4, rank=0, world=1)

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.seen, self.checked = {}, []
    def training_step(self, batch, index):
        self.seen.setdefault(self.current_epoch, []).extend(int(y) for y in batch["y"][:, 0])
        return self.layer(batch["y"] / 20).mean()
    def validation_step(self, batch, index):
        self.checked.append([int(y) for y in batch["y"][:, 0]])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

model = Model()
options = dict(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer = pl.Trainer(max_epochs=2, num_sanity_val_steps=1, limit_val_batches=1, **options)
trainer.fit(model, train, held)

def order(epoch):
    loader = ps.Loader(ds.shuffle(seed=3), batch_size=4, rank=0, world=1)
    loader.set_epoch(epoch)
    return [int(y) for batch in loader for y in batch["y"][:, 0]]

assert model.seen == {0: order(0), 1: order(1)}, model.seen
assert len(model.checked) == 3 and all(batch == [0, 1, 2, 3] for batch in model.checked), model.checked
print("ok")
"""

ACCELERATE = """
import sys
import torch
from accelerate import Accelerator
import penstock as ps

ds = ps.open(sys.argv[1]).fields(y=ps.tensor("float32", (4,)))
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 1)
loader = torch.utils.data.DataLoader(ps.torch.MapDataset(ds), batch_size=4, shuffle=True, num_workers=2)
model, optimiser, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), loader)
seen = []
for batch in loader:
    loss = model(batch["y"] / 20).mean()
    accelerator.backward(loss)
    optimiser.step()
    seen += [int(y) for y in batch["y"][:, 0]]
assert sorted(seen) == list(range(20)), seen

own = ps.torch.Loader(ds.shuffle(seed=1), batch_size=4, rank=accelerator.process_index, world=accelerator.num_processes)
accelerator.register_for_checkpointing(own)
walk = iter(own)
next(walk)
accelerator.save_state(sys.argv[2])
rest = [int(y) for batch in walk for y in batch["y"][:, 0]]
accelerator.load_state(sys.argv[2])
assert [int(y) for batch in own for y in batch["y"][:, 0]] == rest
print("ok")
"""

STATEFUL = """
import sys
from torchdata.stateful_dataloader import StatefulDataLoader
import penstock as ps

ds = ps.open(sys.argv[1]).fields(y=ps.tensor("float32", (4,))).shuffle(seed=4)
def loader():
    return StatefulDataLoader(ps.torch.MapDataset(ds), batch_size=3, num_workers=2)
def ids(batch):
    return [int(y) for y in batch["y"][:, 0]]
whole = [ids(batch) for batch in loader()]
first = loader()
walk = iter(first)
part = [ids(next(walk)) for _ in range(3)]
state = first.state_dict()
second = loader()
second.load_state_dict(state)
assert part + [ids(batch) for batch in second] == whole
print("ok")
"""


def tar_of(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, BytesIO(content))


def run(program: str, folder: Path, *arguments: object, **env: str) -> str:
    script = folder / "program.py"
    # torch forks its workers from a process with threads, about which newer Pythons warn.
    script.write_text(program)
    done = subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'python'}:{ROOT / '.tools/adapters'}", **env},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.needs_adapters
def test_jax_loader_gives_sharded_global_arrays(tmp_path):
    folder = write(tmp_path / "data", [2] * 10)
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    assert run(JAX, tmp_path, folder, **flags) == "ok\n"


@pytest.mark.needs_adapters
@pytest.mark.parametrize("mode", ["narrow", "wide"])
def test_jax_loader_cuts_no_value_and_names_fields_that_are_no_arrays(tmp_path, mode):
    """64-bit values that do not fit in 32 bits raise one error, unless x64 is on."""
    arrays = {
        "small.npy": np.array([0, 1, -(2**31), 2**31 - 1]),
        "odd.npy": np.array([np.nan, np.inf, -np.inf, np.inf]),
        "large.npy": np.array([1, 2**40 + 5, 2, 3]),
        "negative.npy": np.array([1, 2, -(2**31) - 1, 3]),
        "unsigned.npy": np.array([2**32, 1, 2, 3], dtype="u8"),
        "huge.npy": np.array([1.0, 1e300, 0.0, 2.0]),
    }
    for name, array in arrays.items():
        np.save(tmp_path / name, array)
    tar_of(tmp_path / "text.tar", {"a.txt": b"cat", "b.txt": b"horse"})
    environment = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1" if mode == "wide" else "0"}
    assert run(JAX_VALUES, tmp_path, tmp_path, mode, **environment) == "ok\n"


@pytest.mark.needs_adapters
def test_lightning_sanity_check_and_limits_do_not_move_the_order(tmp_path):
    assert run(LIGHTNING, tmp_path, write(tmp_path / "data", [2] * 10)).endswith("ok\n")


@pytest.mark.needs_adapters
def test_accelerate_trains_from_a_map_dataset_and_checkpoints_a_loader(tmp_path):
    assert run(ACCELERATE, tmp_path, write(tmp_path / "data", [2] * 10), tmp_path / "checkpoint").endswith("ok\n")


@pytest.mark.needs_adapters
def test_stateful_data_loader_resumes_over_a_map_dataset(tmp_path):
    assert run(STATEFUL, tmp_path, write(tmp_path / "data", [2] * 10)).endswith("ok\n")


@pytest.mark.needs_tf
def test_tf_dataset_gives_the_order_with_its_element_spec(tmp_path):
    import tensorflow as tf

    import penstock
    from penstock.tf import dataset as of

    ds = dataset(write(tmp_path / "data", [2] * 10)).shuffle(3)
    want = [batch["y"][:, 0].tolist() for batch in penstock.Loader(ds, batch_size=8)]
    made = of(ds, batch=8)
    assert made.element_spec == {
        "x": tf.TensorSpec((None, 3, 2), tf.int16),
        "y": tf.TensorSpec((None, 4), tf.float32),
    }
    assert int(made.cardinality()) == 3
    assert [batch["y"].numpy()[:, 0].tolist() for batch in made] == want
    assert [batch["y"].numpy()[:, 0].tolist() for batch in made] != want  # the next epoch
    doubled = of(ds, batch=8).map(lambda batch: batch["y"] * 2)
    assert [batch.numpy()[:, 0].tolist() for batch in doubled] == [[2 * y for y in ys] for ys in want]
    with pytest.raises(penstock.errors.ConfigError, match="map"):
        of(ds.map(print), batch=8)

    def decode(sample):
        return [{"y": sample["y"], "name": f"{sample['y'][0]:.0f}"}] * (int(sample["y"][0]) % 3)

    for rebatch in (False, True):
        decoded = of(ds.decode(decode, rebatch=rebatch), batch=8)
        assert decoded.element_spec == {
            "y": tf.TensorSpec((None, 4), tf.float32),
            "name": tf.TensorSpec((None,), tf.string),
        }
        assert int(decoded.cardinality()) == (tf.data.UNKNOWN_CARDINALITY if rebatch else 3)
        names = [name.decode() for batch in decoded for name in batch["name"].numpy()]
        assert names == [f"{y:.0f}" for ys in want for y in ys for _ in range(int(y) % 3)]
    with pytest.raises(penstock.errors.Unsupported, match="`y` is a list of list values"):
        of(ds.decode(lambda sample: {"y": [1, 2]}), batch=8)


@pytest.mark.needs_tf
def test_tf_dataset_reads_default_fields_raw_ragged_and_pictures(tmp_path):
    import tensorflow as tf

    import penstock
    from penstock.tf import dataset as of

    np.save(tmp_path / "x.npy", np.arange(10.0))
    rows = of(penstock.open(tmp_path / "x.npy", format=penstock.formats.npy(rows=True)), batch=4)
    assert rows.element_spec == {"array": tf.TensorSpec((None,), tf.float64)}
    assert np.concatenate([batch["array"].numpy() for batch in rows]).tolist() == list(range(10))

    texts = [b"cat", b"horse\x00", b""]
    members = {}
    for key, text in zip("abc", texts, strict=True):
        members |= {f"{key}.txt": text, f"{key}.png": png((9, 8, 7))}
    tar_of(tmp_path / "t.tar", members)
    ds = penstock.open(tmp_path / "t.tar")
    (batch,) = of(ds.fields(txt=penstock.raw(), key=penstock.raw().of("__key__")), batch=3)
    assert batch["txt"].dtype == tf.string
    assert batch["txt"].numpy().tolist() == texts
    assert [key[-1:] for key in batch["key"].numpy()] == [b"a", b"b", b"c"]

    ragged = of(ds.fields(txt=penstock.ragged("uint8")), batch=2)
    assert isinstance(ragged.element_spec["txt"], tf.RaggedTensorSpec)
    assert [row for batch in ragged for row in batch["txt"].to_list()] == [list(text) for text in texts]
    assert [len(batch["txt"].to_tensor()[0]) for batch in ragged.map(lambda batch: batch)] == [6, 0]

    words = [[b"ab", b"c"], [b"a", b"bc"], []]
    (tmp_path / "w.tfrecord").write_bytes(
        b"".join(frame(example(**({"words": strings} if strings else {}), id=[0])) for strings in words)
    )
    lists = of(penstock.open(tmp_path / "w.tfrecord").fields(words=penstock.raw_list()), batch=2)
    assert lists.element_spec == {"words": tf.RaggedTensorSpec((None, None), tf.string, ragged_rank=1)}
    assert [row for batch in lists for row in batch["words"].to_list()] == words

    for layout, shape in (("HWC", (8, 6, 3)), ("CHW", (3, 8, 6))):
        pictures = of(ds.fields(png=penstock.image(8, 6, layout=layout)), batch=3)
        assert pictures.element_spec == {"png": tf.TensorSpec((None, *shape), tf.uint8)}
        (batch,) = pictures
        axis = 3 if layout == "HWC" else 1
        assert (np.moveaxis(batch["png"].numpy(), axis, 3) == [9, 8, 7]).all()


@pytest.mark.needs_tf
def test_tf_dataset_reads_lists_of_lists_and_masks(tmp_path):
    import tensorflow as tf

    import penstock
    from penstock.tf import dataset as of

    rows = [
        {"boxes": [[1, 2], []], "points": [[[1, 2], [3, 4]]], "words": [[b"a"], []], "label": 3},
        {"boxes": [], "points": [], "words": None, "label": None},
    ]
    kinds = {"boxes": [["int64"]], "points": [[["int64"]]], "words": [["bytes"]], "label": "int64"}
    (tmp_path / "a.parquet").write_bytes(nested_bytes(kinds, rows))
    ds = penstock.open(tmp_path).fields(
        boxes=penstock.list(penstock.ragged("int32")),
        points=penstock.list(penstock.ragged("int64", (2,))),
        words=penstock.list(penstock.raw_list()),
        label=penstock.tensor("int64", (), mask="labelled"),
    )
    made = of(ds, batch=2)
    assert made.element_spec == {
        "boxes": tf.RaggedTensorSpec((None, None, None), tf.int32, ragged_rank=2),
        "points": tf.RaggedTensorSpec((None, None, None, 2), tf.int64, ragged_rank=2),
        "words": tf.RaggedTensorSpec((None, None, None), tf.string, ragged_rank=2),
        "label": tf.TensorSpec((None,), tf.int64),
        "labelled": tf.TensorSpec((None,), tf.bool),
    }
    (batch,) = made
    for name in ("boxes", "points", "words"):
        assert batch[name].to_list() == [row[name] or [] for row in rows]
    assert (batch["label"].numpy().tolist(), batch["labelled"].numpy().tolist()) == ([3, 0], [True, False])


def words(texts: list[str]) -> list[list[int]]:
    return [[len(word) for word in text.split()] for text in texts]


@pytest.mark.needs_tf
def test_tf_dataset_reads_tokens_windows_and_unindexed_records(tmp_path):
    import tensorflow as tf

    import penstock
    from penstock.tf import dataset as of

    (tmp_path / "a.jsonl").write_text(
        '{"text": "a bc", "id": 0}\n{"text": "", "id": 1}\n{"text": "d ef ghi", "id": 2}\n'
    )
    fields = {"text": penstock.text(), "id": penstock.tensor("int64", ())}
    documents = penstock.open(tmp_path).fields(**fields)
    tokens = documents.tokenize(words, key="lengths")
    made = of(tokens, batch=2)
    assert made.element_spec == {
        "tokens": tf.RaggedTensorSpec((None, None), tf.int64, ragged_rank=1),
        "id": tf.TensorSpec((None,), tf.int64),
    }
    assert int(made.cardinality()) == 2
    assert [row for batch in made for row in batch["tokens"].to_list()] == [[1, 2], [], [1, 2, 3]]
    windows = of(tokens.pack(4, eos=9), batch=1)
    assert windows.element_spec["tokens"] == tf.TensorSpec((None, 4), tf.int64)
    assert [batch["tokens"].numpy().tolist() for batch in windows] == [[[1, 2, 9, 9]], [[1, 2, 3, 9]]]
    plain = of(penstock.open(tmp_path, indexed=False).fields(**fields), batch=2)
    assert int(plain.cardinality()) == tf.data.UNKNOWN_CARDINALITY
    assert [text for batch in plain for text in batch["text"].numpy().tolist()] == [b"a bc", b"", b"d ef ghi"]


@pytest.mark.needs_tf
def test_tensorflow_training_resumes_from_a_loaders_state(tmp_path):
    """`tf.data` prefetches, so a resumable training iterates a loader, and stores its state in tf.train.Checkpoint."""
    import json

    import tensorflow as tf

    import penstock

    ds = dataset(write(tmp_path / "data", [2] * 11)).shuffle(3)
    weight = tf.Variable(0.0)

    def train(loader, steps):
        seen = []
        while len(seen) < steps:
            for batch in loader:
                weight.assign_add(tf.reduce_mean(tf.constant(batch["y"])))
                seen.append(batch["y"][:, 0].tolist())
                if len(seen) == steps:
                    break
        return seen

    whole = train(penstock.Loader(ds, batch_size=4), 9)
    weight.assign(0.0)
    first = penstock.Loader(ds, batch_size=4)
    seen = train(first, 8)
    place = tf.Variable(json.dumps(first.state_dict()))
    path = tf.train.Checkpoint(weight=weight, place=place).write(str(tmp_path / "checkpoint"))
    place.assign("")
    weight.assign(0.0)
    tf.train.Checkpoint(weight=weight, place=place).read(path).assert_consumed()
    second = penstock.Loader(ds, batch_size=4)
    second.load_state_dict(json.loads(place.numpy()))
    assert seen + train(second, 1) == whole
