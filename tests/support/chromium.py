"""A real browser: Chromium without a display, driven through chromedriver (W3C WebDriver and the DevTools protocol)."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-sync",
    "--hide-scrollbars",
    "--no-first-run",
)


class Browser:
    """One window."""

    def __init__(self, address: str, folder: str) -> None:
        self._address = address
        options = {"binary": CHROMIUM, "args": [*_OPTIONS, f"--user-data-dir={folder}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        answer = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._address += f"/session/{answer['sessionId']}"
        # Its own first page still loads, and asks for what it needs.
        self._ask("POST", "/url", {"url": "about:blank"})

    def _ask(self, method: str, path: str, content: Any = None) -> Any:
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(
            self._address + path, data=data, method=method, headers={"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()[:2000]) from None

    def devtools(self, command: str, **parameters: Any) -> Any:
        """Runs a command of the DevTools protocol."""
        return self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def show(
        self, page: Path | str, width: int = 1280, height: int = 900, scheme: str = "light", scripts: bool = True
    ) -> None:
        """Opens a file or an address in a window of that size, in the colour scheme "light" or "dark", with or without
        scripts."""
        self.resize(width, height)
        self.devtools(
            "Emulation.setEmulatedMedia", media="", features=[{"name": "prefers-color-scheme", "value": scheme}]
        )
        self.devtools("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.log("browser"), self.log("performance")
        self._ask("POST", "/url", {"url": page if isinstance(page, str) else page.resolve().as_uri()})

    def resize(self, width: int, height: int = 900) -> None:
        """Gives the window another size."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    def run(self, code: str, *arguments: Any) -> Any:
        """What a function's body returns; it is run in the page."""
        return self._ask("POST", "/execute/sync", {"script": code, "args": list(arguments)})

    def settle(self) -> None:
        """Waits until the page has drawn what it wanted to draw."""
        frames = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()));"
        self.wait_for(frames)

    def wait_for(self, code: str) -> Any:
        """What a function's body hands to its first argument, which it calls when it is done; it is run in the page."""
        return self._ask("POST", "/execute/async", {"script": code, "args": []})

    def press(self, *keys: str) -> None:
        """Presses the keys of characters one after another."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._ask("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})
        self.settle()

    def log(self, kind: str) -> list[Any]:
        """What came since the last call: "browser" is the console, "performance" has the requests."""
        return list(self._ask("POST", "/se/log", {"type": kind}))

    def requests(self) -> list[str]:
        """The addresses that were asked for since `show`."""
        events = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]

    def screenshot(self, path: Path, whole: bool = True) -> None:
        """Writes what the page looks like as a PNG: all of it, or what the window shows."""
        data = self.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole))
        path.write_bytes(base64.b64decode(data["data"]))

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self.devtools("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def pdf(self) -> bytes:
        """The page as it is printed."""
        return base64.b64decode(self.devtools("Page.printToPDF", printBackground=True)["data"])

    def close(self) -> None:
        self._ask("DELETE", "")


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser with a profile of its own; both are gone afterwards."""
    assert DRIVER
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as folder:
        environment = {**os.environ, "HOME": folder, "XDG_CONFIG_HOME": folder, "XDG_CACHE_HOME": folder}
        with subprocess.Popen(
            [DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        ) as driver:
            try:
                assert driver.stdout
                found = (re.search(r"successfully on port (\d+)", line) for line in driver.stdout)
                port = next((match[1] for match in found if match), None)
                assert port, "chromedriver did not start"
                shown = Browser(f"http://127.0.0.1:{port}", f"{folder}/profile")
                try:
                    yield shown
                finally:
                    shown.close()
            finally:
                driver.terminate()
