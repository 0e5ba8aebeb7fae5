"""Drives a headless Chromium through its debugging pipe, with nothing but the standard library."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)
TIMEOUT = 60.0  # seconds for an answer


class Page:
    """A tab that does what a person would do, and tells what a person would see."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._numbers = itertools.count(1)
        self._pending = b""
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        self.problems: list[str] = []  # uncaught errors and refusals, as the console shows them
        for part in ("Page", "Runtime", "Log"):
            self.call(f"{part}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command of the DevTools protocol."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data) :]
        while (answer := self._receive()).get("id") != number:
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.problems.append(json.dumps(answer["params"]))
        assert "error" not in answer, answer
        return answer["result"]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._pending:
            readable, _, _ = select.select([self._answers], [], [], TIMEOUT)
            assert readable, "chromium does not answer"
            data = os.read(self._answers, 1 << 20)
            assert data, "chromium has ended"
            self._pending += data
        message, _, self._pending = self._pending.partition(b"\0")
        return json.loads(message)

    def open(self, path: Path, fragment: str = "") -> None:
        """Show a file, freshly loaded."""
        self.visit(path.resolve().as_uri() + fragment)

    def visit(self, address: str) -> None:
        """Show a page, freshly loaded."""
        self.call("Page.navigate", url="about:blank")
        self.problems.clear()
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.protocol !== 'about:'")

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, condition: str) -> None:
        """Until a JavaScript expression is true."""
        end = time.monotonic() + TIMEOUT
        while not self.run(condition):
            assert time.monotonic() < end, f"never true: {condition}"
            time.sleep(0.02)

    def press(self, key: str) -> None:
        """Press and release a key."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def type(self, text: str) -> None:
        """Type text where the focus is."""
        self.call("Input.insertText", text=text)

    def texts(self, selector: str) -> list[str]:
        """The texts of all elements that match."""
        found: list[str] = self.run(
            f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.textContent)"
        )
        return found

    def click(self, selector: str) -> None:
        """Click on the first element that matches."""
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def move(self, selector: str) -> None:
        """Move the pointer over the first element that matches."""
        x, y = self.run(
            f"(() => {{ const element = document.querySelector({json.dumps(selector)});"
            "element.scrollIntoView({block: 'center'});"
            "const box = element.getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path: Path) -> None:
        """Save what is to be seen."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=False)["data"]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def open_browser(profile: Path, *, width: int = 1280, height: int = 900) -> Iterator[Page]:
    """A page in a browser of its own, which ends with the context."""
    assert PROGRAM is not None
    command_reader, command_writer = os.pipe()
    answer_reader, answer_writer = os.pipe()

    # The browser reads commands from descriptor 3 and writes answers to 4; bash puts them there.
    arguments = [PROGRAM, *FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"]
    process = subprocess.Popen(
        [
            "bash",
            "-c",
            f'exec 3<&{command_reader} 4>&{answer_writer}; exec "$@"',
            "bash",
            *arguments,
        ],
        pass_fds=[command_reader, answer_writer],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(command_reader)
    os.close(answer_writer)
    try:
        yield Page(command_writer, answer_reader)
    finally:
        os.close(command_writer)  # the browser ends when its pipe does
        os.close(answer_reader)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
