# SPDX-License-Identifier: Apache-2.0
"""Spark prepares a dataset as Parquet, and a loader trains from its files as they are.

    python examples/spark_write.py data

Spark decides which rows are in which file, so the order of samples depends on the files. To train again with the same
order, keep the files instead of writing them again.
"""

import sys

import torch
from pyspark.sql import SparkSession, functions
from torch import nn

import penstock


def prepare(folder: str, rows: int = 1000) -> None:
    """Write rows of a list of 8 numbers and a label, in 4 files."""
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    numbers = functions.array(*[(functions.rand(seed=column) - 0.5).cast("float") for column in range(8)])
    table = spark.range(rows).select("id", numbers.alias("x"))
    table = table.withColumn("label", functions.expr("aggregate(x, 0f, (sum, each) -> sum + each)").cast("float"))
    table.repartition(4, "id").write.mode("overwrite").parquet(folder)
    spark.stop()


def train(folder: str, epochs: int = 3) -> None:
    """Fit a linear model to the labels."""
    torch.manual_seed(0)
    dataset = (
        penstock.open(folder)
        .fields(x=penstock.tensor("float32", (8,)), label=penstock.tensor("float32", ()))
        .shuffle(seed=1)
    )
    loader = penstock.torch.Loader(dataset, batch_size=20)
    model = nn.Linear(8, 1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    for epoch in range(epochs):
        for batch in loader:
            loss = nn.functional.mse_loss(model(batch["x"])[:, 0], batch["label"])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        print(f"epoch {epoch}: {dataset.samples} samples, loss {loss.item():.6f}")


if __name__ == "__main__":
    prepare(sys.argv[1])
    train(sys.argv[1])
