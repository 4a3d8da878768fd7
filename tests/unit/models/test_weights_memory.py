"""Weights are prepared and loaded in little memory: processes of their own measure their peaks."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

from plm_embed.inference.weights import prepare
from plm_embed.models.checkpoints import tensor_shapes
from plm_embed.models.families.esm import ESM2
from plm_embed.models.registry import Model
from support import checkpoints

MODEL = Model("esm2_t7_generated", ESM2, layers=7, dim=512, heads=16)
MEASURE = """
import re, sys
from pathlib import Path
import torch
from plm_embed.kernels.linear import Linear
from plm_embed.models import checkpoints, engine, weights

def memory(kind):
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(rf"{kind}:\\s+(\\d+) kB", status).group(1))

source, output = map(Path, sys.argv[1:])
torch.set_num_threads(1)
Linear(torch.ones(8, 8), torch.ones(8))(torch.ones(2, 8)).isfinite().all()  # the libraries
before = memory("VmRSS")
"""
PREPARE = """
model = checkpoints.model_of("mine", source)
checkpoint = checkpoints.read(checkpoints.files_of(source, model), model)
weights.write(output, checkpoint.tensors)
print(memory("VmHWM") - before)
"""
LOAD = """
manifest, tensors, _ = weights.load(source)
model = engine.Engine(manifest.as_model, tensors, torch.device("cpu"), "bfloat16")
print(memory("VmHWM") - before)
"""


def peak(code: str, source: Path, output: Path) -> int:
    command = [sys.executable, "-c", MEASURE + code, str(source), str(output)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.workflow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_weights_take_little_memory(tmp_path: Path) -> None:
    """Shards are prepared in that of a few tensors; what is loaded in half precision takes at most
    1.3 times the weights.
    """
    state = checkpoints.random_state(MODEL, 3)
    source = checkpoints.write_hugging_face(tmp_path / "hub", MODEL, state, shards=7)
    numbers = sum(math.prod(shape) for shape in tensor_shapes(MODEL).values())
    matrix = 4 * 4 * MODEL.dim**2
    assert peak(PREPARE, source, tmp_path / "tensors") < 4 * matrix < 0.2 * 4 * numbers
    prepare(MODEL, source, tmp_path / "prepared")
    assert (tmp_path / "prepared" / "model.safetensors").stat().st_size > 4 * numbers
    taken = peak(LOAD, tmp_path / "prepared", tmp_path)
    # and two matrices in fp32 on their way, which weigh little among the many layers of the
    # published models
    assert 2 * numbers < taken < 1.3 * 2 * numbers + 2 * matrix
