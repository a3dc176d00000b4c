# SPDX-License-Identifier: Apache-2.0
"""Tests that the page of `explain` is complete, makes no request, escapes its input, and opens in a real browser."""

import json
import os
import re
import shutil
import subprocess

import msgspec
import pytest

from penstock.explain.result import (
    CLASS_TEXTS,
    Ceiling,
    Cost,
    Endpoint,
    Evidence,
    Explanation,
    FileSystem,
    Kind,
    Overhead,
    ProcessFacts,
    Program,
    Remedy,
    TimeShare,
    Verdict,
)
from penstock.report.explain_page import KIND_TEXTS, explain_page, write_explain_page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def explanation(**changes):
    facts = {
        "verdict": Verdict(
            kind="storage-bandwidth",
            sentence="The program waits 71 % of its time for bytes from 10.0.0.1:443, which sends 8.1 MB/s.",
            reason="All 4 connections receive without a pause, and the rate does not depend on the number in flight.",
            wait_share=0.71,
            confidence="high",
            second="decoding",
            subject="10.0.0.1:443",
        ),
        "program": Program(
            argv=("python", "train.py", "--data", "s3://frames/a b"),
            pid=4242,
            seen_s=60.0,
            startup_s=4.2,
            host="node-7",
            started="2026-11-24T17:40:00Z",
        ),
        "overhead": Overhead(wall_s=60, cpu_s=0.5, pause_s=0.1, share=0.01, share_of_machine=0.005, cores=2, stack_samples=3000),
        "evidence": (
            Evidence(
                quantity="rate from 10.0.0.1:443",
                value=8.1e6,
                unit="bytes/s",
                source="TCP info",
                ceiling=8.4e6,
                ceiling_source="highest second of the observation",
            ),
            Evidence(quantity="consumer's wait for the loader", value=0.71, unit="share", source="stacks"),
            Evidence(quantity="first byte", value=0.021, unit="s", source="stacks"),
            Evidence(quantity="requests", value=31.0, unit="requests/s", source="TCP info"),
        ),
        "shares": (
            TimeShare(name="model", consumer=0.29, loaders=0.0, critical=0.29),
            TimeShare(name="transfer", consumer=0.0, loaders=0.8, critical=0.57),
            TimeShare(name="first_byte", consumer=0.0, loaders=0.1, critical=0.07),
            TimeShare(name="decoding", consumer=0.0, loaders=0.1, critical=0.07),
            TimeShare(name="worker_wait", consumer=0.71, loaders=0.0, critical=0.0),
        ),
        "processes": (
            ProcessFacts(
                pid=4242, parent=1, role="consumer", command="python train.py", threads=3, seen_s=60, cpu_cores=0.31, rank=0,
                top=(("worker_wait", 0.71), ("model", 0.29)),
            ),
        ),
        "endpoints": (
            Endpoint(
                address="10.0.0.1", port=443, role="store", connections=4, opened=9, received_bytes=486_000_000,
                sent_bytes=40_000, rate_bytes_per_s=8.1e6, receiving_share=0.99, rtt_s=0.0021, retransmits=3,
            ),
        ),
        "file_systems": (
            FileSystem(mount_point="/data", kind="ext4", place="local", files=3, read_bytes_per_s=1e3, device="nvme0n1", device_busy_share=0.02),
        ),
        "ceilings": (Ceiling(resource="cores", value=0.4, limit=2, unit="cores", source="/proc/cpuinfo"),),
        "cost": Cost(hours_lost_per_day=17.0, price_usd_per_hour=26.44, usd_lost_per_day=449.5, price_source="--price"),
        "remedies": (
            Remedy(
                text="Store the samples compressed: 8.1 MB/s then carry more of them.",
                gain=2.4,
                gain_source="1 / (1 - 0.57), limited next by decoding",
                command="penstock transcode s3://frames s3://frames-zst",
            ),
        ),
        "limits": ("TLS hides the status codes of responses.",),
    }  # fmt: skip
    return Explanation(**{**facts, **changes})


def test_explain_page_has_the_answer_money_remedies_and_evidence():
    text = explain_page(explanation())
    for needed in (
        "waits 71 % of its time for bytes from 10.0.0.1:443", "$450 a day", "$26 an hour", "17 h",
        "2.4x", "penstock transcode s3://frames s3://frames-zst", "8.10 MB/s", "96 %", "TLS hides the status codes",
        "&#x27;s3://frames/a b&#x27;", "node-7", "1 min 00 s, after 4.20 s of start-up", "1.0% of one core", "next limit: decoding", "31 requests/s",
    ):  # fmt: skip
        assert needed.replace("next limit: decoding", "next limit: decoding") in text, needed


def test_explain_page_bar_adds_up_and_has_a_text_alternative():
    text = explain_page(explanation())
    bar = re.search(r"<svg role=\"img\" aria-label=\"([^\"]+)\".*?</svg>", text, re.DOTALL)
    widths = [float(width) + 3 for width in re.findall(r'width="([\d.]+)" height="40" style', bar.group(0))]
    assert sum(widths) == pytest.approx(1000, abs=1)
    assert "bytes in transit (bandwidth) 57 %" in bar.group(1)
    assert "waiting for the loader" not in bar.group(1)  # its critical share is 0, as the loaders' time replaces it
    assert text.count("<rect ") == 4


def test_explain_page_fetches_nothing_and_has_no_script():
    text = explain_page(explanation())
    assert "<script" not in text
    assert re.findall(r'(?:src|href|action)="(?!data:|#)', text) == []
    assert len(text.encode()) < 100_000


def test_explain_page_hostile_text_stays_text():
    evil = '</title><script>alert(1)</script><img src=x onerror="alert(1)">'
    changed = explanation(
        verdict=Verdict(kind="unknown", sentence=evil, reason=evil, subject=evil),
        limits=(evil,),
        program=Program(argv=(evil,), pid=1, seen_s=1.0, host=evil),
    )
    text = explain_page(changed)
    assert "<script>alert" not in text
    assert "<img" not in text


def test_explain_page_without_price_asks_for_one_and_without_waiting_says_so():
    assert "--price USD_PER_HOUR" in explain_page(explanation(cost=Cost(hours_lost_per_day=2.0)))
    assert "No time is lost" in explain_page(explanation(cost=Cost(hours_lost_per_day=0.0)))


def test_explain_page_of_an_empty_result_is_written():
    text = explain_page(
        Explanation(
            verdict=Verdict(kind="unknown", sentence="The program ended after 0.1 s.", reason="Too few samples."),
            program=Program(argv=("true",), pid=1, seen_s=0.1, ended=True, exit_code=0),
            overhead=Overhead(wall_s=0.1, cpu_s=0, pause_s=0, share=0, share_of_machine=0, cores=2),
        )
    )
    assert "ended with exit code 0" in text
    assert "<rect" not in text


def test_explain_page_long_tables_are_cut_and_say_so():
    many = tuple(Evidence(quantity=f"quantity {i}", value=i, unit="count", source="stacks") for i in range(100_000))
    text = explain_page(explanation(evidence=many))
    assert "99,940 more rows are in the JSON" in text
    assert len(text.encode()) < 100_000


def test_explain_page_names_every_kind():
    assert set(KIND_TEXTS) == set(Kind.__args__)


@pytest.mark.needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_explain_page_in_chromium_has_no_console_message_and_no_request(scheme, tmp_path):
    assert BROWSER, "no Chromium here: make setup-peers installs it"
    shares = explanation().shares
    every = tuple(TimeShare(name=name, consumer=1 / 14, loaders=0, critical=1 / 14) for name in CLASS_TEXTS)
    for name, result in (("some", explanation(shares=shares)), ("every", explanation(shares=every))):
        file, log = tmp_path / f"{name}.html", tmp_path / f"{name}-net.json"
        write_explain_page(result, file)
        dom, messages = opened(file, log, tmp_path / f"{name}-{scheme}.png", scheme, tmp_path)
        assert "CONSOLE" not in messages, messages
        assert dom.count("<rect ") == (4 if name == "some" else 14)
        assert requested(log) == []
        assert (tmp_path / f"{name}-{scheme}.png").stat().st_size > 10_000


@pytest.mark.needs_browser
def test_request_of_a_page_is_seen_in_the_network_log(tmp_path):
    (tmp_path / "fetches.html").write_text('<img src="http://127.0.0.1:9/x.png" alt="">')
    opened(tmp_path / "fetches.html", tmp_path / "net.json", tmp_path / "x.png", "light", tmp_path)
    assert "http://127.0.0.1:9/x.png" in requested(tmp_path / "net.json")


def opened(file, log, picture, scheme, home):
    """The document and the browser's messages. The picture and the log of its network requests are written."""
    options = [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
        "--disable-background-networking", "--disable-component-update", "--enable-logging=stderr", "--v=0",
        f"--user-data-dir={home / 'profile'}", f"--log-net-log={log}", f"--screenshot={picture}",
        "--window-size=1200,2600", "--virtual-time-budget=2000", "--dump-dom",
        *(["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []),
    ]  # fmt: skip
    done = subprocess.run(
        [BROWSER, *options, file.as_uri()],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_CONFIG_HOME": str(home), "XDG_CACHE_HOME": str(home)},
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-400:]
    return done.stdout, done.stderr


def requested(log):
    """URLs that the page requested, in a network log of Chromium. The browser's own requests have no origin."""
    asked = [event.get("params", {}) for event in json.loads(log.read_text())["events"]]
    return [
        each["url"] for each in asked if "url" in each and each.get("initiator", "not an origin") != "not an origin"
    ]


def test_explanation_survives_json():
    from penstock.explain.result import decode, encode

    assert decode(encode(explanation())) == explanation()
    assert msgspec.json.decode(encode(explanation()))["schema_version"] == 1
