"""SandboxFusion's `/run_code`, same fields in and out, so that a trainer that speaks it can switch by URL.

Its clients send no token: they put it into the URL as the path's first segment.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandbox.models import Execution, Limits, Program

Run = Callable[[Program], Awaitable[Execution]]

LANGUAGES = {"python": "python", "cpp": "cpp", "c": "c", "nodejs": "javascript", "bash": "bash"}
_MEMORY_MB = 1024  # where a request leaves it open, as -1
_ROOM = {"disk_mb": 256, "file_size_mb": 128, "processes": 64}


class RunCodeRequest(BaseModel):
    """Times are in seconds; `files` and what is fetched are base64."""

    model_config = ConfigDict(extra="ignore")

    code: str
    language: str
    stdin: str | None = None
    compile_timeout: Annotated[float, Field(gt=0, le=3600)] = 10
    run_timeout: Annotated[float, Field(gt=0, le=3600)] = 10
    memory_limit_MB: int = -1
    files: dict[str, str | None] = {}
    fetch_files: list[str] = []


class CommandRunResult(BaseModel):
    status: Literal["Finished", "Error", "TimeLimitExceeded"]
    execution_time: float | None = None
    return_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None


class RunCodeResponse(BaseModel):
    status: Literal["Success", "Failed", "SandboxError"]
    message: str = ""
    compile_result: CommandRunResult | None = None
    run_result: CommandRunResult | None = None
    executor_pod_name: str | None = None
    files: dict[str, str] = {}


async def run_code(body: bytes, run: Run) -> tuple[int, Any]:
    """Run one program, with SandboxFusion's fields in and out."""
    try:
        program = await asyncio.to_thread(_program_in, body)  # off the loop: it may be large
    except (ValidationError, ValueError) as error:
        return 400, {"error": one_line(error)}
    return 200, to_response(await run(program)).model_dump()


def _program_in(body: bytes) -> Program:
    return to_program(RunCodeRequest.model_validate_json(body))


async def ping(body: bytes, run: Run) -> tuple[int, Any]:
    """Whether anybody is there."""
    return 200, "pong"


def to_program(request: RunCodeRequest) -> Program:
    """Raises ValueError for a language, file or limit that can't be."""
    if request.language not in LANGUAGES:
        raise ValueError(f"language: {request.language[:40]!r} is none of {', '.join(LANGUAGES)}")
    memory_mb = request.memory_limit_MB if request.memory_limit_MB > 0 else _MEMORY_MB
    limits = Limits(wall_s=request.run_timeout, cpu_s=request.run_timeout, memory_mb=max(16, memory_mb), **_ROOM)
    compiling = Limits(wall_s=request.compile_timeout, cpu_s=request.compile_timeout, memory_mb=2048, **_ROOM)
    try:
        files = {
            path.removeprefix("./"): base64.b64decode(text or "", validate=True) for path, text in request.files.items()
        }
    except binascii.Error:
        raise ValueError("files: contents must be base64") from None
    return Program(
        language=LANGUAGES[request.language],
        code=request.code,
        files=files,
        stdin=(request.stdin or "").encode(),
        limits=limits,
        compile_limits=compiling,
        mode="fresh",
        fetch=tuple(path.removeprefix("./") for path in request.fetch_files),
    )


def to_response(execution: Execution) -> RunCodeResponse:
    compiled = _result(execution.compile) if execution.compile is not None else None
    if execution.status == "unavailable":
        return RunCodeResponse(status="SandboxError", message=execution.error, compile_result=compiled)
    ran = _result(execution) if execution.status != "not_compiled" else None
    is_success = ran is not None and ran.status == "Finished" and ran.return_code == 0
    return RunCodeResponse(
        status="Success" if is_success else "Failed",
        message=f"ended by its {execution.limit} limit" if execution.status == "killed" and execution.limit else "",
        compile_result=compiled,
        run_result=ran,
        files={path: base64.b64encode(content).decode() for path, content in execution.files.items()},
    )


def _result(execution: Execution) -> CommandRunResult:
    code = execution.exit_code if execution.exit_code is not None else -(execution.signal or 9)
    is_timeout = execution.status == "timeout"
    return CommandRunResult(
        status="TimeLimitExceeded" if is_timeout else "Finished",
        execution_time=execution.wall_s,
        return_code=None if is_timeout else code,
        stdout=execution.stdout.decode("utf-8", "replace"),
        stderr=execution.stderr.decode("utf-8", "replace"),
    )


def one_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part)[:60] for part in first["loc"])
        return f"{where}: {first['msg']}" if where else first["msg"]
    return " ".join(str(error).split())[:500]
