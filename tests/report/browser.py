# SPDX-License-Identifier: Apache-2.0
"""Headless Chromium over the DevTools protocol on pipes: opens a page, and records its errors and requests."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update",
    "--disable-background-networking", "--disable-sync", "--disable-extensions", "--remote-debugging-pipe",
)  # fmt: skip
_DOMAINS = ("Page", "Runtime", "Log", "Network")


class Browser:
    """One tab. `messages` holds console errors and exceptions, `requests` the addresses that the page asked for.

    Warnings are left out: Vega-Lite writes one for each chart whose height follows from its rows.
    """

    def __init__(self, folder, width=1200, height=1600, timeout_s=30.0):
        assert BROWSER, "no Chromium here: make setup-peers installs it"
        self.messages, self.requests, self.timeout_s = [], [], timeout_s
        self._number, self._rest, self._session = 0, b"", None
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # The browser reads from descriptor 3 and writes to 4.
        command = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", command, "browser", BROWSER, *_QUIET, f"--user-data-dir={folder / 'profile'}",
             f"--window-size={width},{height}", "about:blank"],
            pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "XDG_CONFIG_HOME": str(folder), "XDG_CACHE_HOME": str(folder)},
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        target = next(t for t in self.send("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in _DOMAINS:
            self.send(f"{domain}.enable")

    def close(self):
        with contextlib.suppress(OSError):
            os.close(self._out)
            os.close(self._in)
        self._process.terminate()
        self._process.wait(20)

    def send(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        end_s = time.monotonic() + self.timeout_s
        while True:
            answer = self._read(end_s)
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._note(answer)

    def _read(self, end_s):
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end_s - time.monotonic()))
            assert ready, f"the browser did not answer within {self.timeout_s} s"
            data = os.read(self._in, 1 << 20)
            assert data, "the browser ended"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _note(self, event):
        values = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.messages.append(json.dumps(values["exceptionDetails"])[:500])
            case "Runtime.consoleAPICalled" if values["type"] in ("error", "assert"):
                self.messages.append(json.dumps(values["args"])[:500])
            case "Log.entryAdded" if values["entry"]["level"] == "error":
                self.messages.append(json.dumps(values["entry"])[:500])
            case "Network.requestWillBeSent":
                self.requests.append(values["request"]["url"])

    def run(self, expression):
        """Value of a JavaScript expression; a promise is awaited."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def media(self, scheme="light", media="screen"):
        self.send("Emulation.setEmulatedMedia", media=media,
                  features=[{"name": "prefers-color-scheme", "value": scheme}])  # fmt: skip

    def open(self, file):
        """Open a file and wait until its charts are drawn, or at once if it has none."""
        self.send("Page.navigate", url=file.as_uri())
        end_s = time.monotonic() + self.timeout_s
        while not self.run("location.protocol === 'file:' && document.readyState === 'complete'"):
            assert time.monotonic() < end_s, "the page does not load"
        while self.run("!!document.getElementById('specs') && !document.documentElement.dataset.charts"):
            assert time.monotonic() < end_s, f"the charts are not drawn: {self.messages}"
        return self.run("document.documentElement.dataset.charts")

    def screenshot(self, file, full=True):
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=full, **self._clip(full))
        file.write_bytes(base64.b64decode(shot["data"]))

    def _clip(self, full):
        if not full:
            return {}
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def pdf(self, file):
        file.write_bytes(base64.b64decode(self.send("Page.printToPDF", printBackground=True)["data"]))


@contextlib.contextmanager
def browser(folder, **more):
    tab = Browser(folder, **more)
    try:
        yield tab
    finally:
        tab.close()
