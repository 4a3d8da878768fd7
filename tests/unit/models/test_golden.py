"""The program that makes golden sets: its formulas give what the shipped sets hold."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from support import golden as program
from support.families import golden, published, relative
from support.golden import FORMULAS, SETS, main


@pytest.mark.parametrize("name", FORMULAS)
def test_the_formulas_give_what_the_sets_hold(name: str) -> None:
    known = golden(name)
    weights, config = published(name)
    for i in known.tokens:
        ids = torch.from_numpy(known.ids[i].astype(np.int64))
        states = torch.stack(FORMULAS[name](weights, config, ids)).numpy()
        assert relative(states, known.tokens[i]) < 1e-7
        first, stop = known.model.family.residues(len(ids))
        assert relative(states[:, first:stop].mean(1), known.means[i]) < 1e-13


@pytest.mark.parametrize("name", ["amplify", "saprot"])
def test_a_set_is_what_the_program_writes(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([name], tmp_path)
    tmp_path /= name
    assert capsys.readouterr().out.split() == [str(path) for path in sorted(tmp_path.iterdir())]
    for path in (SETS / name).iterdir():
        if path.suffix == ".npz":
            with np.load(path) as shipped, np.load(tmp_path / path.name) as made:
                assert shipped.files == made.files
                assert all(np.allclose(shipped[n], made[n], 1e-12, 1e-12) for n in shipped.files)
        else:
            assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_the_program_refuses_what_is_incomplete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        SystemExit, match=r"family 'protbert' is not in PUBLISHED; complete: amplify"
    ):
        main(["protbert"], tmp_path)
    with pytest.raises(SystemExit, match="family '' is not in FORMULAS"):
        main([], tmp_path)
    files = program.PUBLISHED["amplify"]
    for wrong, words in (
        (replace(files, words=files.words[1:]), r"27 rows, but words: 26$"),
        (
            replace(files, config={**files.config, "vocab_size": 33}),
            r"27 rows, but vocab_size: 33$",
        ),
        (replace(files, heads={"decoder.bias": (33,)}), r"but heads: decoder\.bias: 33$"),
    ):
        monkeypatch.setitem(program.PUBLISHED, "amplify", wrong)
        with pytest.raises(SystemExit, match=words):
            main(["amplify"], tmp_path)
        assert not [*tmp_path.rglob("*.npz")]
    shorter = replace(files, heads={}, config={**files.config, "num_hidden_layers": 2})
    monkeypatch.setitem(program.PUBLISHED, "amplify", shorter)
    with pytest.raises(SystemExit, match=r"do not read .*transformer_encoder\.2\.ffn\.w3\.weight"):
        main(["amplify"], tmp_path)
