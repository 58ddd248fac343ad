"""Hypothesis without its deadline: no test here may depend on how busy the machine is."""

from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
