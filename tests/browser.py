"""Chromium by its debugging pipe: pages are opened, looked at, and clicked on with a real mouse; nothing else is needed."""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page of one browser; `problems` are errors of its console and requests that failed."""

    def __init__(self, into: int, out: int) -> None:
        self._into, self._out, self._number, self._buffer = into, out, 0, b""
        self.problems: list[str] = []
        self.requested: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session: str | None = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    _session = None

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command, and its answer; what happens meanwhile is noted."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._into, json.dumps(message).encode() + b"\0")
        while True:
            found = self._read()
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]
            self._note(found)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._out, 65536)
            assert part, "the browser has ended"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)

    def _note(self, event: dict[str, Any]) -> None:
        method, found = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(found["exceptionDetails"].get("text")))
        elif method == "Log.entryAdded" and found["entry"]["level"] == "error":
            self.problems.append(f"{found['entry']['text']} {found['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requested.append(found["request"]["url"])

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def look(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, condition: str) -> None:
        """Until the condition holds, looked at whenever the page changes; the browser gives up after a minute."""
        self.look(
            "new Promise((done, lost) => { const check = () => { let ok = false; try { ok = "
            + condition
            + "; } catch {} "
            "if (ok) { watcher.disconnect(); done(true); } }; const watcher = new MutationObserver(check); "
            "watcher.observe(document, {subtree: true, childList: true, attributes: true, characterData: true}); "
            "document.addEventListener('readystatechange', check); "
            "setTimeout(() => lost(new Error(" + json.dumps(condition) + ")), 60000); check(); })"
        )

    def click(self, selector: str) -> None:
        """With the mouse, in the middle of an element."""
        self.look(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
        box = self.look(
            f"(r => [r.x + r.width / 2, r.y + r.height / 2])(document.querySelector({selector!r}).getBoundingClientRect())"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def write(self, selector: str, text: str) -> None:
        """Types into a field."""
        self.click(selector)
        self.send("Input.insertText", text=text)

    def screen(self, width: int, height: int, *, phone: bool = False) -> None:
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def picture(self, path: Path) -> Path:
        found = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))
        return path


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A headless browser with a profile in a folder; it ends with the block."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-pipe",
        f"--user-data-dir={folder / 'profile'}", "about:blank",
    ]  # fmt: skip
    shell = f'exec "$@" 3<&{to_read} 4>&{from_write}'
    running = subprocess.Popen(
        ["bash", "-c", shell, "bash", *command], pass_fds=(to_read, from_write), stderr=subprocess.DEVNULL
    )
    os.close(to_read)
    os.close(from_write)
    try:
        yield Browser(to_write, from_read)
    finally:
        running.kill()
        running.wait()
        os.close(to_write)
        os.close(from_read)
