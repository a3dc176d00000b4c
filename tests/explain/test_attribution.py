# SPDX-License-Identifier: Apache-2.0
"""Tests of the attribution: classes of stacks as py-spy records them, corrections by the kernel, and roles. Issue 17."""

from collections import Counter

import pytest

from penstock.explain.attribution import ThreadTime, attribute, bottleneck, correct, thread_times
from penstock.explain.frame_rules import Frame, classify
from penstock.explain.remedies import remedies, step_model
from penstock.explain.result import CLASSES
from penstock.explain.stacks import ThreadStack
from penstock.explain.verdict import Figures, judge, sampling_noise

LIB = "/usr/lib/python3.11"
SITE = f"{LIB}/site-packages"
TORCH = f"{SITE}/torch"


def frames(text):
    """Frames from lines `function file:line | source text`, outermost first; and their texts."""
    stack, texts = [], {}
    for line in text.strip().splitlines():
        place, _, source = line.partition("|")
        function, file = place.split(None, 1)
        path, _, number = file.strip().replace("LIB", LIB).replace("SITE", SITE).rpartition(":")
        frame = Frame(function, path, int(number))
        stack.append(frame)
        texts[frame] = source
    return tuple(stack), texts


def class_of(text, around=""):
    stack, texts = frames(text)
    return classify(stack, lambda frame: texts.get(frame, ""), lambda _frame: around)


LOADER = "main train.py:9 | for batch in loader:\n__next__ SITE/torch/utils/data/dataloader.py:700\n"
WORKER = "_bootstrap LIB/multiprocessing/process.py:314\n_worker_loop SITE/torch/utils/data/_utils/worker.py:300\n"
HTTP = "_make_request SITE/urllib3/connectionpool.py:540\nbegin LIB/http/client.py:325\n"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("main train.py:3 | x = 1", "model"),
        ("main train.py:3 | loss.backward()\nbackward SITE/torch/_tensor.py:6", "model"),
        (f"{LOADER}_try_get_data SITE/torch/utils/data/dataloader.py:9\npoll LIB/multiprocessing/connection.py:257", "wait"),
        (f"main a.py:1 | get()\n{HTTP}_read_status LIB/http/client.py:286\nreadinto LIB/socket.py:706", "first_byte"),
        ("main a.py:1\n_safe_read LIB/http/client.py:640\nreadinto LIB/socket.py:706", "transfer"),
        ("main a.py:1\nread SITE/urllib3/response.py:9\nread LIB/http/client.py:9\nread LIB/ssl.py:9", "transfer"),
        ("main a.py:1\n_needs_retry SITE/botocore/endpoint.py:300 | time.sleep(handler_response)", "throttle"),
        ("main a.py:1\nsleep SITE/urllib3/util/retry.py:9 | time.sleep(backoff)", "throttle"),
        ("main a.py:1\nread LIB/gzip.py:507", "decompression"),
        ("main a.py:1 | zlib.decompress(data)", "decompression"),
        ("main a.py:1 | with gzip.open(path) as file:", "model"),
        (f"{WORKER}__getitem__ a.py:3 | x\nload SITE/PIL/ImageFile.py:3", "decoding"),
        (f"{WORKER}__getitem__ a.py:3 | chance = draw.random()", "decoding"),
        (f"{WORKER}get LIB/multiprocessing/queues.py:113 | self._poll()\nwait LIB/multiprocessing/connection.py:9", "wait"),
        ("run LIB/threading.py:9\n_feed LIB/multiprocessing/queues.py:244 | obj = _ForkingPickler.dumps(obj)", "python_workers"),
        (f"{LOADER}get LIB/multiprocessing/queues.py:122 | return _ForkingPickler.loads(res)", "python_workers"),
        (
            (f"{LOADER}get LIB/multiprocessing/queues.py:122 | loads(\n"
            "rebuild_storage_fd SITE/torch/multiprocessing/reductions.py:543\n"
            "Client LIB/multiprocessing/connection.py:524\n_recv_bytes LIB/multiprocessing/connection.py:430 | _recv(4)"),
            "python_workers",
        ),
        ("main a.py:1 | sample = ahead.popleft().result()\nresult LIB/concurrent/futures/_base.py:4\nwait LIB/threading.py:3", "wait"),
        ("main a.py:1 | arrays.get()\nget LIB/queue.py:171\nwait LIB/threading.py:327", "wait"),
        ("main a.py:1 | dist.all_reduce(x)\nall_reduce SITE/torch/distributed/distributed_c10d.py:9", "other_ranks"),
        ("main a.py:1 | comm.Allreduce(a, b)", "other_ranks"),
        ("main a.py:1 | x = batch.to(device, non_blocking=True)", "host_to_device"),
        ("main a.py:1 | os.pread(fd, size, at)", "file_read"),
        ("main a.py:1\nread_bytes LIB/pathlib.py:1050", "file_read"),
        ("main a.py:1\nwalk LIB/os.py:400", "metadata"),
        ("main a.py:1 | names = os.listdir(folder)", "metadata"),
        ("main a.py:1 | file = open(path, 'rb')", "open_or_read"),
        ("<module> a.py:1 | import torch\n_find_and_load <frozen importlib._bootstrap>:9", "startup"),
    ],
)  # fmt: skip
def test_stack_has_the_class_of_its_innermost_known_frame(text, name):
    assert class_of(text).name == name


def test_sleep_of_own_code_is_throttling_only_beside_a_refusal():
    text = "fetch a.py:7 | time.sleep(delay)"
    assert class_of(text, "if response.status == 503:").name == "throttle"
    assert class_of("main a.py:7 | time.sleep(0.1)", "step(batch)").name == "model"


def test_training_that_runs_while_its_module_is_imported_is_not_start_up():
    text = "<module> run.py:1 | import train\nexec_module <frozen importlib._bootstrap_external>:9\n"
    assert class_of(f"{text}<module> train.py:5 | loss.backward()\nbackward SITE/torch/_tensor.py:6").name == "model"


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        ("main a.py:1\n_next_data SITE/torch/utils/data/dataloader.py:9\nfetch SITE/torch/utils/data/_utils/fetch.py:54", "is_inline"),
        (f"{WORKER}__getitem__ a.py:3", "is_worker"),
        ("main SITE/torch/distributed/run.py:9\nrun SITE/torch/distributed/elastic/agent/server/api.py:9", "is_launcher"),
        ("<module> a.py:1 | os.wait()", "is_launcher"),
    ],
)  # fmt: skip
def test_stack_shows_the_role_of_its_process(text, flag):
    assert getattr(class_of(text), flag)


def test_ranks_of_torch_spawn_are_not_workers():
    text = (
        "_bootstrap LIB/multiprocessing/process.py:314\n_wrap SITE/torch/multiprocessing/spawn.py:90\ntrain a.py:3 | x"
    )
    found = class_of(text)
    assert (found.is_worker, found.name) == (False, "model")


def thread(name="main", origin="main", **samples):
    return ThreadTime(1, 1, name, origin, Counter(samples))


def test_thread_times_group_stacks_by_thread():
    main, main_texts = frames("main a.py:1 | arrays.get()\nget LIB/queue.py:171\nwait LIB/threading.py:327")
    reader, texts = frames("run LIB/threading.py:9\nread_ahead a.py:5\nread LIB/gzip.py:507")
    texts |= main_texts
    counts = {ThreadStack(7, "MainThread", main): 30, ThreadStack(8, "Thread-1", reader): 60}
    found = thread_times(7, counts, lambda frame: texts.get(frame, ""), lambda _frame: "")
    assert found[7].samples == {"wait": 30}
    assert found[8].samples == {"decompression": 60}
    assert found[8].origin == "read_ahead (a.py)"


def test_blocked_reads_are_not_decompression():
    one = thread(decompression=90, wait=10)
    correct(one, 100, Counter({("read", "/mnt/slow/a.gz"): 80}), cpu_share=0.1)
    assert one.share("file_read") == pytest.approx(0.8)
    assert one.share("decompression") == pytest.approx(0.1)


def test_page_faults_of_a_mapped_file_are_reads():
    one = thread(model=100)
    correct(one, 100, Counter({("page_fault", ""): 70}), cpu_share=0.3)
    assert one.share("file_read") == pytest.approx(0.7)


def test_reads_from_the_page_cache_are_copying():
    one = thread(file_read=80, decoding=20)
    correct(one, 100, Counter(), cpu_share=1.0)
    assert one.share("file_read") < 0.05
    assert one.share("decoding") > 0.95


def test_open_or_read_follows_the_blocked_calls():
    one = thread(open_or_read=100)
    correct(one, 100, Counter({("openat", ""): 60, ("read", "/mnt/a"): 20}), cpu_share=0.1)
    assert one.share("metadata") == pytest.approx(0.75)
    assert one.share("file_read") == pytest.approx(0.25)


def test_few_looks_correct_nothing():
    one = thread(decompression=100)
    correct(one, 5, Counter({("read", "/mnt/a"): 5}), cpu_share=0.1)
    assert one.share("decompression") == 1.0


def test_bottleneck_is_the_group_that_waits_least():
    readers = [(thread(origin="read", file_read=10, wait=90), False) for _ in range(4)]
    found = bottleneck([*readers, (thread(origin="unpack", decompression=98, wait=2), False)])
    assert (found.origin, found.threads) == ("unpack", 1)
    assert found.busy_share == pytest.approx(0.98)
    assert found.shares["decompression"] > 0.99
    assert sum(found.shares.values()) == pytest.approx(1)


def attributed(consumer, *loaders, **options):
    options = {"is_distributed": False, "receiving_share": 0.5} | options
    return attribute(1, consumer, [(one, True) for one in loaders], **options)


def test_waiting_is_divided_as_the_loaders_spend_their_time():
    found = attributed(thread(model=40, wait=60), thread(origin="w", decoding=75, first_byte=25, wait=0))
    assert found.critical == pytest.approx({"model": 0.4, "decoding": 0.45, "first_byte": 0.15})
    assert found.shares == pytest.approx({"model": 0.4, "worker_wait": 0.6})
    assert set(found.critical) | set(found.shares) <= set(CLASSES)


def test_waiting_within_backward_is_for_other_ranks():
    main = thread(model=100)
    correct(main, 100, Counter({("futex", ""): 70}), cpu_share=0.3)
    assert attributed(main, is_distributed=True).critical["other_ranks"] == pytest.approx(0.7)
    alone = thread(model=100)
    correct(alone, 100, Counter({("futex", ""): 70}), cpu_share=0.3)
    assert "other_ranks" not in attributed(alone).critical


def test_unresolved_network_time_follows_the_arriving_bytes():
    found = attributed(thread(network=100), receiving_share=0.8)
    assert found.critical == pytest.approx({"transfer": 0.8, "first_byte": 0.2})


def verdict_of(*consumers, **figures):
    return judge(list(consumers), Figures(**figures))


@pytest.mark.parametrize(
    ("loader", "kind"),
    [
        ({"transfer": 80, "first_byte": 20}, "storage-bandwidth"),
        ({"transfer": 10, "first_byte": 90}, "storage-latency"),
        ({"throttle": 60, "first_byte": 40}, "storage-throttled"),
        ({"metadata": 70, "file_read": 30}, "storage-metadata"),
        ({"file_read": 100}, "disk"),
        ({"decompression": 90, "file_read": 10}, "decompression"),
        ({"decoding": 90, "first_byte": 10}, "decoding"),
        ({"python_workers": 100}, "python-workers"),
    ],
)
def test_verdict_names_what_the_busiest_loader_does(loader, kind):
    found = verdict_of(attributed(thread(model=30, wait=70), thread(origin="w", **loader)))
    assert (found.kind, found.confidence) == (kind, "high")
    assert found.wait_share == pytest.approx(0.7)
    assert "70 %" in found.sentence


def test_verdict_small_reads_need_small_and_many_reads():
    one = attributed(thread(model=30, wait=70), thread(origin="w", file_read=100))
    assert verdict_of(one, mean_read_bytes=4096, reads_per_s=5000).kind == "small-reads"
    assert verdict_of(one, mean_read_bytes=1e6, reads_per_s=5000).kind == "disk"


def test_verdict_without_waiting_depends_on_how_busy_the_loaders_are():
    assert verdict_of(attributed(thread(model=99, wait=1), thread(decoding=70, wait=30))).kind == "healthy"
    assert verdict_of(attributed(thread(model=99, wait=1), thread(decoding=10, wait=90))).kind == "model"


def test_verdict_of_a_loader_without_workers():
    main = thread(model=60, decoding=40)
    main.inline = Counter(decoding=40)
    assert verdict_of(attributed(main)).kind == "no-workers"


def test_verdict_names_the_slow_rank():
    fast = attributed(thread(model=30, other_ranks=70), rank=0)
    slow = attributed(thread(model=98, other_ranks=2), rank=1)
    found = verdict_of(fast, slow)
    assert (found.kind, found.subject) == ("other-ranks", "rank 1")
    assert "rank 1" in found.sentence


def test_verdict_of_too_few_samples_is_unknown():
    assert verdict_of().kind == "unknown"
    assert verdict_of(attributed(thread(model=2)), ended_early=True).kind == "unknown"


def test_verdict_allows_for_the_noise_of_few_samples():
    # 9 % of 80 samples can be 5 %: two standard deviations are 4.9 %. 9 % of 800 samples cannot: they are 1.5 %.
    loader = thread(origin="w", first_byte=70, wait=30)
    assert verdict_of(attributed(thread(model=73, wait=7), loader)).kind == "healthy"
    assert verdict_of(attributed(thread(model=730, wait=70), loader)).kind == "storage-latency"
    assert sampling_noise(80) == pytest.approx(0.0487, abs=1e-4)


def test_verdict_of_a_healthy_program_with_few_samples_has_low_confidence():
    found = verdict_of(attributed(thread(model=30), thread(decoding=70, wait=30)))
    assert (found.kind, found.confidence) == ("healthy", "low")


def test_verdict_of_waiting_for_unseen_loaders_says_so():
    found = verdict_of(attributed(thread(model=40, wait=60)))
    assert found.kind == "unknown"
    assert "waits 60 % of its time for threads or processes that were not observed" in found.reason


def test_verdict_leaves_waiting_to_other_programs_on_a_busy_node():
    one = attributed(thread(model=90, wait=10), thread(origin="w", first_byte=70, wait=30))
    assert verdict_of(one).kind == "storage-latency"
    assert verdict_of(one, other_cores_share=0.6, ready_share=0.4).kind == "healthy"
    saturated = attributed(thread(model=90, wait=10), thread(origin="w", decompression=96, wait=4))
    assert verdict_of(saturated, other_cores_share=0.6, ready_share=0.4).kind == "decompression"


def test_gain_ends_where_the_model_limits():
    shares = {"model": 0.25, "first_byte": 0.75}
    step = step_model(shares, is_overlapped=True, loaders=1, cores_free=1)
    gain, following = step.gain({"first_byte": 16.0})
    assert (gain, following) == (pytest.approx(4.0), "the model")
    gain, following = step.gain({"first_byte": 2.0})
    assert gain == pytest.approx(2.0)


def test_gain_of_workers_overlaps_what_was_in_turn():
    step = step_model({"model": 0.6, "decoding": 0.4}, is_overlapped=False, loaders=0, cores_free=1)
    gain, _ = step.gain({"decoding": 1.0}, overlapped=True)
    assert gain == pytest.approx(1 / 0.6)


def test_remedies_are_sorted_and_each_states_its_arithmetic():
    step = step_model({"model": 0.2, "transfer": 0.8}, is_overlapped=True, loaders=4, cores_free=2)
    found = remedies("storage-bandwidth", step)
    assert len(found) == 2
    assert found[0].gain >= found[1].gain > 1
    assert all("limits" in one.gain_source for one in found)
    assert remedies("model", step) == ()


@pytest.mark.parametrize(("loaders", "text"), [(0, "use 1 loader instead of none"), (2, "use 3 loaders instead of 2")])
def test_remedy_for_decoding_counts_the_loaders(loaders, text):
    step = step_model({"model": 0.4, "decoding": 0.6}, is_overlapped=loaders > 0, loaders=loaders, cores_free=1)
    assert text in [one.text for one in remedies("decoding", step)]
