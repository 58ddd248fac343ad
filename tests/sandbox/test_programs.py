"""Programs that can't be are refused when they are made, before any backend sees them."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from sandbox import Limits, Program


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", "a//b", "./x", "", "a\0b", "main.py", "x" * 300])
def test_files_outside_the_work_directory_are_refused_when_the_program_is_made(path):
    with pytest.raises(ValidationError, match="files:"):
        Program(code="", files={path: b""})


def test_a_file_can_not_also_be_a_directory():
    with pytest.raises(ValidationError, match="below a path that is a file"):
        Program(code="", files={"a": b"", "a/b/c": b""})


def test_a_program_larger_than_its_own_limits_is_refused():
    with pytest.raises(ValidationError, match="exceed this program's own limits"):
        Program(code="", files={"big": bytes(2 << 20)}, limits=Limits(disk_mb=1))


def test_impossible_limits_are_refused():
    for bad in ({"wall_s": 0}, {"wall_s": float("nan")}, {"memory_mb": -1}, {"processes": 0}, {"colour": 1}):
        with pytest.raises(ValidationError):
            Limits(**bad)


def test_files_count_by_the_pages_they_take():
    """Else 300 tiny files would find no space on the disk they were admitted to."""
    with pytest.raises(ValidationError, match="exceed this program's own limits"):
        Program(code="", files={f"f{n}": b"x" for n in range(300)}, limits=Limits(disk_mb=1))
