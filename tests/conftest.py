"""What every test may ask for: the public data, or a clear skip."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def data_home() -> Path:
    return Path(os.environ.get("VERIWARD_TEST_DATA", ROOT.parent / "shared"))


@pytest.fixture
def shared_data() -> Callable[[str], Path]:
    """A file of the public data sets; skips, saying which, where it is absent.

    VERIWARD_DATA_REQUIRED=1 (set by .ci/run where the data are there) makes a skip a failure.
    """

    def find(relative: str) -> Path:
        path = data_home() / relative
        if not path.exists():
            message = f"public data {relative} is absent under VERIWARD_TEST_DATA={data_home()}"
            if os.environ.get("VERIWARD_DATA_REQUIRED") == "1":
                pytest.fail(message)
            pytest.skip(message)
        return path

    return find
