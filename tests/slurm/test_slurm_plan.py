"""`plm-embed plan --site slurm` on a real SLURM: its partitions with GPUs, their limits, and a call
for them.
"""

import json
import subprocess
import sys
from pathlib import Path

from cluster import Cluster

ROOT = Path(__file__).parents[2]
CONFIG = f"""\
inputs: [{ROOT}/config/demo/proteins.fasta]
model: esm2_t3_untrained
weights: {ROOT}/config/demo/esm2_t3_untrained.pt
"""


def test_the_plan_fits_the_partitions_of_this_cluster(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    command = [
        sys.executable,
        "-m",
        "plm_embed",
        "plan",
        "--configfile",
        "config.yaml",
        "--site",
        "slurm",
        "--json",
    ]
    done = subprocess.run(
        command, cwd=tmp_path, env=cluster.env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    partitions = {one["queue"] for one in told["proposals"]}
    assert "gpu" in partitions and "cpu" not in partitions
    assert all(0 < one["walltime_minutes"] <= 2 * 24 * 60 for one in told["proposals"])
    assert told["device"] == "A100", "the type that the first node with GPUs has"
    assert told["command"][:4] == ["SBATCH_ACCOUNT=NAME", "snakemake", "--profile", "slurm"]
    assert f"embed:slurm_partition={told['proposals'][0]['queue']}" in told["command"]
