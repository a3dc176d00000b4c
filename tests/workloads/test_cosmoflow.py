# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch

from penstock.errors import ConfigError
from penstock.protocols import Workload, WorkloadSpec
from penstock.workloads._shared.accelerator import Pacer
from penstock.workloads.cosmoflow import CosmoFlow, Recipe, learning_rate, workload
from penstock.workloads.cosmoflow.emulated import ACCELERATORS, EmulatedCosmoFlow
from penstock.workloads.cosmoflow.model import CosmoFlowNet, SC18Net, as_input
from penstock.workloads.cosmoflow.recipe import RECIPES, parameter_count, sc18_side

pytestmark = pytest.mark.needs_torch

TINY = {"voxels": 32, "filters": 2, "dropout": 0.0}


def batch(n, seed=0, voxels=32):
    rng = np.random.default_rng(seed)
    x = rng.poisson(1.0, (n, voxels, voxels, voxels, 4)).astype(np.int16)
    y = rng.uniform(-1, 1, (n, 4)).astype(np.float32)
    return {"x": torch.from_numpy(x), "y": torch.from_numpy(y)}


def prepared(global_batch=4, seed=0, **settings):
    made = workload()
    spec = WorkloadSpec(seed=seed, global_batch=global_batch, settings={**TINY, **settings})
    made.demand(spec)
    made.prepare(spec)
    made.begin_epoch(0)
    return made


def test_model_of_mlperf_has_the_published_parameters():
    net = CosmoFlowNet(Recipe())
    assert sum(p.numel() for p in net.parameters()) == 8_907_556
    assert sum(p.numel() for p in net.convolutions.parameters()) == 4_704_608
    assert [sum(p.numel() for p in layer.parameters()) for layer in (net.dense1, net.dense2, net.dense3)] == [
        4_194_432,
        8_256,
        260,
    ]


@pytest.mark.parametrize("filters", [1, 4])
def test_model_made_smaller_counts_by_the_formula(filters):
    recipe = Recipe(voxels=64, filters=filters)
    assert sum(p.numel() for p in CosmoFlowNet(recipe).parameters()) == parameter_count(recipe)


def test_input_is_log1p_of_the_counts_channels_first():
    counts = batch(2)["x"]
    x = as_input(counts, torch.device("cpu"))
    want = np.log1p(counts.numpy().astype(np.float32)).transpose(0, 4, 1, 2, 3)
    assert x.dtype == torch.float32
    assert x.shape == (2, 4, 32, 32, 32)
    np.testing.assert_allclose(x.numpy(), want, rtol=1e-6)
    assert x.is_contiguous(memory_format=torch.channels_last_3d)
    assert counts.dtype == torch.int16
    assert int(counts.max()) > 1


def numpy_forward(net, counts):
    """The network by definition, without torch: explicit windows, explicit flattening."""
    x = np.log1p(counts.astype(np.float64))

    def leaky(v):
        return np.where(v > 0, v, 0.3 * v)

    for layer in net.convolutions:
        kernel, bias = (p.detach().numpy().astype(np.float64) for p in (layer.weight, layer.bias))
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (1, 1), (0, 0)))
        d, h, w = x.shape[1:4]
        out = np.zeros((*x.shape[:4], kernel.shape[0])) + bias
        for i in range(3):
            for j in range(3):
                for k in range(3):
                    out += padded[:, i : i + d, j : j + h, k : k + w] @ kernel[:, :, i, j, k].T
        out = leaky(out)
        x = out.reshape(len(out), d // 2, 2, h // 2, 2, w // 2, 2, -1).max((2, 4, 6))
    x = x.reshape(len(x), -1)
    for layer in (net.dense1, net.dense2):
        x = leaky(x @ layer.weight.detach().numpy().astype(np.float64).T + layer.bias.detach().numpy())
    return np.tanh(x @ net.dense3.weight.detach().numpy().astype(np.float64).T + net.dense3.bias.detach().numpy()) * 1.2


@pytest.mark.parametrize("voxels", [32, 64])  # 64: the flattening's order shows
def test_model_computes_what_numpy_computes_by_definition(voxels):
    torch.manual_seed(1)
    net = CosmoFlowNet(Recipe(voxels=voxels, filters=2))
    counts = batch(2, voxels=voxels)["x"]
    with torch.no_grad():
        got = net(as_input(counts, torch.device("cpu"))).numpy()
    np.testing.assert_allclose(got, numpy_forward(net, counts.numpy()), atol=1e-5)


def test_weights_are_glorot_uniform_and_biases_zero():
    torch.manual_seed(0)
    net = CosmoFlowNet(Recipe(voxels=32, filters=8))
    for layer in (*net.convolutions, net.dense1, net.dense2, net.dense3):
        assert torch.count_nonzero(layer.bias) == 0
        weight = layer.weight.detach()
        window = weight[0, 0].numel()
        limit = (6 / (window * (weight.shape[0] + weight.shape[1]))) ** 0.5
        assert limit * 0.9 < float(weight.abs().max()) <= limit


def test_schedule_of_mlperf_warms_up_and_steps_down_strictly():
    rates = [learning_rate(Recipe(), 256, epoch) for epoch in range(70)]
    assert rates[:5] == pytest.approx([0.001, 0.00175, 0.0025, 0.00325, 0.004])
    assert (rates[32], rates[33], rates[64], rates[65]) == pytest.approx((0.004, 0.001, 0.001, 0.0005))


def test_recipe_refuses_what_cannot_be():
    for settings, output in (
        ({"voxels": 48}, "multiple of 32"),
        ({"filters": 0}, "filter"),
        ({"dropout": 1.0}, "dropout"),
        ({"decay_epochs": [3], "decay_factors": []}, "decay"),
        ({"no_such": 1}, "no_such"),
        ({"filters": "many"}, "filters"),
        ({"recipe": "none"}, "unknown cosmoflow recipe"),
    ):
        with pytest.raises(ConfigError, match=output):
            workload().demand(WorkloadSpec(seed=0, global_batch=4, settings=settings))


def test_recipes_are_all_valid():
    for name in RECIPES:
        Recipe.of({"recipe": name})


def test_workload_is_one_and_says_when_its_model_is_not_the_published():
    made = workload()
    assert isinstance(made, Workload)
    facts = made.demand(WorkloadSpec(seed=0, global_batch=4, settings=TINY)).facts
    assert facts["mlperf_model"] is False
    assert "rehearsal" in facts["deviation"]
    facts = workload().demand(WorkloadSpec(seed=0, global_batch=4)).facts
    assert facts["mlperf_model"] is True
    assert facts["parameters"] == 8_907_556
    assert "deviation" not in facts


def test_global_batch_that_ranks_cannot_share_is_refused():
    with pytest.raises(ConfigError, match="3 ranks"):
        workload().demand(WorkloadSpec(seed=0, global_batch=4, world=3, settings=TINY))


def test_step_is_one_of_momentum_sgd_on_mean_squared_error():
    rate, momentum = 0.0005 * 4, 0.9
    made = prepared(base_learning_rate=0.0005, base_batch=1, warmup_epochs=0)
    torch.manual_seed(0)
    net = CosmoFlowNet(Recipe(**TINY))
    speed = [torch.zeros_like(p) for p in net.parameters()]
    for k in range(3):
        data = batch(4, seed=k)
        cost = made.step(data)
        loss = ((net(as_input(data["x"], torch.device("cpu"))) - data["y"]) ** 2).mean()
        assert cost.loss == pytest.approx(float(loss.detach()), rel=1e-5)
        assert cost.samples == 4
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():
            for p, v, g in zip(net.parameters(), speed, gradients, strict=True):
                v.mul_(momentum).add_(g)
                p.sub_(v, alpha=rate)


def test_same_seed_gives_the_same_losses_bit_for_bit_with_dropout():
    def curve(seed):
        made = prepared(seed=seed, dropout=0.5)
        return [made.step(batch(4, seed=k)).loss for k in range(4)]

    assert curve(7) == curve(7)
    assert curve(7) != curve(8)


def test_dropout_changes_from_step_to_step_and_is_off_in_evaluation():
    made = prepared(dropout=0.5, base_learning_rate=1e-30)
    data = batch(4)
    assert len({made.step(data).loss for _ in range(4)}) > 1
    assert made.evaluate([data]) == made.evaluate([data])


def test_evaluation_is_exact_over_ragged_slices_with_empty_ones():
    made = prepared()
    trained = batch(4, seed=9)
    made.step(trained)
    data = batch(7)
    parts = [{k: v[a:b] for k, v in data.items()} for a, b in ((0, 4), (4, 4), (4, 7))]
    whole, ragged = made.evaluate([data]), made.evaluate(parts)
    assert whole["mae"] == pytest.approx(ragged["mae"], rel=1e-6)
    assert ragged["validation_samples"] == 7
    y = data["y"].numpy().astype(float)
    assert ragged["mae_constant"] == pytest.approx(
        np.abs(y - trained["y"].numpy().astype(float).mean(0)).mean(), rel=1e-6
    )
    assert made.evaluate([]) == {}


def test_state_resumed_goes_on_with_the_same_losses():
    data = [batch(4, seed=k) for k in range(6)]
    straight = prepared(dropout=0.5)
    losses = [straight.step(b).loss for b in data]
    first = prepared(dropout=0.5)
    for b in data[:3]:
        first.step(b)
    second = prepared(seed=0, dropout=0.5)
    second.load_state_dict(first.state_dict())
    second.begin_epoch(0)
    assert [second.step(b).loss for b in data[3:]] == losses[3:]
    assert second.evaluate([data[0]]) == straight.evaluate([data[0]])


class Clock:
    """A simulated clock: a sleep overshoots, and every reading takes some time."""

    def __init__(self, overshoot=6e-5, look=1e-6):
        self.now, self.overshoot, self.look = 100.0, overshoot, look

    def __call__(self):
        self.now += self.look
        return self.now

    def sleep(self, seconds):
        self.now += seconds + self.overshoot


@pytest.mark.parametrize("overshoot", [6e-5, 9e-4])  # within what is spun, and beyond it
def test_emulated_step_overshoot_is_counted_out(overshoot):
    clock = Clock(overshoot)
    pacer = Pacer(clock=clock, sleep=clock.sleep)
    begun = clock.now
    for _ in range(1000):
        pacer.pace(clock(), 0.0035)
    assert clock.now - begun == pytest.approx(3.5, rel=2e-3)


def test_emulated_steps_pay_back_what_a_busy_kernel_took():
    """A pause of 40 ms in a step of 3.5 ms: the next eleven steps are shorter, so that the total time is right."""
    clock = Clock()
    pacer = Pacer(clock=clock, sleep=clock.sleep)
    begun = clock.now
    for step in range(100):
        started = clock()
        clock.now += 0.04 if step == 50 else 0.0
        pacer.pace(started, 0.0035)
    assert clock.now - begun == pytest.approx(0.35, rel=2e-3)
    # A suspended process is different: a pause of an hour is not made up for.
    started = clock()
    clock.now += 3600
    pacer.pace(started, 0.0035)
    assert pacer.overshoot_s == pytest.approx(0.05)


def test_emulated_first_step_of_an_epoch_hands_on_no_overshoot():
    """Utilisation excludes the first step; if its overshoot shortened a later step, utilisation could exceed 100 %."""
    clock = Clock(overshoot=9e-4)
    made = EmulatedCosmoFlow(Recipe(**TINY), Pacer(clock=clock, sleep=clock.sleep), clock)
    spec = WorkloadSpec(seed=0, global_batch=1, accelerator="h100", settings=TINY)
    made.demand(spec)
    made.prepare(spec)
    data = {k: v.numpy() for k, v in batch(1).items()}
    for epoch in range(2):
        made.begin_epoch(epoch)
        made.step(data)
        second = clock.now
        made.step(data)
        assert clock.now - second >= 0.0035


def test_emulated_accelerator_takes_the_published_time_for_each_sample():
    for name, seconds in (("v100", 0.00936), ("a100", 0.00551), ("h100", 0.00350)):
        clock = Clock()
        made = EmulatedCosmoFlow(Recipe(**TINY), Pacer(clock=clock, sleep=clock.sleep), clock)
        spec = WorkloadSpec(seed=0, global_batch=4, accelerator=name, settings=TINY)
        demand = made.demand(spec)
        assert demand.samples_per_s == pytest.approx(1 / seconds)
        assert demand.arrays == "numpy"
        made.prepare(spec)
        data = {k: v.numpy() for k, v in batch(4).items()}
        cost = made.step(data)
        assert cost.compute_s == pytest.approx(4 * seconds)
        assert cost.loss is None
        assert made.touched > 0
        assert made.evaluate([{k: v[:0] for k, v in data.items()}, data]) == {}


def test_accelerator_unknown_is_refused_by_name():
    with pytest.raises(ConfigError, match="tpu") as caught:
        CosmoFlow().demand(WorkloadSpec(seed=0, global_batch=1, accelerator="tpu", settings=TINY))
    assert all(name in (caught.value.hint or "") for name in ACCELERATORS)


# ---------------------------------------------------------------- other models, recipes and ways to execute a step


def test_model_of_2018_has_the_parameters_that_its_log_prints():
    """NERSC/CosmoFlow's log prints 7,041,186 for 1 channel and 2 targets. Ours has 4 channels and 4 targets."""
    published = 7_041_186
    count = parameter_count(Recipe(model="sc18"))
    assert count == published + 3 * 27 * 16 + 2 * (256 + 1)
    assert sum(p.numel() for p in SC18Net(Recipe(model="sc18")).parameters()) == count


def test_model_of_2018_reaches_two_voxels_and_trains():
    assert sc18_side(128) == 2
    settings = {"model": "sc18", "voxels": 128, "filters": 1, "dropout": 0.5}
    made = prepared(global_batch=1, **settings)
    facts = made.demand(WorkloadSpec(seed=0, global_batch=1, settings={**TINY, **settings})).facts
    assert facts["mlperf_model"] is False
    assert "seven convolutions" in facts["deviation"]
    net = made._inner._net
    assert net.dropout_widths == (128, 2048, 256)
    assert float(net.dense3.bias.detach().mean()) == pytest.approx(0.1)
    data = batch(1, voxels=128)
    losses = [made.step(data).loss for _ in range(3)]
    assert len(set(losses)) == 3
    again = prepared(global_batch=1, **settings)
    assert [again.step(data).loss for _ in range(3)] == losses


def test_model_of_2018_computes_its_layers_in_order():
    recipe = Recipe(model="sc18", filters=1, voxels=112)
    torch.manual_seed(0)
    net = SC18Net(recipe)
    x = torch.rand(1, 4, 112, 112, 112)
    y = x
    pooled = (0, 1, 2)
    for number, convolution in enumerate(net.convolutions):
        y = torch.nn.functional.conv3d(y, convolution.weight, convolution.bias, stride=2 if number == 3 else 1)
        y = torch.where(y > 0, y, 0.01 * y)
        if number in pooled:
            y = torch.nn.functional.avg_pool3d(y, 2)
    y = y.permute(0, 2, 3, 4, 1).reshape(1, -1)
    for layer in (net.dense1, net.dense2):
        y = y @ layer.weight.T + layer.bias
        y = torch.where(y > 0, y, 0.01 * y)
    torch.testing.assert_close(net(x), y @ net.dense3.weight.T + net.dense3.bias, rtol=1e-4, atol=1e-5)


def test_recipe_of_nvidia_has_the_rates_of_its_configuration():
    """512 GPUs: 0.006 to 0.024 in 6 epochs, then x0.5 from epoch 20 on, and so on to x0.0625 from 24."""
    recipe = Recipe.of({"recipe": "nvidia"})
    rates = [learning_rate(recipe, 512, epoch) for epoch in range(30)]
    assert rates[0] == pytest.approx(0.006)
    assert rates[6:20] == pytest.approx([0.024] * 14)
    assert [rates[e] / 0.024 for e in (20, 21, 22, 23, 24, 29)] == pytest.approx(
        [0.5, 0.5, 0.25, 0.125, 0.0625, 0.0625]
    )
    assert (recipe.dropout, recipe.weight_decay, recipe.amp) == (0.0, 0.02, True)
    small = Recipe.of({"recipe": "nvidia-small"})
    rates = [learning_rate(small, 32, epoch) for epoch in range(8)]
    assert rates == pytest.approx([0.001, 0.0025, 0.004, 0.004, 0.001, 0.001, 0.00025, 0.00025])


def test_model_unknown_or_volumes_too_small_for_it_are_refused():
    for settings, output in (
        ({"model": "sc19"}, "unknown cosmoflow model `sc19`"),
        ({"model": "sc18", "voxels": 96}, "at least 112"),
        ({"compile": True, "cuda_graphs": True}, "cannot be combined"),
    ):
        with pytest.raises(ConfigError, match=output):
            workload().demand(WorkloadSpec(seed=0, global_batch=4, settings=settings))
    with pytest.raises(ConfigError, match="cuda_graphs requires a GPU"):
        prepared(cuda_graphs=True)


def test_amp_and_layout_change_losses_only_by_rounding():
    data = batch(4)
    exact = prepared().step(data).loss
    half, contiguous = prepared(amp=True).step(data).loss, prepared(channels_last=False).step(data).loss
    assert half == pytest.approx(exact, rel=0.05)
    assert half != exact
    assert contiguous == pytest.approx(exact, rel=1e-4)


def test_volumes_of_another_size_than_the_models_are_refused():
    made = prepared()
    with pytest.raises(
        ConfigError, match=r"step 1 on rank 0: volumes are torch.int16 \[64, 64, 64, 4\], but the model"
    ):
        made.step(batch(4, voxels=64))
