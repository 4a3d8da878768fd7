"""Embeddings as a dataset of PyTorch, with real DataLoaders and real workers."""

import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

import plm_embed
from plm_embed.errors import PlmEmbedError
from plm_embed.reading.dataset import Dataset
from support.campaigns import DIM, EVERYTHING, Campaign, gathered_campaign, with_column
from support.manual import blocks


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return gathered_campaign(tmp_path_factory.mktemp("dataset"), fingerprint=EVERYTHING)


def lines(campaign: Campaign) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(campaign.index).to_pylist()
    return found


def ids_of(loader: Any) -> list[str]:
    return list(chain.from_iterable(batch["id"] for batch in loader))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(
    ("start", "workers"), [pytest.param("spawn", 2, marks=pytest.mark.workflow), ("fork", 4)]
)
def test_workers_bring_each_record_once(campaign: Campaign, start: str, workers: int) -> None:
    dataset = Dataset(campaign.results, block=8)
    loader = DataLoader(
        dataset,
        batch_size=7,
        num_workers=workers,
        multiprocessing_context=start,
        persistent_workers=True,
    )
    wanted = sorted(line["id"] for line in lines(campaign))
    with plm_embed.open(campaign.master) as embeddings:
        epochs = []
        for _ in range(2):
            batches = list(loader)
            assert all(batch["vector"].shape == (len(batch["id"]), DIM) for batch in batches)
            epochs.append(ids_of(batches))
            once = [id for id in epochs[-1] if epochs[-1].count(id) == 1]
            vectors = {
                id: vector
                for batch in batches
                for id, vector in zip(batch["id"], batch["vector"], strict=True)
            }
            for id, vector in zip(once, embeddings.get(once), strict=True):
                np.testing.assert_array_equal(vectors[id].numpy(), vector)
    assert sorted(epochs[0]) == sorted(epochs[1]) == wanted
    assert epochs[0] != epochs[1]


def test_the_seed_of_torch_decides_the_order(campaign: Campaign) -> None:
    orders = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        loader = DataLoader(Dataset(campaign.master, block=8), batch_size=5)
        orders.append(ids_of(loader))
    assert orders[0] == orders[1] != orders[2]


def test_unshuffled_it_is_the_index(campaign: Campaign) -> None:
    dataset = Dataset(campaign.results, shuffle=False, columns=["function", "length"])
    for found, line in zip(dataset, lines(campaign), strict=True):
        told = {name: found[name] for name in ("id", "function", "length")}
        assert told == {name: line[name] or "" for name in told}


def test_matrices_come_one_by_one(campaign: Campaign) -> None:
    dataset = Dataset(campaign.results, "per_residue_l3", ids=["p20", "p30"])
    found = {each["id"]: each["vector"] for each in DataLoader(dataset, batch_size=None)}
    with plm_embed.open(campaign.master) as embeddings:
        assert set(found) == {"p20", "p30"}
        for id, matrix in found.items():
            wanted = embeddings.per_residue(id, "per_residue_l3")
            np.testing.assert_array_equal(matrix.numpy(), wanted.astype(np.float32))


def test_values_of_a_column_are_compared_as_text(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(campaign.results.parent))
    where: dict[str, Any] = {"length": 30}
    found = list(Dataset(f"~/{campaign.results.name}", where=where, columns=["length"]))
    assert found and {record["length"] for record in found} == {30}


def test_what_is_absent_or_in_the_way_is_named(campaign: Campaign, tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"columns": ["functoin"]}, "no column 'functoin'; did you mean function"),
        ({"name": "mean_l9"}, "no representation mean_l9"),
        ({"where": {"function": "nothing"}}, "no record has function=nothing; a value must"),
        ({"block": 0}, "block: 0 is not above 0"),
        ({"block": 10.5}, "block: 10.5 is not a whole number"),
        ({"path": 5}, "path: 5 is not a path"),
        (
            {"path": with_column(campaign, tmp_path, "vector"), "columns": ["vector"]},
            "has a column 'vector' of its own",
        ),
    ]
    for options, message in cases:
        with pytest.raises(PlmEmbedError, match=message):
            Dataset(**({"path": campaign.results} | options))


def test_torch_is_loaded_when_it_is_asked_for() -> None:
    code = (
        "import sys, plm_embed; assert 'torch' not in sys.modules; sys.modules['torch'] = None;"
        "from plm_embed.reading.dataset import Dataset"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "torch is not installed: pip install 'plm-embed[embed]'" in done.stderr


def test_ranks_share_the_rows_as_the_manual_says(campaign: Campaign) -> None:
    (block,) = [one for one in blocks(("docs/reading.md",)) if "DistributedSampler" in one.text]
    text = block.text.replace("results/esm2_t33_650M_UR50D", str(campaign.results))
    text = text.replace("num_workers=4", "num_workers=0").replace("vectors  #", "seen.append  #")
    text = text.replace("seen.append", "seen.append((rows, vectors))")
    found = []
    for rank in range(2):
        seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        exec(text.replace("rank=0", f"rank={rank}"), {"seen": seen})
        rows = torch.cat([rows for rows, _ in seen])
        with plm_embed.open(campaign.master) as embeddings:
            wanted = embeddings.rows(rows.tolist()).astype(np.float32)
            count = len(embeddings)
        assert np.array_equal(torch.cat([vectors for _, vectors in seen]).numpy(), wanted)
        found.append(rows.tolist())
    assert len(found[0]) == len(found[1]) == -(-count // 2)
    assert set(found[0]) | set(found[1]) == set(range(count))
