"""`plm-embed weights --check`: what is proven of weights, and on which device."""

import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from plm_embed.cli.main import group
from plm_embed.errors import WeightsError
from plm_embed.inference import check_weights
from plm_embed.inference.check_weights import ANSWERS, PEPTIDES, check
from plm_embed.inference.reference import hidden_states
from plm_embed.inference.weights import prepare
from plm_embed.models.registry import MODELS
from support.families import TINY, add_model, relative, source


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Weights of a tiny ESM C, whose answers are those of the published formulas."""
    model = TINY["esmc"]
    add_model(monkeypatch, model)
    prepare(model, source("esmc"), tmp_path / "weights")
    states = hidden_states(tmp_path / "weights", PEPTIDES, [3])
    answers = np.stack([state[3][1:-1].mean(0).numpy() for state in states])
    np.savez(tmp_path / "answers.npz", **{model.name: answers})
    monkeypatch.setattr(check_weights, "ANSWERS", tmp_path / "answers.npz")
    return tmp_path / "weights"


def test_every_proof_is_named(folder: Path) -> None:
    files, origin, self_test, answers = check(folder)
    assert files.startswith("files: intact; SHA-256 of the tensors ")
    assert origin.startswith("source: not verified as the published weights: no SHA-256")
    assert self_test.startswith("self-test: passed in float32 on ")
    assert re.fullmatch(r"known answers: .* from the published model's, [\d.]+ % allowed", answers)
    assert float(answers.split()[2]) < 1e-3


def test_other_answers_are_named_and_an_error_of_published_weights(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "others.npz", esmc_tiny=np.ones((3, 32), np.float32))
    monkeypatch.setattr(check_weights, "ANSWERS", tmp_path / "others.npz")
    *_, answers = check(folder)
    assert "allowed; these are other weights than the published ones" in answers
    monkeypatch.setattr(check_weights, "caveat", lambda *_: "")
    with pytest.raises(WeightsError, match="allowed: report it with this line"):
        list(check(folder))


def test_the_command_says_where_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_model(monkeypatch, TINY["prott5"])
    command = ["weights", "--model", "prott5_tiny", "--source", str(source("prott5"))]
    done = CliRunner().invoke(group, [*command, "--output", str(tmp_path / "w"), "--check"])
    assert done.exit_code == 0, done.output
    assert "known answers: none are known for prott5_tiny" in done.stdout.splitlines()


def test_the_answers_that_ship_fit_their_models() -> None:
    with np.load(ANSWERS) as stored:
        answers = {name: stored[name] for name in stored.files}
    assert {MODELS[name].family.name for name in answers} == {"esm2", "esmc", "ankh"}
    for name, means in answers.items():
        assert means.shape == (len(PEPTIDES), MODELS[name].dim)
        assert np.isfinite(means).all()
        for other in (means[[1, 2, 0]], means[[2, 0, 1]]):
            assert relative(other, means) > 0.15
