"""A page in headless Chromium, over its debugging protocol: what the page logs, loads and looks like."""

import asyncio
import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

from tornado.websocket import websocket_connect

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)


class Browser:
    """Use as a context manager. Each call of `visit` starts from a fresh document."""

    def __enter__(self):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.process = subprocess.Popen(
            [
                CHROMIUM,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-background-networking",
                "--hide-scrollbars",
                "--remote-debugging-port=0",
                f"--user-data-dir={self.profile.name}",
                "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        port_file = Path(self.profile.name) / "DevToolsActivePort"
        deadline = time.monotonic() + 30
        while not (port_file.is_file() and port_file.read_text().strip()):
            if time.monotonic() > deadline:
                raise RuntimeError("Chromium did not start")
            time.sleep(0.05)
        port = int(port_file.read_text().split()[0])
        targets = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=10))
        address = next(target["webSocketDebuggerUrl"] for target in targets if target["type"] == "page")
        self.loop = asyncio.new_event_loop()
        self.number, self.events = 0, []
        self.socket = self._run(_connect(address))
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *failure):
        self.process.terminate()
        self.process.wait(10)
        self.loop.close()
        self.profile.cleanup()

    def _run(self, coroutine):
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, 30))

    def call(self, method, **parameters):
        self.number += 1
        number = self.number

        async def exchange():
            await self.socket.write_message(json.dumps({"id": number, "method": method, "params": parameters}))
            while True:
                message = json.loads(await self.socket.read_message())
                if message.get("id") == number:
                    return message
                self.events.append(message)

        answer = self._run(exchange())
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def visit(self, address, width=1280, dark=False):
        """Open `address` and wait until it is loaded. Gives the events of the visit."""
        self.call("Page.navigate", url="about:blank")
        self.until("location.href", "about:blank")
        origin = "/".join(address.split("/")[:3])
        self.call("Storage.clearDataForOrigin", origin=origin, storageTypes="local_storage")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=address)
        deadline = time.monotonic() + 20
        while (
            self.run("document.readyState") != "complete"
            or self.run("location.href.split('#')[0]") != address.split("#")[0]
        ):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{address} did not load")
            time.sleep(0.02)
        return list(self.events)

    def run(self, script):
        """Value of a JavaScript expression on the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["exception"].get("description"))
        return result["result"].get("value")

    def until(self, script, value, seconds=3):
        """Whether the expression becomes `value` in that time: some scripts act a frame after loading."""
        deadline = time.monotonic() + seconds
        while self.run(script) != value:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def picture(self, path):
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        Path(path).write_bytes(base64.b64decode(data))


async def _connect(address):
    return await websocket_connect(address, max_message_size=1 << 28)


def complaints(events):
    """What the page logged as an error, threw, or failed to load."""
    found = []
    for event in events:
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            found.append(parameters["exceptionDetails"].get("text"))
        elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            found.append(parameters["entry"]["text"])
        elif event.get("method") == "Runtime.consoleAPICalled" and parameters["type"] == "error":
            found.append(str(parameters["args"])[:200])
    return found


def requests(events):
    return [event["params"]["request"]["url"] for event in events if event.get("method") == "Network.requestWillBeSent"]
