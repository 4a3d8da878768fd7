"""What was computed and measured already: a plan counts it, and takes its speed from it."""

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from plm_embed.errors import PlmEmbedError
from plm_embed.inference.settings import Settings
from plm_embed.inference.weights import prepare
from plm_embed.master.gather import gather
from plm_embed.models.registry import MODELS
from plm_embed.planning import plan
from plm_embed.planning.campaign_input import given_input
from plm_embed.workflow.config import read_config
from support import checkpoints
from support.embedded import Embedder
from support.plans import planned, text


@pytest.mark.workflow
def test_a_trial_tells_the_speed_of_workers_that_work_at_the_same_time(
    configfile: Path, tmp_path: Path
) -> None:
    weights = tmp_path / "weights" / "esm2_t3_untrained"
    prepare(MODELS["esm2_t3_untrained"], checkpoints.DEMO, weights)
    found = planned(plan.Question(configfile, measure=True, workers=2))
    speed, hours = found.forecasts[0].speed, found.forecasts[0].hours or 0
    assert (speed.basis, speed.workers) == (
        "measured here",
        2,
    ) and "2 workers at a time" in speed.why
    assert 3600 * hours == pytest.approx(speed.startup + 39_823 / (speed.tokens_per_second or 0))
    assert found.local_hours == hours and found.command[:2] == ("snakemake", "--cores")
    assert "On this machine alone: about" in text(found)


def test_a_finished_campaign_costs_nothing_more_and_its_bytes_were_right(
    configfile: Path, tmp_path: Path
) -> None:
    config = read_config(configfile)
    sequences, model = (
        tmp_path / "results" / "sequences",
        tmp_path / "results" / "esm2_t3_untrained",
    )
    with given_input(config, None, False) as given:
        shutil.copytree(given.sequences, sequences)
    prepare(
        MODELS["esm2_t3_untrained"], checkpoints.DEMO, tmp_path / "weights" / "esm2_t3_untrained"
    )
    before = planned(plan.Question(configfile))
    embedder = Embedder(
        tmp_path / "weights" / "esm2_t3_untrained", model / "store", Settings(scratch="")
    )
    record = embedder.embed(
        sequences / "buckets" / "0000.parquet", model / "embedded" / "0000.json"
    )
    outputs = tmp_path / "master.h5", tmp_path / "index.parquet", tmp_path / "records.parquet"
    gather(sequences, model / "embedded", model / "store", *outputs, {"workflow_commit": ""})
    after = planned(plan.Question(configfile))
    assert (after.stored, after.todo.sequences, after.todo.tokens) == (129, 0, 0)
    speed = after.forecasts[0].speed
    assert speed.basis == "measured here" and speed.why.startswith("1 completion records")
    assert speed.startup == pytest.approx(
        record.seconds - record.tokens / (record.tokens_per_second or 1)
    )
    assert before.bytes["master"] == pytest.approx(outputs[0].stat().st_size, rel=0.1, abs=8_000)
    elsewhere = planned(plan.Question(configfile, elsewhere=(model / "embedded",)))
    assert elsewhere.forecasts[0].speed.basis == "measured here"
    (model / "embedded").rename(tmp_path / "away")
    elsewhere = planned(plan.Question(configfile, elsewhere=(tmp_path / "away",)))
    assert elsewhere.forecasts[0].speed.basis == "measured elsewhere"
    assert elsewhere.forecasts[0].speed.here
    (tmp_path / "away").rename(model / "embedded")
    configfile.write_text(configfile.read_text() + "embedding: {compute_dtype: bfloat16}\n")
    half = planned(plan.Question(configfile, all_gpus=True))
    assert {one.speed.basis for one in half.forecasts} == {"estimated", "not known"}
    (here,) = planned(plan.Question(configfile)).forecasts
    assert here.hours is None and "bfloat16: try --measure" in here.speed.why


def test_weights_are_needed_to_measure(configfile: Path) -> None:
    with pytest.raises(PlmEmbedError, match="no weights yet"):
        planned(plan.Question(configfile, measure=True))


def test_earlier_results_count_as_computed(configfile: Path, tmp_path: Path) -> None:
    config = read_config(configfile)
    weights = tmp_path / "weights" / "esm2_t3_untrained"
    prepare(MODELS["esm2_t3_untrained"], checkpoints.DEMO, weights)
    with given_input(config, None, False) as given:
        table = pq.read_table(given.sequences / "buckets" / "0000.parquet")
    pq.write_table(table.slice(0, 50), tmp_path / "some.parquet")
    store = tmp_path / "results" / "esm2_t3_untrained" / "store"
    Embedder(weights, store, Settings(scratch="")).embed(
        tmp_path / "some.parquet", tmp_path / "r.json"
    )
    found = planned(plan.Question(configfile))
    assert (found.stored, found.todo.sequences) == (50, 79)
    assert "50 in the store" in text(found)
    (part,) = store.glob("*/parts/*.h5")
    part.write_bytes(part.read_bytes()[:5000])
    assert planned(plan.Question(configfile)).stored == 0
    assert part.exists(), "a plan changes nothing"
