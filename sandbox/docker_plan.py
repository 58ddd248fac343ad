"""What every container of a docker sandbox is made from, decided once: the image, and what its engine can hold."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
from pathlib import Path
from typing import Any, NamedTuple

from sandbox.docker_engine import ContainerLost, brief, connect, losing, remove_leftovers
from sandbox.errors import ConfigError, VeriwardError
from sandbox.guarantees import Guarantee, Guarantees

SHIPPED_DOCKERFILE = Path(__file__).with_name("container") / "Dockerfile"
_BUILD_TIMEOUT_S = 1800


class Plan(NamedTuple):
    base_url: str
    image: str
    runtime: str | None
    cpus: float | None
    is_remapped: bool  # the engine maps uids, and so offers few
    is_podman: bool  # takes neither owners nor inode limits for a tmpfs
    limits_memory: bool
    shares_cpu: bool

    def guarantees(self) -> Guarantees:
        where = f"image {self.image}, runtime {self.runtime or 'the default one'}"
        enforced = {
            "harness": f"a container of its own, an undumpable pid 1, a fresh interpreter ({where})",
            "files": "read-only root; one tmpfs to write to, emptied after every job",
            "network": "network mode none; only unix sockets (seccomp)",
            "survivors": "every process of the container killed and reaped",
            "wall": "killed by the container's pid 1, or with the container",
            "output": "killed by its reader",
            "disk": "tmpfs with capped bytes and inodes",
            "file_size": "RLIMIT_FSIZE",
            "open_files": "RLIMIT_NOFILE, per process",
            "processes": "pids cgroup and RLIMIT_NPROC of a uid of its own",
            "cpu": "RLIMIT_CPU per process, the sum looked at every 0.1 s",
            "memory": "memory cgroup over all processes and the tmpfs",
            "neighbours": "an equal share of the CPUs for every container's cgroup",
        }
        weaker = {"landlock": "not used; the container's read-only root stands alone"}
        if self.is_podman:
            weaker["disk"] = "Podman takes no inode limit for a tmpfs: only its bytes are capped"
        if not self.limits_memory:
            weaker["memory"] = "the engine can't limit memory: RLIMIT_AS per process"
        if not self.shares_cpu:
            weaker["neighbours"] = "the engine has no CPU shares: who has many processes gets many of them"
        items = [
            Guarantee(name=name, level="enforced", how=how) for name, how in enforced.items() if name not in weaker
        ]
        items += [Guarantee(name=name, level="weaker", how=how) for name, how in weaker.items()]
        return Guarantees(backend="docker", items=tuple(items))


def make_plan(
    base_url: str,
    image: str,
    runtime: str | None,
    cpus: float | None,
    dockerfile: str | os.PathLike[str] | None,
) -> Plan:
    """Ask the engine what it can do, see to the image, and remove what a dead process left there.

    Raises VeriwardError where there is no engine, or no image and no way to build it.
    """
    api = connect(base_url)
    try:
        with losing(f"the engine at {base_url} failed"):
            info, version = api.info(), api.version()
            _require_image(api, image, dockerfile)
        remove_leftovers(api)
    except ContainerLost as lost:
        raise VeriwardError(str(lost)) from None
    finally:
        api.close()
    options = " ".join(info.get("SecurityOptions") or ())
    return Plan(
        base_url,
        image,
        runtime,
        cpus,
        is_remapped="name=userns" in options or "name=rootless" in options,
        is_podman=any("Podman" in part.get("Name", "") for part in version.get("Components") or ()),
        limits_memory=bool(info.get("MemoryLimit")),
        shares_cpu=bool(info.get("CPUShares")),
    )


def default_image(dockerfile: str | os.PathLike[str] | None) -> str:
    """The name of what a Dockerfile builds, ours if None. Raises ConfigError for one that can't be read."""
    if dockerfile is None or Path(dockerfile) == SHIPPED_DOCKERFILE:
        return f"veriward-sandbox:{importlib.metadata.version('veriward')}"
    try:
        return f"veriward-sandbox:{hashlib.sha256(Path(dockerfile).read_bytes()).hexdigest()[:16]}"
    except OSError as error:
        raise ConfigError(f"DockerSandbox(dockerfile={str(dockerfile)!r}): {error.strerror}") from None


def _require_image(api: Any, image: str, dockerfile: str | os.PathLike[str] | None) -> None:
    import docker

    try:
        api.inspect_image(image)
        return
    except docker.errors.ImageNotFound:
        if dockerfile is None:
            build = f"docker build -t {image} {SHIPPED_DOCKERFILE.parent}"
            if image != default_image(None):
                build = f"docker pull {image}"
            raise VeriwardError(f"the engine has no image {image}; get it with: {build}") from None
    path = Path(dockerfile)
    api.timeout = _BUILD_TIMEOUT_S
    lines = api.build(path=str(path.parent), dockerfile=path.name, tag=image, rm=True, forcerm=True, decode=True)
    for line in lines:
        if "error" in line:
            raise VeriwardError(f"{path} did not build: {brief(Exception(line['error']))}")
