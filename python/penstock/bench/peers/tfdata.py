# SPDX-License-Identifier: Apache-2.0
"""Driver for tf.data over TFRecord files: parallel reads, a private thread pool, large buffers, and parallel
parsing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

DISTRIBUTIONS = ("tensorflow-cpu",)

_made: dict[str, Any] = {}


def begin(task: dict[str, Any]) -> None:
    """Builds the graph. The files are read without conversion."""
    import tensorflow as tf

    cores = len(task["cores"])
    tf.config.threading.set_inter_op_parallelism_threads(cores)
    tf.config.threading.set_intra_op_parallelism_threads(cores)
    fields = task["fields"]

    def parse(record: Any) -> dict[str, Any]:
        kinds = {}
        for name, spec in fields.items():
            part = spec["of"][0] if spec["of"] else name
            if spec["stored_as"] == "bytes":
                kinds[part] = tf.io.FixedLenFeature([], tf.string)
            else:
                stored = tf.float32 if spec["dtype"] == "float32" else tf.int64
                kinds[part] = tf.io.FixedLenFeature(spec["shape"], stored)
        parsed = tf.io.parse_single_example(record, kinds)
        found = {}
        for name, spec in fields.items():
            value = parsed[spec["of"][0] if spec["of"] else name]
            if spec["stored_as"] == "bytes" and spec["kind"] == "tensor":
                value = tf.reshape(tf.io.decode_raw(value, tf.as_dtype(spec["dtype"])), spec["shape"])
            found[name] = tf.cast(value, spec["dtype"]) if spec["stored_as"] != "bytes" else value
        return found

    compression = {"gzip": "GZIP", "none": ""}[task["codec"]]
    dataset = tf.data.TFRecordDataset(
        task["files"], compression_type=compression, buffer_size=8 << 20, num_parallel_reads=cores
    )
    options = tf.data.Options()
    options.threading.private_threadpool_size = cores
    options.deterministic = False
    dataset = dataset.map(parse, num_parallel_calls=cores).batch(task["batch"]).prefetch(tf.data.AUTOTUNE)
    _made["dataset"] = dataset.with_options(options)


def batches(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Runs one epoch. Batches are NumPy views of the tensors."""
    raw = [name for name, spec in task["fields"].items() if spec["kind"] == "bytes"]
    for batch in _made["dataset"].as_numpy_iterator():
        for name in raw:
            batch[name] = list(batch[name])
        yield batch
