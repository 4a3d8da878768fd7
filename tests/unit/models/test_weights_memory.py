"""Loading takes little more memory than the weights: a process of its own measures its peak."""

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

MODEL = Model("esm2_t7_generated", ESM2, layers=7, dim=640, heads=20)

LOAD = """
import re, sys
from pathlib import Path
import torch
from plm_embed.models import weights
from plm_embed.models import engine
from plm_embed.kernels.linear import Linear

def memory(kind):
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(rf"{kind}:\\s+(\\d+) kB", status).group(1))

device = torch.device("cpu")
torch.set_num_threads(1)
Linear(torch.ones(8, 8), torch.ones(8))(torch.ones(2, 8))  # the libraries themselves
before = memory("VmRSS")
manifest, tensors, _ = weights.load(Path(sys.argv[1]))
model = engine.Engine(manifest.as_model, tensors, device, sys.argv[2])
print(memory("VmHWM") - before)
"""


@pytest.mark.workflow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_in_half_precision_takes_at_most_1_3_times_the_weights(tmp_path: Path) -> None:
    source = checkpoints.write_fair_esm(
        tmp_path / "esm2_generated.pt", MODEL, checkpoints.random_state(MODEL, 3)
    )
    prepare(MODEL, source, tmp_path / "prepared")
    source.unlink()
    command = [sys.executable, "-c", LOAD, str(tmp_path / "prepared"), "bfloat16"]
    taken = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    size = 2 * sum(math.prod(shape) for shape in tensor_shapes(MODEL).values())
    # and two matrices in fp32 on their way, which weigh little among the many layers of the
    # published models
    assert size < taken < 1.3 * size + 2 * 4 * (4 * MODEL.dim**2)
