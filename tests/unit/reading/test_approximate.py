"""An index that proposes neighbors: how many of the true ones it finds, and what it refuses."""

from pathlib import Path
from shutil import copy, copytree

import numpy as np
import pytest
from click.testing import CliRunner

import plm_embed
from plm_embed.cli.main import group
from plm_embed.errors import PlmEmbedError, StoreError
from plm_embed.keys import key
from plm_embed.reading.search.approximate import build
from support.campaigns import Campaign, gathered_campaign


def campaign_of(root: Path, count: int) -> Campaign:
    letters = np.random.default_rng(count).choice(list("ACDEFGHIKLMNPQRSTVWY"), (count, 30))
    records = []
    for number, row in enumerate(letters, start=1):
        sequence = "".join(row)
        record = {"source": "inputs/a.fasta", "number": number, "id": f"p{number}", "header": "x"}
        record |= {"status": "accepted", "reason": None, "detail": None, "events": ""}
        record |= {"sequence": sequence, "key": key(sequence), "length": 30, "function": None}
        records.append(record)
    return gathered_campaign(root, records=records)


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    campaign = campaign_of(tmp_path_factory.mktemp("indexed"), 2000)
    note = build(campaign.results, recall=0.9)
    assert note.recall >= 0.9 and note.probed < note.cells  # without structure in the vectors
    return campaign


@pytest.fixture
def copied(campaign: Campaign, tmp_path: Path) -> Path:
    return Path(copytree(campaign.master.parent, tmp_path / "model"))


def test_it_finds_as_many_as_its_note_says_and_scores_them_exactly(campaign: Campaign) -> None:
    with plm_embed.open(campaign.results) as embeddings:
        asked = [f"p{number}" for number in range(1, 301)]
        exact = embeddings.nearest(asked, k=10).to_pylist()
        found = embeddings.nearest(asked, k=10, index=True).to_pylist()
    true = {(line["query"], line["id"]): line["similarity"] for line in exact}
    hits = [line for line in found if (line["query"], line["id"]) in true]
    assert len(found) == len(exact) and len(hits) > 0.87 * len(true)
    assert all(line["similarity"] == true[line["query"], line["id"]] for line in hits)
    assert all(line["id"] == line["query"] for line in found if line["rank"] == 1)


def test_all_cells_find_nearly_all(copied: Path) -> None:
    done = CliRunner().invoke(
        group, ["index", str(copied), "--metric", "euclidean", "--recall", "1"]
    )
    assert done.exit_code == 0, done.output
    assert "euclidean" in done.stdout and "recall 0.9" in done.stdout.replace("1.000", "0.9")
    with plm_embed.open(copied) as embeddings, pytest.raises(StoreError, match="for euclidean of"):
        embeddings.nearest(["p1"], index=True)
    done = CliRunner().invoke(
        group, ["search", str(copied), "--id", "p1", "--index", "--metric", "euclidean"]
    )
    assert done.exit_code == 0 and len(done.stdout.splitlines()) == 11


def test_more_neighbors_than_the_cells_hold(campaign: Campaign) -> None:
    with plm_embed.open(campaign.results) as embeddings:
        found = embeddings.nearest(["p1"], k=1900, index=True)
        assert found.num_rows == 1900
        assert found.to_pylist() == embeddings.nearest(["p1"], k=1900).to_pylist()


def test_what_does_not_fit_is_refused(campaign: Campaign, copied: Path, tmp_path: Path) -> None:
    other = campaign_of(tmp_path / "other", 50)
    with pytest.raises(PlmEmbedError, match=r"50 rows are compared in no time; .* without one"):
        plm_embed.open(other.master).nearest(["p1"], index=True)
    (note,) = copied.glob("*.faiss.json")
    note.rename(tmp_path / "note")
    with pytest.raises(StoreError, match="there is no such file; make it: plm-embed index"):
        plm_embed.open(copied).nearest(["p1"], index=True)
    (tmp_path / "note").rename(note)
    for suffix in (".faiss", ".faiss.json"):
        copy(campaign.master.with_suffix(suffix), other.master.with_suffix(suffix))
    with pytest.raises(StoreError, match="the index of another master; make it again"):
        plm_embed.open(other.master).nearest(["p1"], index=True)
    (index,) = copied.glob("*.faiss")
    index.write_bytes(index.read_bytes()[:-1])
    with pytest.raises(StoreError, match="missing, or cut short"):
        plm_embed.open(copied).nearest(["p1"], index=True)
    index.write_bytes(bytes(index.stat().st_size + 1))
    with pytest.raises(StoreError, match="damaged"):
        plm_embed.open(copied).nearest(["p1"], index=True)
    with pytest.raises(PlmEmbedError, match="by dot, search without one"):
        build(copied, "dot")
    with pytest.raises(PlmEmbedError, match="a store has no index"):
        plm_embed.open(campaign.store).nearest(vectors=np.ones(16), index=True)
    few = campaign_of(tmp_path / "few", 30)
    with pytest.raises(PlmEmbedError, match="30 rows are compared in no time"):
        build(few.results)
