"""Errors that are for the person at the keyboard, shared by every room.

The command line prints such an error as one line and exits non-zero; anything else is a bug of
ours and keeps its traceback. They live in the lowest room so that all may raise them.
"""

from __future__ import annotations


class VeriwardError(Exception):
    """What happened, where, and what to do about it, in one line."""


class ConfigError(VeriwardError):
    """A setting that is unknown, of the wrong type, impossible, or known to go wrong together with another."""
