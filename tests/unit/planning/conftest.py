"""The demo's inputs as a campaign to plan."""

from pathlib import Path
from typing import Any

import pytest
import yaml

DEMO = Path(__file__).parents[3] / "config" / "demo"


@pytest.fixture
def configfile(tmp_path: Path) -> Path:
    config: dict[str, Any] = {
        "results": str(tmp_path / "results"),
        "inputs": [
            str(DEMO / "proteins.fasta"),
            {
                "path": str(DEMO / "proteins.csv"),
                "id": "protein_id",
                "keep": ["assembly_id", "protein_name"],
            },
        ],
        "model": "esm2_t3_untrained",
        "weights": str(DEMO / "esm2_t3_untrained.pt"),
        "weights_folder": str(tmp_path / "weights"),
        "buckets": 1,
    }
    path = tmp_path / "my.yaml"
    path.write_text(yaml.safe_dump(config))
    return path
