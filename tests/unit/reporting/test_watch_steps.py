"""What watch says of the steps after embed, and of the reference beside it."""

import os
import time
from pathlib import Path

from support.watched import MODEL, campaign, finish, look, shown, written


def begun(folder: Path, buckets: int) -> Path:
    """A model's campaign of which the first bucket was finished a while ago."""
    model = campaign(folder, buckets)
    written(model / "weights.json", at=-100)
    finish(model, 0)
    os.utime(model / "embedded", (time.time() - 90, time.time() - 90))
    return model


def test_a_campaign_is_finished_when_every_step_is(tmp_path: Path) -> None:
    model = begun(tmp_path, 2)
    assert "embed 50.0 % waits" in shown(tmp_path)
    finish(model, 1)
    os.utime(model / "embedded", (time.time() - 60, time.time() - 60))
    logs = tmp_path / "logs" / MODEL
    for name, file, said in (
        ("gather", "gathered.json", "12:00:00 gathered 2 vectors"),
        ("validate", "checksums.sha256", ""),
        ("report", "report.html", ""),
    ):
        assert f"{name} has not begun" in shown(tmp_path)
        written(logs / f"{name}.log", f"# plm-embed {name}\n{said}\n", at=-30)
        text = shown(tmp_path)
        assert f"{name} is at work, last word 30 s ago{': ' * bool(said)}{said}\n" in text
        assert "finished:" not in text and not look(tmp_path).finished
        written(model / file, at=-30)
    assert look(tmp_path).finished and "finished: every step is done" in shown(tmp_path)
    os.utime(model / "embedded", (time.time() - 20, time.time() - 20))  # more is embedded since
    assert "gather has not begun" in shown(tmp_path)


def test_a_reference_that_failed_shows_before_its_turn_comes(tmp_path: Path) -> None:
    model = campaign(tmp_path, 8)
    finish(model, 0)
    log = tmp_path / "logs" / MODEL / "reference.log"
    written(log, "# plm-embed reference\n")
    assert "gather waits, validate waits" in shown(tmp_path)
    written(log, "plm-embed: error: no memory\n")
    text = shown(tmp_path)
    assert "gather waits, validate failed" in text and "no memory" in text
    finish(model, 1)  # as jobs do that go on
    os.utime(model / "embedded")
    assert "gather waits, validate failed" in shown(tmp_path)


def test_a_reference_that_is_waited_for_is_shown(tmp_path: Path) -> None:
    model = begun(tmp_path, 1)
    written(model / "gathered.json", at=-30)
    written(tmp_path / "logs" / MODEL / "reference.log", "# plm-embed reference\n", at=-20)
    assert "validate at work" in shown(tmp_path)
    written(model / "reference.npz")
    assert "validate waits" in shown(tmp_path)


def test_weights_that_could_not_be_made_again_leave_a_campaign_unfinished(tmp_path: Path) -> None:
    """Snakemake has removed the record of the earlier ones; their vectors are all there."""
    model = begun(tmp_path, 1)
    for file in ("gathered.json", "checksums.sha256", "report.html"):
        written(model / file, at=-30)
    assert look(tmp_path).finished
    (model / "weights.json").unlink()
    assert look(tmp_path).finished  # nothing says that others were asked for
    log = tmp_path / "logs" / MODEL / "weights.log"
    written(log, "# plm-embed weights\nplm-embed: error: holds other weights\n", at=-10)
    assert not look(tmp_path).finished
    assert "weights failed" in shown(tmp_path)
