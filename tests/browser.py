"""Headless Chromium, driven over WebDriver: what a person does at a page, and what they see there."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.ports import free_port

WAIT_S = 60.0
ANSWER_WITHIN_S = 120.0
TAB, ENTER = "\ue004", "\ue007"


class Browser:
    """One window.

    Args:
        session: address of the WebDriver session.
    """

    def __init__(self, session: str) -> None:
        self._session = session

    def open(self, url: str) -> None:
        """Go to a page, and wait until it was read."""
        self._ask("POST", "url", {"url": url})

    def run(self, script: str, *arguments: object) -> Any:
        """What a script returns that runs in the page."""
        return self._ask("POST", "execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector: str = "body") -> str:
        """What is to be read in an element; nothing, where it is not shown or not there."""
        script = "const at = document.querySelector(arguments[0]); return at?.checkVisibility() ? at.innerText : ''"
        return str(self.run(script, selector))

    def wait_for(self, text: str, selector: str = "body") -> None:
        """Wait until a text is to be read."""
        self.wait_until(lambda: text in self.text(selector), f"{text!r} in {selector}")

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for anything.

        Raises:
            AssertionError: it does not come; the message has the page's text.
        """
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain for {what}:\n{self.text()}"
            time.sleep(0.05)

    def press(self, keys: str) -> None:
        """Press keys, one after the other."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._ask("POST", "actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def resize(self, width: int, height: int) -> None:
        """Have the page's own area be of this size, in CSS pixels."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._emulate("setDeviceMetricsOverride", metrics)

    def print(self) -> None:
        """Show pages as they come to be on paper."""
        self._emulate("setEmulatedMedia", {"media": "print"})

    def complaints(self) -> list[str]:
        """What the browser's console has said since it was last asked."""
        return [entry["message"] for entry in self._ask("POST", "se/log", {"type": "browser"})]

    def requested(self) -> list[str]:
        """The addresses that pages have asked for since this was last asked."""
        events = [json.loads(entry["message"]) for entry in self._ask("POST", "se/log", {"type": "performance"})]
        messages = [event["message"] for event in events]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]

    def picture(self, path: Path) -> None:
        """Keep what the window shows as PNG."""
        path.write_bytes(base64.b64decode(self._ask("GET", "screenshot")))

    def _emulate(self, what: str, parameters: dict[str, Any]) -> None:
        self._ask("POST", "goog/cdp/execute", {"cmd": f"Emulation.{what}", "params": parameters})

    def _ask(self, method: str, what: str, body: object = None) -> Any:
        answer = requests.request(method, f"{self._session}/{what}", json=body, timeout=ANSWER_WITHIN_S)
        found = answer.json()["value"]
        assert answer.ok, found
        return found


@contextmanager
def chromium(home: Path) -> Iterator[Browser]:
    """A browser until the block ends; the test skips where Chromium or its driver is missing.

    Args:
        home: folder for all that it keeps.
    """
    driver, browser = shutil.which("chromedriver"), shutil.which("chromium")
    if driver is None or browser is None:
        pytest.skip("Chromium is not installed: `apt-get install chromium chromium-driver`")
    port = free_port()
    with (home / "chromedriver.txt").open("wb") as output:
        process = subprocess.Popen([driver, f"--port={port}"], stdout=output, stderr=output)
    address = f"http://127.0.0.1:{port}"
    try:
        _await(address)
        session = f"{address}/session/{_begin(address, browser, home)}"
        window = Browser(session)
        window.open("about:blank")
        window.complaints(), window.requested()  # of the page that a new window shows
        yield window
        requests.delete(session, timeout=ANSWER_WITHIN_S)
    finally:
        process.terminate()
        process.wait()


def _await(address: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            if requests.get(f"{address}/status", timeout=ANSWER_WITHIN_S).json()["value"]["ready"]:
                return
        except requests.ConnectionError:
            assert time.monotonic() < deadline, "chromedriver does not start"
            time.sleep(0.05)


def _begin(address: str, browser: str, home: Path) -> str:
    options = {
        "binary": browser,
        "args": [
            "--headless=new",
            "--no-sandbox",  # which root, as in a container, cannot have
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--no-proxy-server",
            f"--user-data-dir={home / 'profile'}",
        ],
    }
    wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
    body = {"capabilities": {"alwaysMatch": wanted}}
    answer = requests.post(f"{address}/session", json=body, timeout=ANSWER_WITHIN_S).json()["value"]
    assert "sessionId" in answer, answer
    return str(answer["sessionId"])
