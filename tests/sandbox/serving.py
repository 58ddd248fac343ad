"""A real server in a process of its own, on a port of its own, and what tests ask of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TOKEN = "a-token-of-these-tests"

_MAIN = """
import json, logging, resource, sys
logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(name)s %(message)s")
import sandbox.server, sandbox.server_listen
from sandbox import Program, Sandbox
from sandbox.server import make_app
from sandbox.server_listen import serve

async def twice(body, run):
    asked = json.loads(body)
    return 200, [(await run(Program(code=asked["code"]))).stdout.decode() for _ in range(2)]

options = json.loads(sys.argv[1])
port = options.pop("port")
sandbox.server._BODY_S = options.pop("body_s", sandbox.server._BODY_S)
sandbox.server_listen._HEAD_S = options.pop("head_s", sandbox.server_listen._HEAD_S)
if most_files := options.pop("most_files", 0):
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
with Sandbox(slots=options["slots"]) as box:
    serve(make_app(box, extra_routes=[("POST", "/twice", twice)], **options), "127.0.0.1", port)
"""


class Server:
    def __init__(self, port: int = 0, *, slots: int = 2, token: str | None = TOKEN, **options: Any) -> None:
        given = json.dumps({"port": port, "slots": slots, "token": token, **options})
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - a pipe that nobody reads would stop the server when full
        self.process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, given], stdout=subprocess.PIPE, stderr=self.log, text=True
        )
        line = self.process.stdout.readline()
        assert line.startswith("sandbox server on http://"), line + self.stop(signal.SIGKILL)[1]
        self.url = line.split()[-1]
        self.port = int(self.url.rsplit(":", 1)[1])

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Its exit status and its log."""
        if self.process.poll() is None:
            os.kill(self.process.pid, number)
        self.process.wait(timeout=30)
        self.process.stdout.close()
        self.log.seek(0)
        return self.process.returncode, self.log.read()

    def ask(
        self, path: str, body: Any = None, *, method: str | None = None, token: str | None = TOKEN, **headers: str
    ) -> tuple[int, dict[str, str], Any]:
        """Status, headers in lower case, and the JSON of the answer (its text where it is none)."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {
            "Content-Type": "application/json",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(self.url + path, data, sent, method=method)
        try:
            response = urllib.request.urlopen(request, timeout=60)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            text = response.read().decode()
            found = {name.lower(): value for name, value in response.headers.items()}
            return response.status, found, json.loads(text) if "json" in found["content-type"] else text

    def metric(self, name: str) -> float:
        for line in self.ask("/metrics")[2].splitlines():
            if line.startswith(name + " "):
                return float(line.split()[-1])
        return 0.0


@contextmanager
def serving(**options: Any) -> Iterator[Server]:
    server = Server(**options)
    try:
        yield server
    finally:
        server.stop(signal.SIGKILL)
        server.log.close()
