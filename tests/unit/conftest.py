"""Removes time limits of Hypothesis: no unit test fails for being slow."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
