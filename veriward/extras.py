"""What to install when a package of an optional part is missing: one line, for the command and for Python alike."""

from __future__ import annotations

_EXTRAS = {"torch": "train", "transformers": "train", "safetensors": "train", "tokenizers": "train", "jinja2": "train"}


def advice_for(error: ModuleNotFoundError) -> str | None:
    """How to get the missing package; None when no optional part of ours would bring it."""
    extra = _EXTRAS.get((error.name or "").partition(".")[0])
    if extra is None:
        return None
    return (
        f"this needs {error.name}, which is not installed: pip install -e '.[{extra}]' in a clone of veriward, "
        f"or, from a wheel, pip install 'veriward[{extra}] @ file:///path/to/the/wheel.whl'"
    )
