"""A real browser, driven over its debugging pipe (file descriptors 3 and 4) with the standard library alone."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
# Puts our two pipe ends where Chromium looks for them, however they are numbered here, and becomes the browser.
_BECOME = (
    "import fcntl, os, sys\n"
    "ends = [fcntl.fcntl(int(n), fcntl.F_DUPFD, 10) for n in sys.argv[1:3]]\n"
    "os.dup2(ends[0], 3), os.dup2(ends[1], 4)\n"
    "os.execv(sys.argv[3], sys.argv[3:])\n"
)


class Browser:
    """Headless Chromium with one tab.

    Attributes:
        errors: what scripts of the page threw or logged as an error, and requests that left this machine.
    """

    def __init__(self, profile: Path, width: int = 1600, height: int = 1000) -> None:
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars")
        self.errors: list[str] = []
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", _BECOME, str(theirs_in), str(theirs_out), str(CHROMIUM), *flags),
                *(f"--user-data-dir={profile}", f"--window-size={width},{height}"),
                *("--remote-debugging-pipe", "--no-proxy-server", "about:blank"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs_in, theirs_out),
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = os.fdopen(ours_in, "rb"), os.fdopen(ours_out, "wb")
        self._buffer, self._number, self._session = b"", 0, ""
        targets = self.send("Target.getTargets")["targetInfos"]
        tab = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            more = os.read(self._in.fileno(), 1 << 20)
            if not more:
                raise RuntimeError("the browser ended")
            self._buffer += more
        head, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(head)
        return message

    def _listen(self, method: str, event: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = event["exceptionDetails"]
            self.errors.append(str(details.get("exception", {}).get("description", details["text"])))
        elif method == "Network.requestWillBeSent":
            url = str(event["request"]["url"])
            if not url.startswith(("http://127.0.0.1:", "data:", "blob:", "about:", "file:")):
                self.errors.append(f"asked for {url}")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol and wait for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()
        while True:
            answer = self._message()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._listen(str(answer.get("method")), answer.get("params", {}))

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression in the page; promises are waited for."""
        result = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(str(result["exceptionDetails"]))
        return result["result"].get("value")

    def open(self, url: str) -> None:
        """Load a page; an address that differs only after ``#`` is loaded afresh too."""
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=url)

    def text(self) -> str:
        """What a person can read on the page."""
        return str(self.run("document.body ? document.body.innerText : ''"))

    def wait_for(self, condition: str, timeout_s: float = 60.0) -> Any:
        """Wait until a JavaScript expression is true; its value."""
        deadline = time.monotonic() + timeout_s
        while True:
            with contextlib.suppress(RuntimeError):  # a page that is just being replaced
                value = self.run(condition)
                if value:
                    return value
            if time.monotonic() > deadline:
                raise AssertionError(f"never true: {condition}\n{self.text()[:3000]}\n{self.errors[:5]}")
            time.sleep(0.2)

    def wait_for_text(self, *texts: str, timeout_s: float = 60.0) -> str:
        """Wait until all of these stand on the page, however it breaks its lines; the page's text in one line."""
        line = "document.body.innerText.replace(/\\s+/g, ' ')"
        self.wait_for(f"{json.dumps(texts)}.every((text) => {line}.includes(text))", timeout_s)
        return " ".join(self.text().split())

    def click(self, x: float, y: float) -> None:
        """Click with the mouse, in CSS pixels from the top left."""
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def click_on(self, selector: str, text: str = "") -> None:
        """Click in the middle of the first visible element of a CSS selector, the first with this very text if given."""
        found = (
            f"[...document.querySelectorAll({json.dumps(selector)})].find((e) => e.checkVisibility() && "
            f"({json.dumps(text)} === '' || e.innerText.trim() === {json.dumps(text)}))"
        )
        self.wait_for(f"!!{found}")
        box = self.run(
            f"(() => {{ const e = {found}; e.scrollIntoView({{block: 'nearest'}}); const b = e.getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        self.click(*box)

    def screenshot(self, path: Path) -> None:
        """Write what the window shows as a PNG."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        """End the browser."""
        with contextlib.suppress(RuntimeError, OSError):
            self._session = ""
            self.send("Browser.close")
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._in.close()
        with contextlib.suppress(OSError):
            self._out.close()


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser for as long as the context lasts."""
    running = Browser(profile)
    try:
        yield running
    finally:
        running.close()
