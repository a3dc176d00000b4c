# SPDX-License-Identifier: Apache-2.0
"""Train on two ranks with gloo. Start it with torchrun.

With `--factor`, rank 1 takes longer for its step: `--slow batch` gives it larger batches, `--slow device` stands for a
slower accelerator that the rank waits for.
"""

import argparse
import itertools
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("--seconds", type=float, default=60)
    parse.add_argument("--batch", type=int, default=32)
    parse.add_argument("--width", type=int, default=512)
    parse.add_argument("--factor", type=int, default=1)
    parse.add_argument("--slow", choices=["batch", "device"], default="batch")
    parse.add_argument("--sync", choices=["ddp", "allreduce"], default="ddp")
    args = parse.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    is_slow = dist.get_rank() == 1
    batch = args.batch * (args.factor if is_slow and args.slow == "batch" else 1)
    model = nn.Sequential(nn.Linear(args.width, args.width), nn.ReLU(), nn.Linear(args.width, args.width))
    trained = DistributedDataParallel(model) if args.sync == "ddp" else model
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-4)
    samples = torch.randn(batch, args.width)
    dist.barrier()
    began = time.monotonic()
    for steps in itertools.count(1):
        if is_slow and args.slow == "device":
            time.sleep(0.02 * (args.factor - 1))
        loss = trained(samples + steps).square().mean()
        loss.backward()
        if args.sync == "allreduce":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimiser.step()
        optimiser.zero_grad()
        is_over = torch.tensor(float(time.monotonic() - began > args.seconds))
        dist.broadcast(is_over, 0)
        if is_over:
            break
    took_s = time.monotonic() - began
    if dist.get_rank() == 0:
        print(f"{steps} steps in {took_s:.1f} s, {steps / took_s:.3f} steps/s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
