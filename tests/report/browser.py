"""A Chromium driven over a pipe, without a driver program or another package.

Chromium reads commands of the DevTools protocol from file descriptor 3 and answers on 4, as JSON that ends in a zero
byte.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    *("--hide-scrollbars", "--remote-debugging-pipe"),
)
# Puts two descriptors where Chromium expects them, and becomes Chromium.
MOVE = """
import fcntl, os, sys
hears, says = (fcntl.fcntl(int(word), fcntl.F_DUPFD, 10) for word in sys.argv[1:3])
os.dup2(hears, 3)
os.dup2(says, 4)
os.close(hears)
os.close(says)
os.execv(sys.argv[3], sys.argv[3:])
"""
KEYS = {"Enter": 13, "Tab": 9, "Escape": 27, "ArrowRight": 39, "ArrowLeft": 37, "ArrowDown": 40, "ArrowUp": 38}


class NoBrowser(Exception):
    """Chromium is installed but does not start."""


class Browser:
    """One page in it. `events` collects what the page did: console, errors and requests."""

    def __init__(self, sends: int, answers: int) -> None:
        self._sends, self._answers = sends, answers
        self._buffer, self._number, self.events = b"", 0, list[dict[str, Any]]()
        self._session: str | None = None
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
        except (RuntimeError, OSError) as error:
            raise NoBrowser(str(error)) from error
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{part}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._sends, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + 30
        while b"\0" not in self._buffer:
            if not select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise RuntimeError("Chromium does not answer.")
            some = os.read(self._answers, 1 << 16)
            if not some:
                raise RuntimeError("Chromium has ended.")
            self._buffer += some
        message, _, self._buffer = self._buffer.partition(b"\0")
        body: dict[str, Any] = json.loads(message)
        return body

    def open(self, page: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        self.events.clear()
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.scheme(dark=dark)
        self.call("Page.navigate", url=page.resolve().as_uri())
        for _ in range(300):
            if self("document.readyState") == "complete" and self("location.href").startswith("file"):
                return
            time.sleep(0.02)
        raise RuntimeError("The page does not load.")

    def scheme(self, *, dark: bool) -> None:
        value = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def __call__(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def key(self, name: str, *, shift: bool = False) -> None:
        for kind in ("rawKeyDown", *(("char",) if name == "Enter" else ()), "keyUp"):
            text = {"text": "\r"} if kind == "char" else {}
            code = KEYS[name]
            modifiers = 8 if shift else 0
            common = {"key": name, "code": name, "windowsVirtualKeyCode": code, "modifiers": modifiers}
            self.call("Input.dispatchKeyEvent", type=kind, **common, **text)

    def hover(self, selector: str, dx: float = 0.5, dy: float = 0.5) -> None:
        x, y = self._point(selector, dx, dy)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        x, y = self._point(selector, 0.5, 0.5)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def _point(self, selector: str, dx: float, dy: float) -> tuple[float, float]:
        box = self(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center', behavior: 'instant'}); const b = e.getBoundingClientRect();"
            "return [b.left, b.top, b.width, b.height] })()"
        )
        return box[0] + dx * box[2], box[1] + dy * box[3]

    def picture(self, path: Path, **clip: float) -> None:
        """Take a picture of the viewport, or of a part of the page: x, y, width, height."""
        part = {"clip": {**clip, "scale": 1}, "captureBeyondViewport": True} if clip else {}
        data = self.call("Page.captureScreenshot", format="png", **part)["data"]
        path.write_bytes(base64.b64decode(data))


@contextlib.contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """A browser with an empty profile in a folder."""
    assert PROGRAM is not None
    (hears, sends), (answers, says) = os.pipe(), os.pipe()
    words = [sys.executable, "-c", MOVE, str(hears), str(says), PROGRAM, *FLAGS, f"--user-data-dir={folder}"]
    quiet = subprocess.DEVNULL
    program = subprocess.Popen(words, pass_fds=(hears, says), stdout=quiet, stderr=quiet)
    os.close(hears)
    os.close(says)
    try:
        yield Browser(sends, answers)
    finally:
        os.close(sends)  # Chromium ends when nobody can speak to it any more
        os.close(answers)
        try:
            program.wait(10)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()
