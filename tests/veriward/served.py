"""A real `veriward sandbox serve` in a process of its own, asked as SandboxFusion's clients ask."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TOKEN = "secret-token"


class Served:
    def __init__(self, *arguments: str, **environment: str) -> None:
        command = [sys.executable, "-m", "veriward", "sandbox", "serve", "--port", "0", *arguments]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ | environment
        )
        self.url = self.process.stdout.readline().split()[-1]

    def ask(self, path: str, body: Any = None) -> tuple[int, Any]:
        """A POST where there is a body."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)


@contextmanager
def serving(*arguments: str, **environment: str) -> Iterator[Served]:
    """It must end well when told to."""
    server = Served(*arguments, **environment)
    try:
        yield server
    finally:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0


def token_in(folder: Path) -> str:
    """A file with the token."""
    path = folder / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    return str(path)
