# SPDX-License-Identifier: Apache-2.0
"""Tokens per second into packed batches: Penstock, MosaicML Streaming and Hugging Face `datasets`, one after another.

    uv venv /tmp/text-peers
    uv pip install -p /tmp/text-peers/bin/python mosaicml-streaming datasets tokenizers torch
    .venv/bin/python benches/peers/feed/text.py DIR --peers /tmp/text-peers/bin/python [--repeats 3]

From text, all contestants use the same BPE tokenizer, which is trained on the generated text. From ready tokens, they
read the same uint16 stream, each from its own format. Every contestant runs in its own process, reads the data once to
warm the page cache and its own caches, and is then timed. Penstock uses all cores; the peers use the main process, or
`--workers` processes. The digest of each stream of tokens is printed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LENGTH, BATCH, EOS, VOCABULARY = 1024, 8, 0, 8000
SHARDS, DOCUMENTS = 8, 2000


def words(random: np.random.Generator) -> list[str]:
    """A vocabulary of 20,000 words of 2 to 12 letters."""
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    weights = 1 / np.arange(1, 27)
    lengths = random.integers(2, 13, 20_000)
    return ["".join(random.choice(letters, length, p=weights / weights.sum())) for length in lengths]


def prepare(folder: Path) -> None:
    """Writes the text as JSON lines, the tokenizer, and the tokens as nanoGPT writes them."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    random = np.random.default_rng(1)
    vocabulary = words(random)
    (folder / "jsonl").mkdir(parents=True)
    texts: list[str] = []
    for shard in range(SHARDS):
        lines = []
        for _ in range(DOCUMENTS):
            count = int(random.lognormal(6, 1)) + 1  # 400 words at the median
            picked = random.zipf(1.3, count) % len(vocabulary)
            text = " ".join(vocabulary[word] for word in picked)
            texts.append(text)
            lines.append(json.dumps({"text": text, "meta": {"shard": shard}}) + "\n")
        (folder / f"jsonl/{shard:04d}.jsonl").write_text("".join(lines))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    special = ["<eos>"]
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(texts[::8], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    stream: list[int] = []
    for at in range(0, len(texts), 1000):
        for encoding in tokenizer.encode_batch(texts[at : at + 1000]):
            stream += [*encoding.ids, EOS]
    (folder / "tokens").mkdir()
    np.array(stream, np.uint16).tofile(folder / "tokens/train.bin")


def prepare_peers(folder: Path) -> None:
    """Writes the same text and tokens in the formats of the peers, in their environment."""
    from streaming import MDSWriter

    import datasets

    with MDSWriter(out=str(folder / "mds-text"), columns={"text": "str"}) as out:
        for path in sorted((folder / "jsonl").glob("*.jsonl")):
            for line in path.read_text().splitlines():
                out.write({"text": json.loads(line)["text"]})
    stream = np.fromfile(folder / "tokens/train.bin", np.uint16)
    rows = stream[: len(stream) // LENGTH * LENGTH].reshape(-1, LENGTH)
    with MDSWriter(out=str(folder / "mds-tokens"), columns={"tokens": f"ndarray:uint16:{LENGTH}"}) as out:
        for row in rows:
            out.write({"tokens": row})
    features = datasets.Features({"tokens": datasets.Sequence(datasets.Value("uint16"), length=LENGTH)})
    datasets.Dataset.from_dict({"tokens": rows}, features=features).save_to_disk(str(folder / "hf-tokens"))


def concat(rows: Iterable[list[int]]) -> Iterator[np.ndarray[Any, Any]]:
    """Windows of a stream of documents, as the peers' own examples make them."""
    buffer: list[int] = []
    for row in rows:
        buffer += row
        buffer.append(EOS)
        while len(buffer) >= LENGTH:
            yield np.array(buffer[:LENGTH], np.int64)
            buffer = buffer[LENGTH:]


def penstock_text(folder: Path) -> Iterator[Any]:
    from tokenizers import Tokenizer

    import penstock

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    made = penstock.open(folder / "jsonl").fields(text=penstock.text()).tokenize(tokenizer).pack(LENGTH, eos=EOS)
    for batch in penstock.torch.Loader(made, batch_size=BATCH, tail="drop"):
        yield batch["tokens"]


def penstock_tokens(folder: Path) -> Iterator[Any]:
    import penstock

    made = penstock.open(folder / "tokens/train.bin", format=penstock.formats.tokens(LENGTH))
    made = made.fields(tokens=penstock.tensor("int64", (LENGTH,)))
    for batch in penstock.torch.Loader(made, batch_size=BATCH, tail="drop"):
        yield batch["tokens"]


def _loader(dataset: Any, workers: int) -> Iterator[Any]:
    import torch

    for batch in torch.utils.data.DataLoader(dataset, batch_size=BATCH, drop_last=True, num_workers=workers):
        yield batch["tokens"].to(torch.int64)


def streaming_text(folder: Path, workers: int = 0) -> Iterator[Any]:
    """LLM Foundry's way: a StreamingDataset whose texts are tokenized and joined as they are read."""
    import torch
    from streaming import StreamingDataset
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    source = StreamingDataset(local=str(folder / "mds-text"), shuffle=False, batch_size=BATCH)

    class Joined(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            for row in concat(tokenizer.encode(sample["text"]).ids for sample in source):
                yield {"tokens": row}

    yield from _loader(Joined(), workers)


def streaming_tokens(folder: Path, workers: int = 0) -> Iterator[Any]:
    from streaming import StreamingDataset

    class Rows(StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, at: int) -> dict[str, Any]:
            return {"tokens": super().__getitem__(at)["tokens"].astype(np.int64)}

    yield from _loader(Rows(local=str(folder / "mds-tokens"), shuffle=False, batch_size=BATCH), workers)


def datasets_text(folder: Path, workers: int = 0) -> Iterator[Any]:
    """The way of transformers' run_clm: tokenize in batches, join and cut in batches, streaming."""
    from tokenizers import Tokenizer

    import datasets

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    files = [str(path) for path in sorted((folder / "jsonl").glob("*.jsonl"))]
    source = datasets.load_dataset("json", data_files=files, split="train", streaming=True)
    rest: list[int] = []

    def tokenize(rows: dict[str, Any]) -> dict[str, Any]:
        return {"tokens": [[*encoding.ids, EOS] for encoding in tokenizer.encode_batch(rows["text"])]}

    def group(rows: dict[str, Any]) -> dict[str, Any]:
        nonlocal rest
        joined = (
            sum(rows["tokens"], rest) if len(rows["tokens"]) < 2 else [*rest, *(t for r in rows["tokens"] for t in r)]
        )
        end = len(joined) // LENGTH * LENGTH
        rest = joined[end:]
        return {"tokens": [joined[at : at + LENGTH] for at in range(0, end, LENGTH)]}

    made = source.map(tokenize, batched=True, remove_columns=["text", "meta"]).map(group, batched=True)
    yield from _loader(made.with_format("torch"), workers)


def datasets_tokens(folder: Path, workers: int = 0) -> Iterator[Any]:
    import datasets

    made = datasets.load_from_disk(str(folder / "hf-tokens")).to_iterable_dataset()
    yield from _loader(made.with_format("torch"), workers)


CONTESTS = {
    "text": (penstock_text, streaming_text, datasets_text),
    "tokens": (penstock_tokens, streaming_tokens, datasets_tokens),
}


def contestant(name: str, folder: Path, workers: int) -> None:
    """Reads everything twice, and prints tokens, seconds and the digest of the second pass as JSON."""
    function = {each.__name__: each for contest in CONTESTS.values() for each in contest}[name]
    arguments = {} if name.startswith("penstock") else {"workers": workers}
    for is_timed in (False, True):
        tokens, digest, began = 0, hashlib.blake2b(digest_size=8), time.perf_counter()
        for batch in function(folder, **arguments):
            tokens += batch.numel()
            if not is_timed:
                digest.update(batch.numpy().tobytes())
        seconds = time.perf_counter() - began
        if not is_timed:
            shown = digest.hexdigest()
    print(json.dumps({"tokens": tokens, "seconds": seconds, "digest": shown}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peers", help="Python of the environment of the peers")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=0, help="workers of the peers' DataLoader")
    parser.add_argument("--contestant")
    given = parser.parse_args()
    if given.contestant == "prepare":
        prepare_peers(given.folder)
        return
    if given.contestant:
        contestant(given.contestant, given.folder, given.workers)
        return
    if not (given.folder / "tokens").exists():
        prepare(given.folder)
    run = [str(Path(__file__).resolve()), str(given.folder), "--workers", str(given.workers), "--contestant"]
    if not (given.folder / "hf-tokens").exists():
        subprocess.run([given.peers, *run, "prepare"], check=True)
    for contest, functions in CONTESTS.items():
        rates: dict[str, list[float]] = {}
        digests: dict[str, str] = {}
        for _ in range(given.repeats):
            for function in functions:
                name = function.__name__
                python = sys.executable if name.startswith("penstock") else given.peers
                done = subprocess.run([python, *run, name], check=True, stdout=subprocess.PIPE, text=True)
                result = json.loads(done.stdout.splitlines()[-1])
                rates.setdefault(name, []).append(result["tokens"] / result["seconds"])
                digests[name] = f"{result['digest']} of {result['tokens']:,} tokens"
        ours = median(rates[functions[0].__name__])
        print(
            f"{contest}, load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, peers with {given.workers} worker processes"
        )
        for name, seen in rates.items():
            print(f"  {name:18} {median(seen) / 1e6:8.2f} M tokens/s  {ours / median(seen):6.2f}x  {digests[name]}")


if __name__ == "__main__":
    main()
