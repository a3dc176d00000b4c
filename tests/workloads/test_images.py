# SPDX-License-Identifier: Apache-2.0
"""Tests the image workloads (ResNet and the trivial model): models, input, labels, steps and bad input."""

import subprocess
import sys

import numpy as np
import pytest
import torch
import torchvision

from penstock.errors import BudgetExceeded, ConfigError
from penstock.protocols import Workload, WorkloadSpec
from penstock.train import TrainSpec, run
from penstock.train.source import DummyFeed, FeedRequest, open_feed
from penstock.workloads._shared import torch_step
from penstock.workloads._shared.image_training import as_input
from penstock.workloads.resnet import IMAGE_S, RECIPES, ResNetRecipe, resnet18, resnet50, resnet152
from penstock.workloads.resnet.model import parameter_count
from penstock.workloads.trivial import TrivialRecipe
from penstock.workloads.trivial import workload as trivial
from penstock.workloads.trivial.model import TrivialNet
from tests.workloads import image_sets

pytestmark = pytest.mark.needs_torch

TINY = {"image_size": 32, "classes": 4}


def batch(n, *, seed=0, side=32, classes=4):
    rng = np.random.default_rng(seed)
    labels = torch.from_numpy(rng.integers(0, classes, n))
    return {
        "image": torch.from_numpy(rng.integers(0, 256, (n, side, side, 3), np.uint8)),
        "label": labels,
        "label_from_1": labels,
    }


def prepared(make=resnet18, global_batch=4, seed=0, **settings):
    made = make()
    spec = WorkloadSpec(seed=seed, global_batch=global_batch, settings={**TINY, **settings})
    made.demand(spec)
    made.prepare(spec)
    made.begin_epoch(0)
    return made


def demand_of(make, **settings):
    return make().demand(WorkloadSpec(seed=0, global_batch=4, settings=settings))


def request(url, demand, **fields):
    made = {
        "url": str(url), "demand": demand, "seed": 1, "global_batch": 8, "rank": 0, "world": 1, "tail": "ragged",
        "shuffled": True, "device": "cpu",
    }  # fmt: skip
    return FeedRequest(**{**made, **fields})


# ---------------------------------------------------------------- models


@pytest.mark.parametrize(
    ("name", "published"), [("resnet18", 11_689_512), ("resnet50", 25_557_032), ("resnet152", 60_192_808)]
)
def test_resnet_has_the_published_parameters(name, published):
    assert parameter_count(name, 1000) == published
    with torch.device("meta"):
        net = torchvision.models.get_model(name, weights=None, num_classes=10)
    assert sum(p.numel() for p in net.parameters()) == parameter_count(name, 10)


def test_trivial_model_has_the_layers_of_tf_cnn_benchmarks():
    torch.manual_seed(0)  # a sum near 0 before a ReLU would have a large relative error
    net = TrivialNet(227, 1000)
    shapes = [tuple(layer.weight.shape) for layer in (net.dense1, net.dense2, net.classes)]
    assert shapes == [(1, 227 * 227 * 3), (4096, 1), (1000, 4096)]
    assert sum(p.numel() for p in net.parameters()) == demand_of(trivial).facts["parameters"]
    images = batch(2, side=227)["image"]
    normal = as_input(images, channels_last=True)
    flat = normal.permute(0, 2, 3, 1).reshape(2, -1).numpy().astype(np.float64)
    x = images.float().permute(0, 3, 1, 2)  # the model normalises in its first layer
    hidden = np.maximum(flat @ net.dense1.weight.detach().numpy().T, 0)
    hidden = np.maximum(hidden @ net.dense2.weight.detach().numpy().T, 0)
    want = hidden @ net.classes.weight.detach().numpy().T
    np.testing.assert_allclose(net(x).detach().numpy(), want, rtol=1e-4, atol=1e-6)


def test_weights_depend_on_the_seed_alone():
    states = [prepared(seed=seed).state_dict()["model"] for seed in (3, 3, 4)]
    key = "layer1.0.conv1.weight"
    assert torch.equal(states[0][key], states[1][key])
    assert not torch.equal(states[0][key], states[2][key])


def test_workloads_implement_the_interface_and_name_their_model():
    for make in (resnet18, resnet50, resnet152, trivial):
        assert isinstance(make(), Workload)
    facts = demand_of(resnet50).facts
    assert (facts["model"], facts["published_model"]) == ("resnet50", True)
    assert demand_of(resnet50, image_size=64).facts["published_model"] is False


def test_recipes_are_all_valid():
    for name in RECIPES:
        ResNetRecipe.parse("resnet50", {"recipe": name}, RECIPES, "imagenet")
    assert TrivialRecipe().image_size == 227


# ---------------------------------------------------------------- input and labels


@pytest.mark.parametrize("channels_last", [True, False])
def test_input_is_normalised_by_imagenets_statistics(channels_last):
    images = batch(2)["image"]
    x = as_input(images, channels_last=channels_last)
    scaled = images.numpy().astype(np.float64) / 255
    want = (scaled - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(x.numpy(), want.transpose(0, 3, 1, 2), atol=1e-5)
    assert x.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """The same 24 images of 4 classes in the three formats."""
    home = tmp_path_factory.mktemp("images")
    pairs = image_sets.samples(24)
    image_sets.write_tfrecord(home / "tfrecord", pairs)
    image_sets.write_tar(home / "tar", pairs)
    image_sets.write_folders(home / "folders", pairs)
    return home


def test_labels_and_images_are_equal_in_all_formats(sets):
    """Labels count from 1 in TFRecords, and from 0 in tar shards and class folders."""
    found = {}
    for name in ("tfrecord", "tar", "folders"):
        made = prepared(image_size=64)
        demand = demand_of(resnet18, image_size=64, classes=4)
        found[name] = made.evaluate(open_feed(request(sets / name, demand, shuffled=False)))
        assert found[name]["validation_samples"] == 24
    for name in ("tar", "folders"):
        assert found[name]["top1"] == found["tfrecord"]["top1"]
        assert found[name]["validation_loss"] == pytest.approx(found["tfrecord"]["validation_loss"], rel=1e-5)


def test_training_augments_and_validation_does_not(sets):
    demand = demand_of(resnet18, **TINY)

    def epochs(**fields):
        feed = open_feed(request(sets / "tar", demand, global_batch=24, **fields))
        return [{k: v.clone() for k, v in next(iter([*feed])).items()} for _ in range(2)]

    first, second = epochs()
    by_label = [sorted(e["label"].tolist()) for e in (first, second)]
    assert by_label[0] == by_label[1]
    means = [sorted(e["image"].float().mean((1, 2, 3)).tolist()) for e in (first, second)]
    assert means[0] != means[1]
    first, second = epochs(shuffled=False)
    assert torch.equal(first["image"], second["image"])
    plain = demand_of(resnet18, augment=False, **TINY)
    feed = open_feed(request(sets / "tar", plain, global_batch=24))
    trained = [sorted(next(iter([*feed]))["image"].float().mean((1, 2, 3)).tolist()) for _ in range(2)]
    assert trained[0] == trained[1]


def test_generated_labels_are_below_the_number_of_classes():
    for make in (resnet18, trivial):
        feed = DummyFeed(request("dummy://64", demand_of(make, classes=3), global_batch=64))
        (one,) = list(feed)
        side = 224 if make is resnet18 else 227
        assert one["image"].shape == (64, side, side, 3)
        assert one["image"].dtype == torch.uint8
        assert set(one["label"].tolist()) == {0, 1, 2}


@pytest.mark.parametrize(
    ("write", "output"),
    [
        (lambda to, pairs: image_sets.write_tar(to, pairs), "has the label 3, but 3 classes allow 0 to 2"),
        (lambda to, pairs: image_sets.write_tfrecord(to, pairs), "has the label 4, but 3 classes allow 1 to 3"),
        (
            lambda to, pairs: image_sets.write_tfrecord(
                to, [(data, min(label, 2)) for data, label in pairs], first_label=0
            ),
            "has the label 0, but 3 classes allow 1 to 3",
        ),
        (
            lambda to, pairs: image_sets.write_tar(to, [(data, -1) for data, _ in pairs]),
            "has the label -1, but 3 classes allow 0 to 2",
        ),
        (
            lambda to, pairs: image_sets.write_tar(to, pairs, has_labels=False),
            "has no label .looked for image/class/label, cls, label.",
        ),
    ],
)
def test_label_out_of_range_names_the_step_the_sample_and_the_range(tmp_path, write, output):
    write(tmp_path / "data", image_sets.samples(8))
    spec = TrainSpec(
        workload="resnet18",
        data=str(tmp_path / "data"),
        global_batch=8,
        settings={"image_size": 32, "classes": 3},
        threads=1,
    )
    with pytest.raises(ConfigError, match=rf"^step 1 on rank 0: sample \d of 8 {output}") as caught:
        run(spec)
    assert caught.value.hint


@pytest.mark.parametrize(("write", "ranks"), [(image_sets.write_tar, 1), (image_sets.write_tfrecord, 2)])
def test_label_out_of_range_names_its_object_and_record(tmp_path, write, ranks):
    """Of 24 samples in 2 shards, the sample 17 is wrong: record 9 of shard 1."""
    pairs = [(data, 3 if n == 17 else label % 3) for n, (data, label) in enumerate(image_sets.samples(24))]
    write(tmp_path / "data", pairs)
    write(tmp_path / "good", [(data, label % 3) for data, label in pairs])
    settings = {"image_size": 32, "classes": 3}
    wrong = {"workload": "resnet18", "global_batch": 4, "threads": 1, "settings": settings, "ranks": ranks}
    with pytest.raises(ConfigError, match=r"(?m)classes allow . to . \(record 9 of .*0001.*\)$") as caught:
        run(TrainSpec(data=str(tmp_path / "data"), epochs=2, **wrong))
    is_tar = write is image_sets.write_tar
    assert ("class folders count from 0" in caught.value.hint) == is_tar
    assert ("image/class/label counts from 1" in caught.value.hint) != is_tar
    with pytest.raises(ConfigError, match=r"(?m)validation batch 6 on rank .* \(record 9 of .*0001.*\)$"):
        run(TrainSpec(data=str(tmp_path / "good"), validation=str(tmp_path / "data"), steps=1, **wrong))


# ---------------------------------------------------------------- steps


def test_step_is_momentum_sgd_on_smoothed_cross_entropy_with_decay_of_weights_only():
    settings = {"base_learning_rate": 0.01, "base_batch": 4, "warmup_epochs": 0, "weight_decay": 0.1}
    made = prepared(label_smoothing=0.2, **settings)
    torch.manual_seed(0)
    net = torchvision.models.resnet18(weights=None, num_classes=4, zero_init_residual=True)
    net.to(memory_format=torch.channels_last)
    net.train()
    speed = [torch.zeros_like(p) for p in net.parameters()]
    for k in range(2):
        data = batch(4, seed=k)
        cost = made.step(data)
        loss = torch.nn.functional.cross_entropy(
            net(as_input(data["image"], channels_last=True)), data["label"], label_smoothing=0.2
        )
        assert cost.loss == pytest.approx(float(loss.detach()), rel=1e-4)
        assert (cost.samples, cost.sync_s) == (4, 0.0)
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():
            for p, v, g in zip(net.parameters(), speed, gradients, strict=True):
                v.mul_(0.9).add_(g + (0.1 * p if p.ndim > 1 else 0))
                p.sub_(v, alpha=0.01)
    got = made.state_dict()["model"]
    for name, p in net.named_parameters():
        torch.testing.assert_close(got[name], p.detach(), rtol=1e-3, atol=1e-4)


def test_schedule_of_imagenet_warms_up_and_steps_down():
    made = resnet18()
    spec = WorkloadSpec(seed=0, global_batch=1024, settings=TINY)
    made.demand(spec)
    made.prepare(spec)
    rates = []
    for epoch in (0, 1, 5, 29, 30, 60, 80):
        made.begin_epoch(epoch)
        rates.append(made._inner._optimiser.param_groups[0]["lr"])
    assert rates == pytest.approx([0.1, 0.16, 0.4, 0.4, 0.04, 0.004, 0.0004])


@pytest.mark.parametrize("make", [resnet18, trivial])
def test_state_resumed_goes_on_with_the_same_losses_and_metrics(make):
    data = [batch(4, seed=k) for k in range(5)]
    straight = prepared(make)
    losses = [straight.step(b).loss for b in data]
    assert len(set(losses)) == 5
    first = prepared(make)
    for b in data[:2]:
        first.step(b)
    second = prepared(make, seed=9)
    second.load_state_dict(first.state_dict())
    second.begin_epoch(0)
    assert [second.step(b).loss for b in data[2:]] == losses[2:]
    assert second.evaluate(data) == straight.evaluate(data)


def test_evaluation_is_exact_over_ragged_slices_with_empty_ones():
    made = prepared()
    made.step(batch(4, seed=9))
    data = batch(7)
    parts = [{k: v[a:b] for k, v in data.items()} for a, b in ((0, 4), (4, 4), (4, 7))]
    whole, ragged = made.evaluate([data]), made.evaluate(parts)
    assert whole == pytest.approx(ragged, rel=1e-5)
    assert whole["top5"] == 1.0  # 4 classes
    assert made.evaluate([]) == {}


def test_top1_and_top5_count_the_best_classes():
    made = prepared(trivial, classes=20)
    net = made._inner._net
    with torch.no_grad():
        net.classes.weight.zero_()
        net.classes.bias.copy_(torch.arange(20.0))  # class 19 is best, and 15 is fifth
    data = batch(4)
    data["label"] = torch.tensor([19, 15, 14, 0])
    metrics = made.evaluate([data])
    assert (metrics["top1"], metrics["top5"]) == (0.25, 0.5)


@pytest.mark.parametrize("make", [resnet18, trivial])
def test_amp_computes_in_bfloat16_and_keeps_weights_in_float32(make):
    exact, half = prepared(make), prepared(make, amp=True)
    data = batch(4)
    losses = [made.step(data).loss for made in (exact, half)]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    assert losses[1] != losses[0]
    assert {p.dtype for p in half._inner._net.parameters()} == {torch.float32}


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("settings", "output"),
    [
        ({"image_size": 16}, "image_size must be at least 32"),
        ({"classes": 1}, "classes at least 2"),
        ({"label_smoothing": 1.0}, "label_smoothing"),
        ({"momentum": 1.0}, "momentum"),
        ({"no_such": 1}, "no_such"),
        ({"recipe": "none"}, "unknown resnet18 recipe `none`"),
        ({"compile": True, "cuda_graphs": True}, "cannot be combined"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, output):
    with pytest.raises(ConfigError, match=output):
        demand_of(resnet18, **settings)


def test_global_batch_that_ranks_cannot_share_is_refused():
    with pytest.raises(ConfigError, match="3 ranks"):
        resnet18().demand(WorkloadSpec(seed=0, global_batch=4, world=3, settings=TINY))


def test_images_of_another_size_than_the_models_are_refused():
    made = prepared()
    with pytest.raises(ConfigError, match=r"step 1 on rank 0: images are torch.uint8 \[40, 40, 3\], but resnet18"):
        made.step(batch(4, side=40))
    with pytest.raises(ConfigError, match="validation batch 1 on rank 0"):
        made.evaluate([batch(4, side=40)])


def test_cuda_graphs_without_a_gpu_are_refused():
    with pytest.raises(ConfigError, match="cuda_graphs requires a GPU"):
        prepared(cuda_graphs=True)


def test_memory_that_runs_out_is_an_error_with_a_smaller_batch():
    device = torch.device("cpu")
    with (
        pytest.raises(BudgetExceeded, match=r"out of memory on cpu: a step of 32 samples .* does not fit") as caught,
        torch_step.memory_advice(32, "images of 224 x 224 pixels", device),
    ):
        torch.empty(1 << 50)  # more than any machine has: torch's own error
    assert "--batch-size 16" in caught.value.hint
    with pytest.raises(BudgetExceeded) as caught, torch_step.memory_advice(1, "x", device):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert "smaller model" in caught.value.hint
    with pytest.raises(RuntimeError, match="other"), torch_step.memory_advice(1, "x", device):
        raise RuntimeError("other")


@pytest.mark.parametrize(
    ("module", "content", "output"),
    [
        ("torchvision", None, "ConfigError training resnet50 requires torchvision, which is not installed"),
        ("torch", None, "ConfigError training resnet50 requires torch, which is not installed"),
        (
            "torchvision",
            "raise RuntimeError('operator torchvision::nms does not exist')",
            "ConfigError torchvision does not match the installed torch: operator torchvision::nms does not exist",
        ),
    ],
)
def test_missing_or_foreign_torchvision_names_what_to_install(tmp_path, module, content, output):
    code = [
        "import sys",
        f"sys.modules[{module!r}] = None" if content is None else f"sys.path.insert(0, {str(tmp_path)!r})",
        "from penstock.errors import PenstockError",
        "from penstock.protocols import WorkloadSpec",
        "from penstock.workloads.resnet import resnet50",
        "try:",
        "    resnet50().demand(WorkloadSpec(seed=0, global_batch=1))",
        "except PenstockError as error:",
        "    print(type(error).__name__, error, error.hint)",
    ]
    if content is not None:
        (tmp_path / f"{module}.py").write_text(content)
    done = subprocess.run([sys.executable, "-c", "\n".join(code)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(output), done.stdout
    assert "penstock[vision]" in done.stdout


# ---------------------------------------------------------------- emulated accelerators


def test_emulated_accelerator_takes_the_published_time_for_each_image():
    made = resnet50()
    spec = WorkloadSpec(seed=0, global_batch=4, accelerator="h100", settings={"image_size": 32})
    demand = made.demand(spec)
    assert demand.samples_per_s == pytest.approx(400 / 0.224)
    assert demand.arrays == "numpy"
    made.prepare(spec)
    made.begin_epoch(0)
    cost = made.step({k: v.numpy() for k, v in batch(4).items()})
    assert (cost.samples, cost.compute_s, cost.loss) == (4, pytest.approx(4 * 0.224 / 400), None)


def test_accelerator_scale_multiplies_the_published_rate():
    demand = {}
    for scale in (1, 8, 0.2):
        spec = WorkloadSpec(
            seed=0, global_batch=4, accelerator="v100-fp32", settings={"image_size": 32, "accelerator_scale": scale}
        )
        made = resnet50()
        demand[scale] = made.demand(spec).samples_per_s
        made.prepare(spec)
        made.begin_epoch(0)
        cost = made.step({k: v.numpy() for k, v in batch(4).items()})
        assert cost.compute_s == pytest.approx(4 / 412 / scale)
    assert demand == pytest.approx({1: 412, 8: 3296, 0.2: 82.4})


@pytest.mark.parametrize("make", [resnet50, trivial])
@pytest.mark.parametrize(("scale", "message"), [(4, "requires an emulated accelerator"), (0, "finite and above 0")])
def test_accelerator_scale_without_an_accelerator_or_of_zero_is_refused(make, scale, message):
    with pytest.raises(ConfigError, match=message):
        make().demand(WorkloadSpec(seed=0, global_batch=1, settings={"accelerator_scale": scale}))


def test_accelerator_without_a_published_time_is_refused():
    for make, hint in ((resnet50, "h100"), (resnet152, "p100@2017"), (trivial, "omit --accelerator")):
        with pytest.raises(ConfigError, match="no published step time for accelerator `tpu`") as caught:
            make().demand(WorkloadSpec(seed=0, global_batch=1, accelerator="tpu"))
        assert hint in caught.value.hint
    assert IMAGE_S["resnet152"]["p100@2017"] > IMAGE_S["resnet50"]["p100@2017"]
