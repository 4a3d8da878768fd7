"""Tests that need a CUDA device; without one they are left out, and a line says so."""

import os

import pytest
import torch

from plm_embed.kernels.devices import set_up

if torch.cuda.is_available():
    os.environ.pop("TRITON_INTERPRET", None)  # where tests/conftest.py saw no GPU in /dev

NO_GPU = pytest.StashKey[bool]()


@pytest.fixture(autouse=True)
def usual_settings() -> None:
    set_up(torch.device("cuda", 0), torch.get_num_threads(), "auto")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = [item for item in items if item.get_closest_marker("gpu")]
    if chosen and not torch.cuda.is_available():
        config.stash[NO_GPU] = True
        config.hook.pytest_deselected(items=chosen)
        items[:] = [item for item in items if item not in chosen]


def pytest_report_collectionfinish(config: pytest.Config) -> str:
    return (
        "tests/gpu: no CUDA device here; `make gpu-check` runs them on a machine that has one"
        * (config.stash.get(NO_GPU, False))
    )
