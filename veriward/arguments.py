"""What flags may be: each raises ArgumentTypeError, so that wrong usage is said by the parser and exits with 2."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def whole_number(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} to {most}")
        return int(text)

    return number


def limit(name: str, kind: type[float]) -> Callable[[str], float]:
    """A flag whose range is the one that `Limits` has."""

    def checked(text: str) -> float:
        from pydantic import ValidationError

        from sandbox.models import Limits

        try:
            return float(getattr(Limits.model_validate({name: kind(text)}), name))
        except ValidationError as error:
            raise argparse.ArgumentTypeError(f"{text}: {error.errors()[0]['msg'].lower()}") from None

    checked.__name__ = "limit"  # what argparse calls it, where the text is no number
    return checked


def backend_name(text: str) -> str:
    if text not in ("local", "docker") and not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r}: choose local, docker, or the URL of a `veriward sandbox serve`")
    return text
