"""The same contract and the same hostile programs for a user who is not root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UID = 23_456
_NAMES = ("contract*", "dialogue", "hostile*", "languages", "session")
_BATTERY = sorted(
    f"tests/sandbox/{path.name}" for name in _NAMES for path in Path(__file__).parent.glob(f"test_{name}.py")
)
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "VERIWARD_TEST_BACKENDS": "local"}


def python_for_anyone() -> str | None:
    """An interpreter that this uid may start, of the version whose packages we have."""
    wanted = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for path in (os.path.realpath(sys.executable), shutil.which(wanted, path="/usr/local/bin:/usr/bin")):
        if path and as_nobody([path, "-c", "pass"]).returncode == 0:
            return path
    return None


def as_nobody(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**_ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    try:
        return subprocess.run(
            command,
            user=UID,
            group=UID,
            extra_groups=[],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=170,
        )
    except PermissionError:
        return subprocess.CompletedProcess(command, 126, "", "")


def passes(command: list[str], battery: str) -> None:
    python = python_for_anyone()
    if python is None:
        pytest.skip("no interpreter that another user may start, with this version's packages")
    environment = {**_ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    tests = [python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", battery]
    done = subprocess.run(
        [python, "-m", *command, *tests], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


@pytest.mark.skipif(os.geteuid() != 0, reason="already not root: the other files of this folder test it")
@pytest.mark.parametrize("battery", _BATTERY)
def test_contract_and_battery_hold_without_root(battery):
    python = python_for_anyone()
    if python is None:
        pytest.skip("no interpreter that another user may start, with this version's packages")
    done = as_nobody([python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", battery])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout.splitlines()[-1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can refuse namespaces to itself and then become another")
@pytest.mark.parametrize("battery", _BATTERY)
def test_contract_and_battery_hold_where_namespaces_are_refused(battery):
    """As in an ordinary container or pod (torchforge#188); test_in_container.py does so in a real one, as root too."""
    passes(["tests.sandbox.refused", str(UID)], battery)
