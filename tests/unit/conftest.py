"""Fixtures of the unit tests."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def no_flushing() -> Iterator[None]:
    """Nothing waits for the disk, some milliseconds for each file: no unit test cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield
