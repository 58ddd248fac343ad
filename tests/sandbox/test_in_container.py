"""The local backend inside a real, ordinary container: the default seccomp profile and nothing added.

Where most users run, in Docker or a Kubernetes pod, Docker can't be nested and namespaces are refused
(torchforge#188).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_HERE = Path(__file__).resolve().parent
_BATTERY = ("contract*", "dialogue", "hostile*", "languages", "session")


def packages() -> str:
    return next(path for path in sys.path if path.endswith("site-packages"))


@pytest.fixture(scope="module")
def image() -> str:
    name = os.environ.get("VERIWARD_TEST_IMAGE")
    if name is None or shutil.which("docker") is None:
        if os.environ.get("VERIWARD_DOCKER_REQUIRED"):
            pytest.fail("VERIWARD_TEST_IMAGE and the docker command are needed here")
        pytest.skip("VERIWARD_TEST_IMAGE names no image, or there is no docker command")
    return name


def inside(image: str, user: str, *command: str) -> subprocess.CompletedProcess[str]:
    mounts = ["-v", f"{ROOT}:/repo:ro", "-v", f"{packages()}:/packages:ro", "-w", "/repo"]
    environment = ("PYTHONPATH=/repo:/packages", "PYTHONDONTWRITEBYTECODE=1", "VERIWARD_TEST_BACKENDS=local")
    settings = [word for each in environment for word in ("-e", each)]
    bounds = ["--network", "none", "--user", user, "--memory", "3g", "--pids-limit", "600", "--init"]
    run = ["docker", "run", "--rm", *bounds, *mounts, *settings, image, "python3", *command]
    return subprocess.run(run, capture_output=True, text=True, timeout=280)


@pytest.mark.parametrize("user", ["23456:23456", "0:0"], ids=["not root", "root"])
def test_guarantees_say_what_is_weaker_in_an_ordinary_container(image, user):
    code = "from sandbox import Sandbox\nprint(*[g.name for g in Sandbox(slots=1).guarantees().weaker()])"
    done = inside(image, user, "-c", code)
    assert done.returncode == 0, done.stderr
    expected = ["disk", "memory", "neighbours"]
    if not user.startswith("0"):
        expected.insert(1, "processes")
    assert done.stdout.split() == expected


@pytest.mark.parametrize("user", ["23456:23456", "0:0"], ids=["not root", "root"])
def test_contract_and_battery_hold_in_an_ordinary_container(image, user):
    tests = sorted(str(path.relative_to(ROOT)) for name in _BATTERY for path in _HERE.glob(f"test_{name}.py"))
    done = inside(image, user, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout.splitlines()[-1]
