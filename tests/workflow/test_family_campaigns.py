"""A whole campaign per family, step by step, with its tiny model in the published layout."""

from pathlib import Path

import pytest

import plm_embed
from plm_embed.models import registry
from plm_embed.models.manifest import read_record
from support import tiny_campaign
from support.families import TINY, source

pytestmark = pytest.mark.workflow


@pytest.mark.parametrize("name", TINY)
def test_a_campaign_from_the_checkpoint_to_the_report(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = TINY[name]
    monkeypatch.setitem(registry.MODELS, model.name, model)
    monkeypatch.setitem(registry._BY_NAME, model.name, model)
    tiny_campaign.load_package()
    tiny_campaign.make_inputs(tmp_path, 3)
    words = {
        tiny_campaign.MODEL: model.name,
        "esm2_embeddings": f"{name}_embeddings",
        "model.pt": str(source(name)),
    }
    for step in tiny_campaign.ONE_JOB:
        for command in tiny_campaign.commands(step):
            for old, new in words.items():
                command = [word.replace(old, new) for word in command]  # noqa: PLW2901
            status, printed = tiny_campaign.run_command(tmp_path, command)
            assert status == 0, printed
    assert f"license of the weights: {model.license}" in printed  # by summary, the last of all
    report = (tmp_path / "results" / model.name / "report.html").read_text()
    assert model.license in report
    assert model.family.papers[0][:20] in report
    assert "the published formulas in float64" in report
    record = read_record(tmp_path / "results" / model.name)
    assert record is not None
    assert record.license == model.license
    folder = tmp_path / "results" / model.name
    with plm_embed.open(folder / f"master_{name}_embeddings.h5") as embeddings:
        assert embeddings.dim == model.dim
        assert len(embeddings) > 10
