"""Frames between a container's pid 1 and its parent, over the container's own stdin and stdout.

Both ends check lengths. The end of stdin is the end of pid 1, and with it of everything in the container.
Part of what runs inside: standard library only, for Python 3.8 and later.
"""

from __future__ import annotations

import json
import os
import select
import struct
import sys
from typing import Any

CHUNK = 1 << 16
MOST_BYTES = 1 << 20  # of one frame
WINDOW = 1 << 18  # of a job's input or output under way
HEADER = struct.Struct(">BI")


class Wire:
    """Frames to and from the parent: one byte of kind, four of length, the payload."""

    def __init__(self) -> None:
        os.set_blocking(0, False)
        os.set_blocking(1, False)
        self._in, self._out = bytearray(), bytearray()

    def send(self, kind: str, payload: bytes = b"") -> None:
        self._out += HEADER.pack(ord(kind), len(payload)) + payload

    def send_json(self, kind: str, value: Any) -> None:
        self.send(kind, json.dumps(value).encode())

    def unsent(self) -> int:
        return len(self._out)

    def write(self) -> None:
        try:
            del self._out[: os.write(1, self._out[:CHUNK])]
        except BlockingIOError:
            pass
        except OSError:
            os._exit(0)

    def flush(self) -> None:
        """Write all of it, however long the parent takes, but not longer than it lives."""
        poller = select.poll()
        poller.register(1, select.POLLOUT)
        poller.register(0, 0)
        while self._out:
            for descriptor, _ in poller.poll():
                if descriptor == 0:
                    os._exit(0)
                self.write()

    def read(self) -> None:
        try:
            data = os.read(0, CHUNK)
        except BlockingIOError:
            return
        if not data:
            os._exit(0)
        self._in += data

    def next_frame(self) -> tuple[str, bytes] | None:
        if len(self._in) < HEADER.size:
            return None
        kind, length = HEADER.unpack_from(self._in)
        if length > MOST_BYTES:
            sys.exit("a frame over the limit")
        if len(self._in) < HEADER.size + length:
            return None
        payload = bytes(self._in[HEADER.size : HEADER.size + length])
        del self._in[: HEADER.size + length]
        return chr(kind), payload

    def await_frame(self) -> tuple[str, bytes]:
        poller = select.poll()
        poller.register(0, select.POLLIN)
        while True:
            frame = self.next_frame()
            if frame is not None:
                return frame
            poller.poll()
            self.read()
