"""The container engine: reaching it through the `docker` SDK, and clearing what a dead owner left there.

Every container carries a label and its owner, a process of this boot and pid namespace.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sandbox.errors import VeriwardError

LABEL, OWNER = "veriward.sandbox", "veriward.owner"
_API_TIMEOUT_S = 60
_GONE_S = 20


class ContainerLost(Exception):
    """The container, or its engine, went away while it was needed."""


def connect(base_url: str) -> Any:
    """A client of the engine. Raises VeriwardError where there is no SDK or no engine."""
    try:
        import docker
    except ImportError:
        raise VeriwardError("the docker backend needs the docker SDK: pip install 'veriward[docker]'") from None
    try:
        return docker.APIClient(base_url=base_url, version="auto", timeout=_API_TIMEOUT_S)
    except (docker.errors.DockerException, OSError, ValueError) as error:
        raise VeriwardError(
            f"no container engine answers at {base_url} ({brief(error)}); start one, or name its socket in DOCKER_HOST"
        ) from None


@contextlib.contextmanager
def losing(what: str) -> Iterator[None]:
    """Whatever the SDK or the connection under it raises becomes ContainerLost."""
    import docker
    import requests

    try:
        yield
    except (docker.errors.DockerException, requests.RequestException, OSError) as error:
        raise ContainerLost(f"{what}: {brief(error)}") from error


def brief(error: BaseException) -> str:
    return " ".join(str(error).split())[:800] or type(error).__name__


def connect_again(base_url: str) -> Any:
    """`connect` for an engine that has answered before: what is wrong now is a loss, not a setting."""
    try:
        return connect(base_url)
    except VeriwardError as error:
        raise ContainerLost(str(error)) from None


def remove(api: Any, container: str) -> None:
    """Kill and remove, waiting until the engine knows it no more."""
    import docker

    deadline = time.monotonic() + _GONE_S
    with contextlib.suppress(ContainerLost), losing("it could not be removed"):
        while time.monotonic() < deadline:
            try:
                api.remove_container(container, force=True, v=True)
            except docker.errors.NotFound:
                return
            except docker.errors.APIError:  # a removal is in progress already
                time.sleep(0.02)


def remove_leftovers(api: Any) -> None:
    """Remove containers whose owner, a process of this boot and pid namespace, is dead."""
    with losing("the engine did not list its containers"):
        found = api.containers(all=True, filters={"label": f"{LABEL}=1"})
    for row in found:
        if _is_abandoned(row["Labels"].get(OWNER, "")):
            remove(api, row["Id"])


def owner() -> str:
    return f"{os.getpid()}:{_start_time(os.getpid())}:{_here()}"


def _is_abandoned(label: str) -> bool:
    pid, _, rest = label.partition(":")
    started, _, where = rest.partition(":")
    return where == _here() and pid.isdigit() and _start_time(int(pid)) != started


def _here() -> str:
    """This boot and pid namespace: elsewhere the same pid is another process."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{os.readlink('/proc/self/ns/pid')}"


def _start_time(pid: int) -> str:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == b"Z" else fields[19].decode()
