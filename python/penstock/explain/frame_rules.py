# SPDX-License-Identifier: Apache-2.0
"""Maps a Python stack to the class of time that it stands for, by the rules in the tables below. Pure functions.

A stack is read from its innermost frame outwards, and the first rule that matches a frame decides. A frame is matched by
its file, its function and the text of its line, because calls into C (`zlib.decompress`) have no frame of their own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Frame", "StackClass", "classify"]


class Frame(NamedTuple):
    """One frame: function, file, line number (0 if unknown)."""

    function: str
    file: str
    line: int = 0


@dataclass(frozen=True, slots=True)
class StackClass:
    """Class of a stack.

    Attributes:
        name: One of `result.CLASSES` without `worker_wait` and `idle`, or one of four others. `startup` is start-up,
            and `wait` a wait for another thread or process. `network` is either `first_byte` or `transfer`, and
            `open_or_read` is either `metadata` or `file_read`.
        is_inline: The stack runs a DataLoader without workers.
        is_worker: The stack belongs to a worker process.
        is_launcher: The stack belongs to a program that starts ranks and waits for them.
        origin: The function that the thread runs, to group threads that do the same.
    """

    name: str
    is_inline: bool = False
    is_worker: bool = False
    is_launcher: bool = False
    origin: str = ""


class _Rule(NamedTuple):
    name: str
    file: re.Pattern[str]
    function: re.Pattern[str] | None = None
    text: re.Pattern[str] | None = None


def _rule(name: str, file: str, function: str | None = None, text: str | None = None) -> _Rule:
    return _Rule(
        name,
        re.compile(file),
        re.compile(rf"^(?:{function})$") if function else None,
        re.compile(text) if text else None,
    )


# A file's pattern can match anywhere in its path. The order matters: the first rule that matches decides.
_LIBRARY = (
    # Back-off of clients after throttling. Clients also sleep after other transient errors.
    _rule("throttle", r"botocore/endpoint\.py$", text=r"sleep\("),
    _rule("throttle", r"botocore/retries/|botocore/retryhandler\.py$", text=r"sleep\("),
    _rule("throttle", r"urllib3/util/retry\.py$", r"sleep|_sleep_backoff|sleep_for_retry"),
    _rule("throttle", r"google/api_core/retry|google/cloud/storage/retry|/gcsfs/retry\.py$", text=r"sleep\("),
    _rule("throttle", r"google/(resumable_media|cloud/storage/_media)/", text=r"sleep\("),
    _rule("throttle", r"azure/core/pipeline/policies/_retry", r"sleep|_sleep_backoff|_sleep_for_retry"),
    _rule("throttle", r"azure/storage/.*policies", text=r"sleep\("),
    _rule("throttle", r"/tenacity/(nap|__init__)\.py$|/backoff/_sync\.py$", text=r"sleep\("),
    # HTTP: the wait for the status line is `first_byte`; everything after it is `transfer`.
    _rule(
        "startup",
        r"botocore/(loaders|session|configloader|model|client|hooks|regions)\.py$",
        r"(?!_?make_).*(create|load|get_service|__init__|_build|_register).*",
    ),
    _rule("first_byte", r"http/client\.py$", r"_read_status|begin|connect|send|_send_output|endheaders|getresponse"),
    _rule("first_byte", r"/socket\.py$", r"create_connection|getaddrinfo"),
    _rule("first_byte", r"/ssl\.py$", r"do_handshake|connect|_create|wrap_socket"),
    _rule("first_byte", r"urllib3/(connection|util/connection|util/ssl_).*\.py$"),
    _rule(
        "transfer",
        r"http/client\.py$",
        r"read|readinto|read1|_safe_read|_safe_readinto|_read_chunked|_readinto_chunked|_readall_chunked|readline|peek",
    ),
    _rule(
        "transfer",
        r"urllib3/response\.py$|botocore/(response|httpchecksum)\.py$|requests/models\.py$",
        r"read.*|stream|_fp_read|_raw_read|_error_catcher|generate|iter_content|iter_chunks|_handle_chunk|content",
    ),
    _rule("transfer", r"google/resumable_media/requests/download|s3transfer/download\.py$"),
    # Files and their metadata.
    _rule("metadata", r"/glob\.py$|/genericpath\.py$|/posixpath\.py$"),
    _rule("metadata", r"/os\.py$", r"walk|_walk|scandir|fwalk|makedirs"),
    _rule(
        "metadata",
        r"/pathlib(/\w+)?\.py$",
        r"open|stat|lstat|exists|is_file|is_dir|glob|rglob|iterdir|_select_from|_iterate_directories|_scandir|resolve",
    ),
    _rule("file_read", r"/pathlib(/\w+)?\.py$", r"read_bytes|read_text"),
    _rule(
        "file_read",
        r"/(h5py|zarr|netCDF4|segyio|rasterio|mmap_ninja)/|/tarfile\.py$|/numpy/.*(npyio|format|_npyio_impl|_format_impl|memmap)\.py$",
    ),
    _rule("file_read", r"fsspec/implementations/(local|cached)\.py$"),
    # Compression. zipfile and gzip also read their file; `attribution` separates the reads by CPU time.
    _rule("decompression", r"/(gzip|_compression|bz2|lzma|zipfile|_streams)\.py$|/zipfile/|/compression/"),
    _rule(
        "decompression",
        r"/(zstandard|zstd|pyzstd|lz4|snappy|cramjam|isal|zlib_ng|blosc2?|numcodecs|brotli|deflate)[/.]",
    ),
    # Pickling and queues between processes.
    _rule(
        "python_workers",
        r"multiprocessing/reduction\.py$",
        r"dumps|dump|loads|register|recv_handle|send_handle|recvfds|sendfds|recv_fds|DupFd|detach|rebuild.*|reduce.*",
    ),
    _rule("python_workers", r"torch/multiprocessing/(reductions|queue|pool)\.py$"),
    _rule("python_workers", r"multiprocessing/(shared_memory|resource_sharer|heap|managers|sharedctypes)\.py$"),
    _rule("python_workers", r"multiprocessing/queues\.py$", text=r"(?:dumps|loads)\(|send_bytes\("),
    _rule("wait", r"multiprocessing/connection\.py$", r"accept"),
    _rule("python_workers", r"multiprocessing/connection\.py$", r"_recv_bytes", r"_recv\(size"),
    _rule("python_workers", r"multiprocessing/connection\.py$", r"_send|_send_bytes|send|send_bytes"),
    _rule("python_workers", r"multiprocessing/connection\.py$", r"recv", r"loads\("),
    _rule("python_workers", r"/pickle\.py$|cloudpickle/|/copyreg\.py$|/dill/"),
    # Decoding of samples.
    _rule(
        "decoding",
        r"/(PIL|cv2|torchvision|imageio|skimage|albumentations|albucore|kornia|simplejpeg|turbojpeg|av|decord|torchaudio|torchcodec|librosa|soundfile|pydicom|nibabel|tokenizers|sentencepiece|tiktoken)/",
    ),
    _rule(
        "decoding",
        r"/(transformers)/.*token|/datasets/(features|formatting|arrow_dataset|iterable_dataset|table)|/(pandas|pyarrow|polars|orjson|msgspec|tfrecord|webdataset|litdata|streaming)/",
    ),
    _rule(
        "decoding",
        r"/json/\w+\.py$|/csv\.py$|/torch/serialization\.py$|torch/utils/data/_utils/(collate|fetch)\.py$|torch/utils/data/(dataset|datapipes/.*)\.py$",
    ),
    # Other clients of stores.
    _rule(
        "network",
        r"/(botocore|boto3|s3transfer|aiobotocore|urllib3|requests|aiohttp|httpx|httpcore|s3fs|gcsfs|adlfs|smart_open|obstore|s3torchconnector|minio)/",
    ),
    _rule(
        "network",
        r"google/(cloud/storage|resumable_media|auth)/|azure/(storage|core)/|/fsspec/|/urllib/request\.py$|/http/client\.py$|/ftplib\.py$|paramiko/",
    ),
    # Copies to a device.
    _rule("host_to_device", r"torch/utils/data/_utils/pin_memory\.py$", text=r"pin_memory\("),
    # Ranks.
    _rule("launch", r"/subprocess\.py$", r"wait|_wait|_try_wait|communicate|_communicate|call|run|check_call"),
    _rule(
        "startup",
        r"torch/distributed/(rendezvous|elastic/rendezvous|c10d_|_shard|device_mesh)|multiprocessing/(popen_\w+|spawn|forkserver|context)\.py$|/subprocess\.py$",
    ),
    _rule(
        "startup",
        r"torch/distributed/distributed_c10d\.py$",
        r"init_process_group|_new_process_group_helper|new_group|destroy_process_group|_store_based_barrier",
    ),
    _rule(
        "launch",
        r"torch/distributed/(elastic/|run\.py|launcher/|launch\.py)|torch/multiprocessing/spawn\.py$",
        r"(?!_wrap).*",
    ),
    _rule(
        "other_ranks",
        r"torch/distributed/(distributed_c10d|_functional_collectives|algorithms/|optim/)|/horovod/|/mpi4py/",
    ),
    _rule(
        "startup",
        r"torch/(_dynamo|_inductor|fx|jit|compiler|cuda/__init__)|<frozen importlib|importlib/|^<frozen zipimport",
    ),
    # Waits for a thread or a process. These rules are near the end of the table, because another rule can be more
    # specific.
    _rule("wait", r"torch/utils/data/dataloader\.py$", r"_try_get_data|_get_data|_shutdown_workers"),
    _rule("python_workers", r"torch/utils/data/dataloader\.py$", r"_try_put_index|_process_data"),
    _rule(
        "wait",
        r"concurrent/futures/(_base|thread|process)\.py$",
        r"result|wait|as_completed|_worker|result_iterator|_result_or_cancel|wait_result_broken_or_wakeup|_process_worker|shutdown|__exit__",
    ),
    _rule(
        "wait",
        r"multiprocessing/(pool|queues|synchronize|process)\.py$",
        r"next|get|wait|poll|_poll|_handle_\w+|_wait_for_updates|acquire|__enter__|put|_feed|recv|recv_bytes|_recv|join|worker",
    ),
    # The model.
    _rule(
        "model",
        r"/torch/(nn|optim|autograd|amp|functional|ao|backends|cuda|_tensor|utils/checkpoint|_ops|_compile|library)|/(pytorch_lightning|lightning|accelerate|timm|transformers|diffusers|peft|deepspeed|apex|megatron|triton|keras|jax|flax|optax|haiku|equinox|sklearn|xgboost|lightgbm)/",
    ),
    _rule("model", r"/tensorflow/python/(eager|keras|training|framework|util)"),
)

# Waits whose frame does not show the reason. These rules decide only if no rule matches a frame further out.
_GENERIC = (
    _rule("wait", r"/queue\.py$", r"get|put|join"),
    _rule("wait", r"/threading\.py$", r"wait|acquire|join|_wait_for_tstate_lock|wait_for|__enter__"),
    _rule("wait", r"/selectors\.py$", r"select"),
    _rule("wait", r"/asyncio/"),
    _rule("wait", r"multiprocessing/connection\.py$"),
    # Only frames further out show whether the caller waits for a status line, a body or a file descriptor.
    _rule("network", r"/(socket|ssl)\.py$"),
)

# Patterns for the text of lines in the program's own code.
_OWN = (
    ("launch", r"\bos\.(?:wait|waitpid|wait3|wait4|waitid)\("),
    ("throttle", r"(?:retry|retries|back_?off|throttl)\w*.*sleep\(|sleep\(.*(?:retry|back_?off|throttl)"),
    (
        "decompression",
        r"\b(?:zlib|gzip|bz2|lzma|zstd|zstandard|lz4|snappy|cramjam|isal|igzip|blosc2?|brotli|deflate|libdeflate)\w*\.(?!open)\w|[dD]ecompress\w*\(",
    ),
    ("python_workers", r"\b(?:pickle|dill|cloudpickle)\.(?:loads?|dumps?)\("),
    (
        "decoding",
        r"\b(?:Image\.open|Image\.frombytes|cv2\.\w|imread\(|imdecode\(|decode_(?:image|jpeg|png)|read_image\(|\.decode\(|json\.loads|\.resize\(|tokenizer?\()",
    ),
    (
        "metadata",
        r"\b(?:os\.(?:stat|lstat|listdir|scandir|walk)|os\.path\.(?:exists|getsize|isfile|isdir)|glob\.\w+)\(|\.(?:exists|is_file|stat|iterdir|list_objects(?:_v2)?|head_object)\(",
    ),
    ("open_or_read", r"(?<![\w.])open\(|(?:os|io|Path\([^)]*\)|path)\.open\("),
    (
        "file_read",
        r"\.(?:read|readinto|readline|readlines|read_bytes|read1)\(|\bos\.(?:pread|preadv|read|readv)\(|\b(?:np|numpy)\.(?:fromfile|memmap|load|loadtxt)\(|\bmmap\b|memmap|mapped",
    ),
    (
        "host_to_device",
        r"\.cuda\(|\.to\((?:[^)]*\b(?:device|cuda|dev|gpu|rank|non_blocking)\b)|device_put\(|\.pin_memory\(",
    ),
    (
        "other_ranks",
        r"\b(?:all_?reduce|all_?gather|reduce_scatter|[bB]arrier|[bB]roadcast|[bB]cast|all_?to_?all|Allreduce|Allgather|Reduce)(?:_\w+)?\(",
    ),
    ("model", r"\.backward\(|optimi[sz]er\.step\(|loss\b"),
)
_OWN_TEXTS = tuple((name, re.compile(text)) for name, text in _OWN)
_REFUSAL = re.compile(r"503|429|SlowDown|TooMany|ServerBusy|[Rr]etr(?:y|ies)|[Bb]ack_?off|[Tt]hrottl")
_SLEEP = re.compile(r"\bsleep\(")

_WORKER = re.compile(r"torch/utils/data/_utils/worker\.py$")
_CHILD = re.compile(r"multiprocessing/process\.py$")
_SPAWNED_RANK = re.compile(r"torch/multiprocessing/spawn\.py$")
_INLINE = re.compile(r"torch/utils/data/dataloader\.py$")
_FETCH = re.compile(r"torch/utils/data/_utils/fetch\.py$")
_PREPARES = re.compile(
    r"^(?:__getitem__|__getitems__|collate\w*|preprocess\w*|transform\w*|decode\w*|augment\w*|load_sample\w*|read_sample\w*|fetch\w*|parse_example\w*|load_batch\w*)$"
)
_STANDARD = re.compile(r"/lib/python3\.\d+/(?!site-packages|dist-packages)|^<frozen |^<string>")
_INSTALLED = re.compile(r"/(?:site|dist)-packages/")


def classify(stack: Sequence[Frame], text_of: Callable[[Frame], str], around: Callable[[Frame], str]) -> StackClass:
    """Classify one stack.

    Args:
        stack: The frames of the stack, outermost first.
        text_of: Returns the source text of a frame's line; empty if it is not available.
        around: Returns a few lines before and after a frame's line.
    """
    is_inline = any(_INLINE.search(f.file) and "SingleProcess" in f.function for f in stack)
    # Before Python 3.11, functions have no qualified names. Therefore, a fetch outside of a worker process counts as
    # inline.
    is_worker = any(_WORKER.search(f.file) for f in stack)
    is_inline = is_inline or (not is_worker and any(_FETCH.search(f.file) for f in stack))
    is_spawned_rank = any(_SPAWNED_RANK.search(f.file) and _last(f.function) == "_wrap" for f in stack)
    is_worker = is_worker or (
        not is_spawned_rank and any(_CHILD.search(f.file) and _last(f.function) == "_bootstrap" for f in stack)
    )
    in_loader = is_inline or is_worker or any(_PREPARES.match(_last(f.function)) for f in stack)
    name = _innermost(_own_part(stack), text_of, around)
    is_launcher = name == "launch"
    if is_launcher:
        name = "wait"
    if name is None:
        name = "decoding" if in_loader else "other" if _is_foreign(stack) else "model"
    elif name == "model" and in_loader:
        name = "decoding"
    return StackClass(
        name=name,
        is_inline=is_inline,
        is_worker=is_worker,
        is_launcher=is_launcher,
        origin=_origin(stack),
    )


def _own_part(stack: Sequence[Frame]) -> Sequence[Frame]:
    """Frames that belong to a process started by `multiprocessing`. A forked process also has the outer frames of its
    parent.
    """
    for depth in range(len(stack) - 1, -1, -1):
        frame = stack[depth]
        if (_CHILD.search(frame.file) and _last(frame.function) == "_bootstrap") or _SPAWNED_RANK.search(frame.file):
            return stack[depth + 1 :]
    return stack


def _innermost(stack: Sequence[Frame], text_of: Callable[[Frame], str], around: Callable[[Frame], str]) -> str | None:
    """Class by the innermost frame that a rule matches; None if there is none."""
    generic = None
    for depth, frame in enumerate(reversed(stack)):
        if _is_installed(frame.file):
            name = _match(_LIBRARY, frame, text_of)
            if name is not None:
                return name
            if generic is None and depth < 6:
                generic = _match(_GENERIC, frame)
            continue
        # A line of the program's own code contains the call to the frames further in, such as `retry_after_503()`. The
        # text of this line decides only if no rule has matched those frames, not even a generic rule.
        name = _by_own_text(frame, text_of, around, is_leaf=depth == 0)
        if name is not None and (generic is None or name == "other_ranks"):
            return name
    return generic


def _match(rules: tuple[_Rule, ...], frame: Frame, text_of: Callable[[Frame], str] | None = None) -> str | None:
    """Name of the first rule that matches. The source is read only if a rule needs the text of the line."""
    for rule in _rules_of(rules, frame.file, _last(frame.function)):
        if rule.text is None or (text_of is not None and rule.text.search(text_of(frame))):
            return rule.name
    return None


@lru_cache(maxsize=8192)
def _rules_of(rules: tuple[_Rule, ...], file: str, function: str) -> tuple[_Rule, ...]:
    """The rules whose file and function match."""
    return tuple(
        rule for rule in rules if rule.file.search(file) and (rule.function is None or rule.function.match(function))
    )


def _by_own_text(
    frame: Frame, text_of: Callable[[Frame], str], around: Callable[[Frame], str], *, is_leaf: bool
) -> str | None:
    text = text_of(frame)
    if not text:
        return None
    if is_leaf and _SLEEP.search(text):
        return "throttle" if _REFUSAL.search(around(frame)) else None
    for name, pattern in _OWN_TEXTS:
        if pattern.search(text):
            return name
    return None


@lru_cache(maxsize=8192)
def _is_installed(file: str) -> bool:
    """Whether a file belongs to Python or to an installed package."""
    return bool(_STANDARD.search(file) or _INSTALLED.search(file))


def _is_foreign(stack: Sequence[Frame]) -> bool:
    """Whether no frame belongs to the program itself."""
    return all(_is_installed(frame.file) for frame in stack)


def _last(function: str) -> str:
    return function.rpartition(".")[2]


def _origin(stack: Sequence[Frame]) -> str:
    """The outermost frame outside of the standard library or, without such a frame, the outermost frame."""
    for frame in stack:
        if not _STANDARD.search(frame.file):
            return f"{_last(frame.function)} ({frame.file.rpartition('/')[2]})"
    return f"{_last(stack[0].function)} ({stack[0].file.rpartition('/')[2]})" if stack else ""
