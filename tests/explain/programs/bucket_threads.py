# SPDX-License-Identifier: Apache-2.0
"""Fit a linear model to the objects of a bucket. Threads fetch them ahead with boto3, or with urllib3 from signed URLs.

With `--threads 0`, the main thread fetches each object when it needs it.
"""

import argparse
import itertools
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import boto3
import numpy as np
import urllib3
from botocore.config import Config


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("bucket")
    parse.add_argument("--seconds", type=float, default=60)
    parse.add_argument("--threads", type=int, default=8)
    parse.add_argument("--library", choices=["boto3", "urllib3"], default="boto3")
    parse.add_argument("--passes", type=int, default=1, help="gradient steps per object")
    args = parse.parse_args()
    connections = max(1, args.threads)
    client = boto3.client("s3", config=Config(max_pool_connections=connections, retries={"max_attempts": 12}))
    keys = [each["Key"] for each in client.list_objects_v2(Bucket=args.bucket)["Contents"]]
    pool = urllib3.PoolManager(maxsize=connections)
    retries = urllib3.Retry(total=12, backoff_factor=0.1, status_forcelist=[503])
    urls = {key: client.generate_presigned_url("get_object", {"Bucket": args.bucket, "Key": key}) for key in keys}

    def fetch(key):
        if args.library == "boto3":
            body = client.get_object(Bucket=args.bucket, Key=key)["Body"].read()
        else:
            body = pool.request("GET", urls[key], retries=retries).data
        return np.frombuffer(body, np.float32)[:16_384].reshape(64, 256)

    names = itertools.cycle(keys)
    weights = np.zeros((256, 256), np.float32)
    with ThreadPoolExecutor(connections) as threads:
        ahead = deque(threads.submit(fetch, next(names)) for _ in range(2 * args.threads))
        began = time.monotonic()
        steps = 0
        while time.monotonic() - began < args.seconds:
            if args.threads:
                ahead.append(threads.submit(fetch, next(names)))
                sample = ahead.popleft().result()
            else:
                sample = fetch(next(names))
            for _ in range(args.passes):
                weights -= 1e-4 * sample.T @ (sample @ weights - sample)
            steps += 1
        took_s = time.monotonic() - began
        threads.shutdown(cancel_futures=True)
    print(f"{steps} steps in {took_s:.1f} s, {steps / took_s:.3f} steps/s")


if __name__ == "__main__":
    main()
