# SPDX-License-Identifier: Apache-2.0
"""Tokens per second into packed batches: Penstock, MosaicML Streaming and Hugging Face `datasets`, by turns.

    uv venv /tmp/text-peers
    uv pip install -p /tmp/text-peers/bin/python mosaicml-streaming datasets tokenizers torch
    .venv/bin/python benches/peers/feed/text.py DIR --peers /tmp/text-peers/bin/python [--repeats 3] [--text FILE ...]

From text, all contestants use the same byte-level BPE tokenizer, which is trained on that text: generated words, or the
lines of `--text` files. From ready tokens, they read the same uint16 stream, each from its own format. Every contestant
runs in its own process, reads the first million tokens to warm up, and is then timed. The page cache is warm. Penstock
uses all cores; a peer runs in the main process (0 workers) and in 1 and 2 workers of a DataLoader. Printed: M tokens/s,
CPU seconds of the process and its workers per 100 M tokens, ratios of both, and the digest of the first million tokens.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
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
STREAM = 50_000_000
"""Number of ready tokens: the tokens of the text are repeated, so that the start of a loader takes little of the time."""
WARM = 1_000_000
WORKERS = (0, 1, 2)


def words(random: np.random.Generator) -> list[str]:
    """A vocabulary of 20,000 words of 2 to 12 letters."""
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    weights = 1 / np.arange(1, 27)
    lengths = random.integers(2, 13, 20_000)
    return ["".join(random.choice(letters, length, p=weights / weights.sum())) for length in lengths]


def generated() -> Iterator[list[str]]:
    """Texts of each shard, of words that are drawn by a power law."""
    random = np.random.default_rng(1)
    vocabulary = words(random)
    for _ in range(SHARDS):
        texts = []
        for _ in range(DOCUMENTS):
            count = int(random.lognormal(6, 1)) + 1  # 400 words at the median
            texts.append(" ".join(vocabulary[word] for word in random.zipf(1.3, count) % len(vocabulary)))
        yield texts


def given_texts(paths: list[Path]) -> Iterator[list[str]]:
    """Texts of each shard: the files, cut at blank lines after at least 2,000 characters."""
    texts: list[str] = []
    for path in paths:
        begun = ""
        for paragraph in path.read_text(errors="replace").split("\n\n"):
            begun += paragraph + "\n\n"
            if len(begun) >= 2000:
                texts.append(begun)
                begun = ""
        texts += [begun] if begun else []
    for shard in range(SHARDS):
        yield texts[shard::SHARDS]


def prepare(folder: Path, paths: list[Path]) -> None:
    """Writes the text as JSON lines, the tokenizer, and the tokens as nanoGPT writes them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    (folder / "jsonl").mkdir(parents=True)
    texts: list[str] = []
    for shard, found in enumerate(given_texts(paths) if paths else generated()):
        lines = (json.dumps({"text": text, "meta": {"shard": shard}}) + "\n" for text in found)
        (folder / f"jsonl/{shard:04d}.jsonl").write_text("".join(lines))
        texts += found
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<eos>"],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts[::8], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    stream: list[int] = []
    for at in range(0, len(texts), 1000):
        for encoding in tokenizer.encode_batch(texts[at : at + 1000]):
            stream += [*encoding.ids, EOS]
    (folder / "tokens").mkdir()
    np.resize(np.array(stream, np.uint16), STREAM).tofile(folder / "tokens/train.bin")


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
    made = datasets.Dataset.from_dict({"tokens": rows}, features=features)
    made.save_to_disk(str(folder / "hf-tokens"), num_shards=SHARDS)


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


def penstock_package(folder: Path) -> Iterator[Any]:
    """As `penstock_text`, but the `tokenizers` package computes all tokens, and not Penstock's core."""
    from tokenizers import Tokenizer

    import penstock

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def encode(texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)]

    made = penstock.open(folder / "jsonl").fields(text=penstock.text()).tokenize(encode, key="1").pack(LENGTH, eos=EOS)
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

    made = datasets.load_from_disk(str(folder / "hf-tokens")).to_iterable_dataset(num_shards=SHARDS)
    yield from _loader(made.with_format("torch"), workers)


CONTESTS = {
    "text": (penstock_text, penstock_package, streaming_text, datasets_text),
    "tokens": (penstock_tokens, streaming_tokens, datasets_tokens),
}


def cpu_s() -> float:
    """CPU seconds of this process and of its workers that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def contestant(name: str, folder: Path, workers: int) -> None:
    """Warms up, reads everything, and prints tokens, seconds and CPU seconds as JSON."""
    function = {each.__name__: each for contest in CONTESTS.values() for each in contest}[name]
    ours = name.startswith("penstock")
    arguments = {} if ours else {"workers": workers}
    digest, seen = hashlib.blake2b(digest_size=8), 0
    for batch in function(folder, **arguments):
        if seen < WARM:
            digest.update(batch.numpy().tobytes())
        elif not ours:  # Penstock reads everything, because it counts the records of new objects once
            break
        seen += batch.numel()
    tokens, began, before = 0, time.perf_counter(), cpu_s()
    for batch in function(folder, **arguments):
        tokens += batch.numel()
    used = {"wall_s": time.perf_counter() - began, "cpu_s": cpu_s() - before}
    print(json.dumps({"tokens": tokens, **used, "digest": digest.hexdigest()}))


def versions(python: str) -> dict[str, str]:
    """Versions of the packages in an environment."""
    code = """import json
from importlib.metadata import PackageNotFoundError, version
found = {}
for name in ("tokenizers", "mosaicml-streaming", "datasets", "torch", "numpy"):
    try: found[name] = version(name)
    except PackageNotFoundError: pass
print(json.dumps(found))"""
    done = subprocess.run([python, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peers", help="Python of the environment of the peers")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--contests", default=",".join(CONTESTS))
    parser.add_argument("--text", type=Path, nargs="*", default=[], help="files of text; generated if there are none")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--workers", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.contestant == "prepare":
        prepare_peers(given.folder)
        return
    if given.contestant:
        contestant(given.contestant, given.folder, given.workers)
        return
    if not (given.folder / "tokens").exists():
        prepare(given.folder, given.text)
    run = [str(Path(__file__).resolve()), str(given.folder), "--contestant"]
    if not (given.folder / "hf-tokens").exists():
        subprocess.run([given.peers, *run, "prepare"], check=True)
    rows = []
    for contest in given.contests.split(","):
        functions = CONTESTS[contest]
        runs: dict[tuple[str, int], list[dict[str, Any]]] = {}
        load = [os.getloadavg()[0]]
        for _ in range(given.repeats):
            for function in functions:
                name = function.__name__
                ours = name.startswith("penstock")
                for workers in (0,) if ours else WORKERS:
                    argv = [sys.executable if ours else given.peers, *run, name, "--workers", str(workers)]
                    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True)
                    runs.setdefault((name, workers), []).append(json.loads(done.stdout.splitlines()[-1]))
                    load.append(os.getloadavg()[0])
        print(f"{contest}: load {min(load):.1f} to {max(load):.1f}, {os.cpu_count()} cores")
        medians = {
            key: {used: median(one["tokens"] / one[used] for one in found) for used in ("wall_s", "cpu_s")}
            for key, found in runs.items()
        }
        ours = next(iter(medians.values()))
        for (name, workers), rates in medians.items():
            found = runs[name, workers]
            ratios = {f"{used[:-2]}_ratio": ours[used] / rate for used, rate in rates.items()}
            print(
                f"  {name:18} {workers} workers {rates['wall_s'] / 1e6:8.2f} M tokens/s"
                f" {1e8 / rates['cpu_s']:7.1f} CPU s per 100 M; wall {ratios['wall_ratio']:6.2f} x,"
                f" CPU {ratios['cpu_ratio']:6.2f} x; {found[0]['digest']} of {found[0]['tokens']:,} tokens",
                flush=True,
            )
            row = {"contest": contest, "name": name, "workers": workers, "tokens_per_s": rates["wall_s"], **ratios}
            rows.append({**row, "tokens_per_cpu_s": rates["cpu_s"], "runs": found, "load": [min(load), max(load)]})
    if given.json:
        result = {"date": time.strftime("%Y-%m-%d"), "cores": os.cpu_count(), "versions": versions(given.peers)}
        given.json.write_text(json.dumps({**result, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
