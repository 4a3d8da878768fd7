"""Steps around embed, as watch shows them."""

import os
import time
from pathlib import Path

from plm_embed.reporting import watch
from support.watched import MODEL, campaign, finish, look, shown, written


def begun(folder: Path, buckets: int) -> Path:
    """A model's campaign of which the first bucket was finished a while ago."""
    model = campaign(folder, buckets)
    written(model / "weights.json", at=-100)
    for path in (folder / "sequences").rglob("*"):
        os.utime(path, (time.time() - 100, time.time() - 100))
    finish(model, 0, at=-90)
    return model


def test_a_campaign_is_finished_when_every_step_is(tmp_path: Path) -> None:
    model = begun(tmp_path, 2)
    assert "·embed" in shown(tmp_path)
    record = finish(model, 1, at=-80)
    logs = tmp_path / "logs" / MODEL
    for name, file in (
        ("gather", "master_esm2_embeddings.h5"),
        ("validate", "checksums.sha256"),
        ("report", "report.html"),
    ):
        assert f"·{name}" in shown(tmp_path)
        written(logs / f"{name}.log", f"# plm-embed {name}\n", at=-30)
        text = shown(tmp_path)
        assert f"▶{name}" in text
        assert "finished:" not in text and not watch.look(tmp_path).finished
        written(model / file, at=-30)
    assert watch.look(tmp_path).finished and "finished: every step is done" in shown(tmp_path)
    os.utime(record, (time.time() - 20, time.time() - 20))  # more is embedded since
    assert "·gather" in shown(tmp_path)


def test_weights_that_could_not_be_made_again_leave_a_campaign_unfinished(tmp_path: Path) -> None:
    """Snakemake has removed the record of the earlier ones; their vectors are all there."""
    model = begun(tmp_path, 1)
    for file in ("master_esm2_embeddings.h5", "checksums.sha256", "report.html"):
        written(model / file, at=-30)
    assert watch.look(tmp_path).finished
    (model / "weights.json").unlink()
    log = tmp_path / "logs" / MODEL / "weights.log"
    written(log, "# plm-embed weights\nplm-embed: error: cannot be fetched\n", at=-10)
    assert not watch.look(tmp_path).finished
    assert "✗weights" in shown(tmp_path)


def test_a_bucket_that_was_cut_anew_since_is_not_finished(tmp_path: Path) -> None:
    model = campaign(tmp_path, 2)
    finish(model, 0)
    finish(model, 1)
    assert look(tmp_path).done == 2
    written(tmp_path / "sequences" / "buckets" / "0001.parquet", "x", at=60)
    os.utime(tmp_path / "sequences" / "summary.json", (time.time() + 60, time.time() + 60))
    assert look(tmp_path).done == 1
