# SPDX-License-Identifier: Apache-2.0
"""Train on the objects of a bucket. The workers of a torch DataLoader fetch them with boto3."""

import argparse
import time

import boto3
import numpy as np
import torch
from botocore.config import Config
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Objects(Dataset):
    def __init__(self, bucket, keys):
        self.bucket, self.keys, self.client = bucket, keys, None

    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        if self.client is None:  # one client per worker, because clients do not survive a fork
            self.client = boto3.client("s3", config=Config(retries={"mode": "standard", "max_attempts": 12}))
        body = self.client.get_object(Bucket=self.bucket, Key=self.keys[i % len(self.keys)])["Body"].read()
        return torch.from_numpy(np.frombuffer(body, np.float32)[:1024].copy())


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("bucket")
    parse.add_argument("--seconds", type=float, default=60)
    parse.add_argument("--workers", type=int, default=2)
    parse.add_argument("--batch", type=int, default=4)
    parse.add_argument("--width", type=int, default=64)
    args = parse.parse_args()
    torch.set_num_threads(1)
    listed = boto3.client("s3").list_objects_v2(Bucket=args.bucket)["Contents"]
    loader = DataLoader(Objects(args.bucket, [each["Key"] for each in listed]), args.batch, num_workers=args.workers)
    model = nn.Sequential(
        nn.Linear(1024, args.width), nn.ReLU(), nn.Linear(args.width, args.width), nn.Linear(args.width, 1)
    )
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = iter(loader)
    next(batches)
    began = time.monotonic()
    steps = 0
    while time.monotonic() - began < args.seconds:
        loss = model(next(batches)).square().mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        steps += 1
    took_s = time.monotonic() - began
    print(f"{steps} steps in {took_s:.1f} s, {steps / took_s:.3f} steps/s")


if __name__ == "__main__":
    main()
