"""What goes into a sandbox and what comes out: one set of models for every backend.

The same objects are used in-process and over HTTP, so they hold plain data only and refuse
impossible values when they are made; bytes are base64 in JSON. A `Program` carries no expected
output: what decides a verdict never enters the candidate's process.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sandbox.languages import LANGUAGES, Language

Status = Literal["finished", "timeout", "killed", "not_compiled", "unavailable"]
# What every Linux takes as arguments, whatever its stack limit, less room for what starts the program.
_ARGV_BYTES = 96 << 10
_FETCH_BYTES = 32 << 10  # a request to a slot is one message
_PAGE_BYTES = mmap.PAGESIZE  # a file takes whole pages of a job's disk
LimitName = Literal["wall", "cpu", "memory", "processes", "output", "file_size", "disk"]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")


class Limits(_Model):
    """What one job may use. Every limit applies to all processes of the job together
    where the platform can count them so; `Sandbox.guarantees()` says where it cannot."""

    wall_s: Annotated[float, Field(gt=0, le=3600)] = 10.0
    cpu_s: Annotated[float, Field(gt=0, le=3600)] = 10.0
    memory_mb: Annotated[int, Field(ge=16, le=65536)] = 512
    processes: Annotated[int, Field(ge=1, le=4096)] = 16
    open_files: Annotated[int, Field(ge=8, le=4096)] = 64
    file_size_mb: Annotated[int, Field(ge=0, le=4096)] = 16
    disk_mb: Annotated[int, Field(ge=1, le=4096)] = 32
    disk_inodes: Annotated[int, Field(ge=16, le=1_000_000)] = 1024
    output_bytes: Annotated[int, Field(ge=1, le=64 << 20)] = 1 << 20


COMPILE_LIMITS = Limits(wall_s=30, cpu_s=30, memory_mb=1024, file_size_mb=64, disk_mb=128)


class Program(_Model):
    """One job: the code, the files beside it and the limits it runs under.

    `language` is one of `LANGUAGES` (`python`, `c`, `cpp`, `bash`, `javascript`) or a `Language`
    of your own: the commands that compile and run it. The code is laid out under the language's
    file name (`main.py`), `files` beside it: relative paths inside the work directory, within the
    limits on disk, inodes and file size. A language that compiles does so first, in a job of its
    own under `compile_limits`.

    For Python, `mode = "fast"` runs in a fork of an already warm interpreter and is meant for
    jobs whose verdict is computed outside; `"fresh"` execs a new interpreter, as every other
    language does. `flavour = "sci"` offers numpy and sympy where the machine has them (already
    imported when `fast`); `"slim"` is the standard library alone.

    `fetch` names files of the work directory to bring back when the program has ended.
    """

    language: str | Language = "python"
    code: Annotated[str, Field(max_length=4 << 20)]
    files: dict[str, bytes] = {}
    argv: tuple[str, ...] = ()
    stdin: bytes = b""
    limits: Limits = Limits()
    compile_limits: Limits = COMPILE_LIMITS
    mode: Literal["fast", "fresh"] = "fast"
    flavour: Literal["slim", "sci"] = "slim"
    fetch: Annotated[tuple[str, ...], Field(max_length=256)] = ()

    @property
    def spec(self) -> Language:
        """The language's file name and commands."""
        return LANGUAGES[self.language] if isinstance(self.language, str) else self.language

    @model_validator(mode="after")
    def _can_be_laid_out(self) -> Program:
        if isinstance(self.language, str) and self.language not in LANGUAGES:
            raise ValueError(
                f"language: {self.language[:40]!r} is not one of {', '.join(LANGUAGES)}; declare a Language"
            )
        for path in self.files:
            check_path("files", path)
            if path.split("/")[0] == self.spec.file:
                raise ValueError(f"files: {path!r} is where the code itself goes; give the file another name")
            if len(self.files) > 1 and any(parent in self.files for parent in _parents_of(path)):
                raise ValueError(f"files: {path!r} lies below a path that is a file itself")
        for path in self.fetch:
            check_path("fetch", path)
        if sum(len(path.encode()) for path in self.fetch) > _FETCH_BYTES:
            raise ValueError(
                f"fetch: paths of more than {_FETCH_BYTES} bytes together; write one archive and fetch that"
            )
        if any("\0" in argument for argument in self.argv):
            raise ValueError("argv: an argument can't hold a NUL character")
        if sum(len(argument.encode()) + 9 for argument in self.argv) > _ARGV_BYTES:
            raise ValueError(f"argv: more than {_ARGV_BYTES} bytes; give long texts as stdin or files")
        try:
            code = self.code.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"code: character {error.start} is half of a surrogate pair, not text") from None
        sizes = [len(code), *map(len, self.files.values())]
        on_disk = sum(-(-size // _PAGE_BYTES) * _PAGE_BYTES for size in sizes)
        limits = self.limits
        inodes = inodes_of(self.files) + 1
        if max(sizes) > limits.file_size_mb << 20 or on_disk > limits.disk_mb << 20 or inodes > limits.disk_inodes:
            raise ValueError(f"code and files ({on_disk} bytes, {inodes} inodes) exceed this program's own limits")
        return self


def inodes_of(files: Iterable[str]) -> int:
    """The most inodes that files at these relative paths take, their folders counted for each."""
    return sum(path.count("/") + 1 for path in files)


def _parents_of(path: str) -> Iterator[str]:
    return (path[:end] for end, character in enumerate(path) if character == "/")


def check_path(field: str, path: str) -> None:
    try:
        parts = path.split("/")
        impossible = "\0" in path or len(path.encode()) > 1024 or any(len(part.encode()) > 255 for part in parts)
    except UnicodeEncodeError:
        impossible = True
    if not path or impossible:
        raise ValueError(f"{field}: {path[:60]!r} is not a possible file name")
    if path.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{field}: {path[:60]!r} must be a plain relative path inside the work directory")


class Execution(_Model):
    """What happened to a job.

    `finished`: it ended by itself, with `exit_code` or `signal` set. `timeout`: its wall or
    CPU limit ended it. `killed`: another limit ended it; `limit` names which.
    `not_compiled`: it did not come to run, and `compile` tells why. `unavailable`: the sandbox,
    not the job, failed; `error` says how. An unavailable execution says nothing about the program
    and is never a score.

    `compile` is the compiler's own execution, for languages that have one. `files` holds what the
    program asked to fetch; a path that was no regular file at the end is absent.
    """

    status: Status
    exit_code: int | None = None
    signal: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_mb: float = 0.0
    limit: LimitName | None = None
    error: str = ""
    files: dict[str, bytes] = {}
    compile: Execution | None = None
