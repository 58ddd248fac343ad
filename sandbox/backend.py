"""What every backend offers, and the one way to name a backend.

`Sandbox` (local), `DockerSandbox` and `RemoteSandbox` keep this contract, and one test suite runs
against all three. A caller that only runs programs should ask for a `Backend`.
"""

from __future__ import annotations

import re
from types import TracebackType
from typing import Literal, Protocol, Self

from sandbox.guarantees import Guarantees
from sandbox.models import Execution, Limits, Program

SessionKind = Literal["python", "shell"]
TOKEN = re.compile(r"[\x21-\x7e]+")  # what a server's token may be, for both sides of the wire


class Session(Protocol):
    """State kept between cells, in one confined place that ends with the session or its client.

    A `python` session keeps its variables, a `shell` session its directory, exported variables and
    functions; both keep their files. Async; one cell at a time.
    """

    async def run(self, cell: str) -> Execution:
        """Run one cell under the session's wall, CPU and output limits, each counted anew per cell.

        What the cell does is in the Execution, never an exception. A cell that crashes, runs out of
        time or memory leaves variables (or directory) as they were before it. Where the cell took the
        session's own processes with it, `status` is `killed`, `error` says that the state is lost, and
        the next cell starts anew. Raises RuntimeError after `close`.
        """
        ...

    async def write_file(self, path: str, content: bytes) -> None:
        """Raises ValueError for a path that is not plain and relative, OSError where it can't be written."""
        ...

    async def read_file(self, path: str) -> bytes:
        """Raises ValueError as `write_file`, FileNotFoundError where there is no regular file."""
        ...

    async def close(self) -> None:
        """End it and everything in it. May be called twice."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


class Backend(Protocol):
    """Runs programs, a bounded number at a time. Safe from any thread; also a context manager."""

    def run_sync(self, program: Program) -> Execution:
        """Run to the end. What the program does is in the Execution, never an exception."""
        ...

    async def run(self, program: Program) -> Execution:
        """`run_sync` without blocking the loop. Cancelling it ends the job."""
        ...

    def session(self, kind: SessionKind = "python", *, limits: Limits = ...) -> Session:
        """A session that starts with its first use. `wall_s`, `cpu_s` and `output_bytes` hold per
        cell, the other limits for the session as a whole."""
        ...

    def guarantees(self) -> Guarantees:
        """What is enforced here, what is weaker and why. Raises VeriwardError where nothing can run."""
        ...

    def close(self) -> None:
        """End everything in it. Later use raises RuntimeError."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...
