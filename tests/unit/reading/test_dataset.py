"""Embeddings as a dataset of PyTorch, with real DataLoaders and real workers."""

from itertools import chain
from multiprocessing import get_context
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
from support.campaigns import DIM, Campaign, with_column
from support.manual import blocks


def lines(campaign: Campaign) -> list[dict[str, Any]]:
    table: list[dict[str, Any]] = pq.read_table(campaign.index).to_pylist()
    return table


def ids_of(loader: Any) -> list[str]:
    return list(chain.from_iterable(batch["id"] for batch in loader))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_workers_bring_each_record_once(campaign: Campaign) -> None:
    dataset = Dataset(campaign.results, block=8)
    loader = DataLoader(dataset, batch_size=7, num_workers=4, persistent_workers=True)
    expected = sorted(line["id"] for line in lines(campaign))
    with plm_embed.open(campaign.master) as embeddings:
        epochs = []
        for _ in range(2):
            batches = list(loader)
            assert all(batch["vector"].shape == (len(batch["id"]), DIM) for batch in batches)
            epochs.append(ids_of(batches))
            once = [id for id in epochs[-1] if epochs[-1].count(id) == 1]
            pairs = (zip(batch["id"], batch["vector"], strict=True) for batch in batches)
            vectors = dict(chain.from_iterable(pairs))
            stored = embeddings.get(once)
            np.testing.assert_array_equal(np.stack([vectors[id] for id in once]), stored)
    assert sorted(epochs[0]) == sorted(epochs[1]) == expected
    assert epochs[0] != epochs[1]


def test_the_seed_of_torch_decides_the_order(campaign: Campaign) -> None:
    orders = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        loader = DataLoader(Dataset(campaign.master, block=8), batch_size=5)
        orders.append(ids_of(loader))
    assert orders[0] == orders[1] != orders[2]


def test_unshuffled_it_is_the_index_also_in_another_process(campaign: Campaign) -> None:
    dataset = Dataset(campaign.results, shuffle=False, columns=["function", "length"])
    expected = [
        {name: line[name] or "" for name in ("id", "function", "length")}
        for line in lines(campaign)
    ]
    context = get_context("spawn")
    loader = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context=context)
    for records in (dataset, loader):
        assert [
            {name: value for name, value in record.items() if name != "vector"}
            for record in records
        ] == expected


def test_matrices_come_one_by_one(campaign: Campaign) -> None:
    dataset = Dataset(campaign.results, "per_residue_l3", ids=["p20", "p30"])
    records = {record["id"]: record for record in DataLoader(dataset, batch_size=None)}
    assert set(records) == {"p20", "p30"}
    with plm_embed.open(campaign.master) as embeddings:
        for id, record in records.items():
            expected = embeddings.per_residue(id, "per_residue_l3").astype(np.float32)
            np.testing.assert_array_equal(record["vector"].numpy(), expected)


def test_values_of_a_column_are_compared_as_text(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(campaign.results.parent))
    where: dict[str, Any] = {"length": 30}
    records = list(Dataset(f"~/{campaign.results.name}", where=where, columns=["length"]))
    assert records and {record["length"] for record in records} == {30}


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


def test_ranks_share_the_rows_as_the_manual_says(campaign: Campaign) -> None:
    (block,) = [code for code in blocks(("docs/reading.md",)) if "DistributedSampler" in code.text]
    text = block.text.replace("results/esm2_t33_650M_UR50D", str(campaign.results))
    text = text.replace("num_workers=4", "num_workers=0").replace("vectors  #", "seen.append  #")
    text = text.replace("seen.append", "seen.append((rows, vectors))")
    shares = []
    for rank in range(2):
        seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        exec(text.replace("rank=0", f"rank={rank}"), {"seen": seen})
        rows = torch.cat([rows for rows, _ in seen])
        with plm_embed.open(campaign.master) as embeddings:
            expected = embeddings.rows(rows.tolist()).astype(np.float32)
            count = len(embeddings)
        assert np.array_equal(torch.cat([vectors for _, vectors in seen]).numpy(), expected)
        shares.append(rows.tolist())
    assert len(shares[0]) == len(shares[1]) == -(-count // 2)
    assert set(shares[0]) | set(shares[1]) == set(range(count))
