"""One server for all tests of this folder that ask it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sandbox.conftest import can_confine
from tests.veriward.served import Served, serving, token_in


@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    if missing := can_confine():
        pytest.skip(missing)
    with serving("--slots", "2", "--token-file", token_in(tmp_path_factory.mktemp("serve"))) as server:
        yield server
