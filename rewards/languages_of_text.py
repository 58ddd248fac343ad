"""Which language a text is in, the same in every run and from every thread."""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any

_lock = threading.Lock()
_READ_CHARACTERS = 10_000


def language_of(text: str) -> str:
    """An ISO 639-1 code as langdetect names it (`zh-cn`, `zh-tw` apart), "" where it can't be told.

    Read in lower case, since its profiles are of running text. langdetect draws at random; seeded
    here, and one at a time, since loading its profiles is not safe from threads.
    """
    return _detected(text[:_READ_CHARACTERS].lower())


@lru_cache(256)
def _detected(text: str) -> str:
    from langdetect.lang_detect_exception import LangDetectException

    with _lock:
        detector = _factory().create()
        detector.append(text)
        try:
            return str(detector.detect())
        except LangDetectException:
            return ""


@lru_cache(1)
def _factory() -> Any:
    from langdetect import DetectorFactory, detector_factory

    detector_factory.init_factory()
    DetectorFactory.seed = 0
    return detector_factory._factory
