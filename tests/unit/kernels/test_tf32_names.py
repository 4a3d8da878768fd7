"""TF32 that a program has chosen by torch's newer name."""

import pytest
import torch

from plm_embed.kernels import devices

MATMUL = torch.backends.cuda.matmul


def test_tf32_set_by_the_newer_name_is_put_back() -> None:
    if not hasattr(MATMUL, "fp32_precision"):
        pytest.skip("torch before 2.9")
    before = MATMUL.fp32_precision
    MATMUL.fp32_precision = "tf32"
    try:
        with devices.as_set_up(torch.device("cuda", 0), None, "float32"):
            assert MATMUL.fp32_precision == "ieee"
        assert MATMUL.fp32_precision == "tf32"
    finally:
        MATMUL.fp32_precision = before
