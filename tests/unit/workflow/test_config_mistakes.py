"""Mistakes in a configuration: each is named with its place and value, and none is passed over."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from plm_embed.errors import InputError, PlmEmbedError
from plm_embed.models.model import Model
from plm_embed.workflow.by_model import by_model
from plm_embed.workflow.campaign import check_inputs
from plm_embed.workflow.config import checked, schema
from support.configs import config

pytestmark = pytest.mark.usefixtures("in_a_folder_with_files")

SCHEMA = schema()


def problems(**changes: Any) -> list[str]:
    with pytest.raises(PlmEmbedError) as caught:
        checked(config(**changes))
    heading, *lines = str(caught.value).splitlines()
    assert heading.startswith(f"The configuration has {len(lines)} problem")
    return [line.strip() for line in lines]


def test_weights_that_lie_nowhere_have_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    untrained = config(model="esm2_t3_untrained")
    assert Path(by_model(checked(untrained))["esm2_t3_untrained"]["weights"]).is_file()
    monkeypatch.setattr(Model, "shipped", None)
    (problem,) = problems(model="esm2_t3_untrained")
    assert problem.startswith("weights: esm2_t3_untrained cannot be downloaded: give its .pt file")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"bukets": 4}, "bukets: 4: there is no such key; did you mean buckets?"),
        ({"table": {"ids": "x"}}, 'table.ids: "x": there is no such key; did you mean id?'),
        ({"zzz": [1]}, "zzz: [1]: there is no such key"),
        ({"buckets": "many"}, 'buckets: "many": must be a whole number'),
        ({"buckets": "[1"}, 'buckets: "[1": must be a whole number'),
        ({"buckets": True}, "buckets: true: must be a whole number"),
        ({"buckets": 0}, "buckets: 0: must be at least 1"),
        ({"buckets": 100_000}, "buckets: 100000: must be at most 20000"),
        ({"inputs": {"a": 1}}, 'inputs: {"a": 1}: must be a list, such as [a, b]'),
        ({"inputs": ""}, "inputs: []: must not be empty"),
        ({"inputs": "b.fasta"}, "inputs: b.fasta: not found; did you mean a.fasta?"),
        ({"inputs": ["a" * 300]}, f"inputs: {'a' * 300}: File name too long"),
        ({"inputs": ["a.fasta/b"]}, "inputs: a.fasta/b: Not a directory"),
        ({"results": "a.fasta"}, "results: a.fasta: is a file, not a folder"),
        ({"store": "a.fasta/below"}, "store: a.fasta/below: Not a directory"),
        (
            {"weights_folder": "$HOME/w"},
            "weights_folder: $HOME/w: environment variables are not expanded; write ~ or",
        ),
        ({"results": "-x"}, "results: -x: must not begin with -"),
        ({"results": "a\nb"}, r'results: "a\nb": holds a control character'),
        ({"results": "<x>"}, "results: <x>: must not hold braces or < >"),
        ({"results": "a\0b"}, 'results: "a\\u0000b": holds a control character'),
        (
            {"table": {"keep": ["a\x1b[2J"]}},
            'table.keep[0]: "a\\u001b[2J": holds a control character',
        ),
        (
            {"speed": {"flush_minutes": float("nan")}},
            "speed.flush_minutes: nan: must be a finite number",
        ),
        (
            {"speed": {"flush_minutes": "1e999"}},
            "speed.flush_minutes: inf: must be a finite number",
        ),
        ({"speed": {"scratch": "tmp"}}, "speed.scratch: tmp: must be an absolute path, auto"),
        (
            {"speed": {"device": "gpu"}},
            'speed.device: "gpu": must be one of auto, cuda, cpu; did you mean cuda?',
        ),
        ({"buckets": json.loads("[" * 900 + "]" * 900)}, "buckets: is nested too deeply"),
        ({"buckets": "[" * 90_000}, 'buckets: "[[['),
        ({"memory_mb": 16**5000}, "memory_mb: is nested too deeply, or holds too large a number"),
        ({"inputs": []}, "inputs: []: must not be empty"),
        (
            {"inputs": ["a.fasta", "a.fasta"]},
            'inputs: ["a.fasta", "a.fasta"]: names "a.fasta" twice',
        ),
        ({"results": ""}, 'results: "": must not be empty'),
        ({"speed": 3}, "speed: 3: must be a block of keys"),
        ({"speed": {"flush_minutes": 0}}, "speed.flush_minutes: 0: must be more than 0"),
        ({"speed": {"flush_minutes": "soon"}}, 'speed.flush_minutes: "soon": must be a number'),
        (
            {"residues": {"unknown": "skp"}},
            'residues.unknown: "skp": must be one of skip, substitute; did you mean skip?',
        ),
        (
            {"residues": {"strand": "canonical"}},
            "residues.strand: canonical: the model reads proteins, which have no other strand",
        ),
        (
            {"embedding": {"pooling": ["mean", "men"]}},
            'embedding.pooling[1]: "men": must be one of ',
        ),
        ({"inputs": ["b.fasta"]}, "inputs: b.fasta: not found; did you mean a.fasta?"),
        ({"inputs": ["."]}, "inputs: .: is a folder, not a file; name the files in it"),
        (
            {"inputs": ["*.fa"]},
            "inputs: *.fa: not found; patterns are not expanded here: name the files",
        ),
        (
            {"inputs": ["deep/er/b.fasta"]},
            "inputs: deep/er/b.fasta: not found: there is no folder deep in ",
        ),
        (
            {"inputs": ["/nowhere/b.fasta"]},
            "inputs: /nowhere/b.fasta: not found: there is no folder /nowhere",
        ),
        (
            {"weights": "esm3.pt"},
            'weights: esm3.pt: not found; did you mean esm2.pt?; write "" to download',
        ),
        (
            {"table": {"keep": ["length"]}},
            "table.keep: length: the results have a column of their own of this name",
        ),
        (
            {"table": {"keep": ["sequence"]}},
            "table.keep: sequence: the steps call the normalized residues so; rename your column",
        ),
        (
            {"embedding": {"layers": [7]}},
            "embedding.layers: [7]: esm2_t6_8M_UR50D has layers 0 to 6",
        ),
        (
            {"embedding": {"layers": [-8]}},
            "embedding.layers: [-8]: esm2_t6_8M_UR50D has layers 0 to 6",
        ),
        (
            {"model": "prott5", "embedding": {"pooling": ["mean", "bos"]}},
            "embedding.pooling: bos: prot_t5_xl_half_uniref50-enc has no <cls> token",
        ),
        (
            {"model": "DNABERT-S", "embedding": {"pooling": ["per_residue"]}},
            "embedding.pooling: per_residue: a token of DNABERT-S is several bases",
        ),
        ({"embedding": {"layers": [6, -1]}}, "embedding.layers: [6, 6]: names a layer twice"),
        (
            {"embedding": {"compute_dtype": "tfloat32"}, "speed": {"device": "cpu"}},
            "embedding.compute_dtype: tfloat32: exists on GPUs only; choose float32",
        ),
    ],
)
def test_each_mistake_is_named_with_its_place_and_value(
    changes: dict[str, Any], expected: str
) -> None:
    (problem,) = problems(**changes)
    assert problem.startswith(expected)


@pytest.mark.parametrize(
    ("model", "policy", "limit", "overlap", "expected"),
    [
        ("esm2_650m", "whole", 0, 0, None),
        ("esm2_650m", "window", 1022, 511, None),
        ("esm1b", "whole", 0, 0, None),
        ("esm1b", "crop", 1022, 0, None),
        ("esm2_650m", "whole", 1022, 0, "max_residues: 1022: means nothing with policy whole"),
        ("esm2_650m", "crop", 0, 0, "max_residues: 0: policy crop needs a limit"),
        ("esm2_650m", "window", 100, 100, "overlap: 100: must be less than max_residues, 100"),
        ("esm2_650m", "skip", 100, 5, "overlap: 5: means nothing with policy skip"),
        (
            "esm1b",
            "window",
            1023,
            0,
            "max_residues: 1023: esm1b_t33_650M_UR50S takes at most 1022 residues",
        ),
    ],
)
def test_long_sequence_settings_must_fit_together(
    model: str, policy: str, limit: int, overlap: int, expected: str | None
) -> None:
    changes = {
        "model": model,
        "embedding": {
            "long_sequences": {"policy": policy, "max_residues": limit, "overlap": overlap}
        },
    }
    if expected is None:
        checked(config(**changes))
    else:
        (problem,) = problems(**changes)
        assert problem.startswith(f"embedding.long_sequences.{expected}")


def test_all_mistakes_are_reported_at_once() -> None:
    found = problems(
        inputs=["b.fasta"],
        buckets="many",
        embedding={"layers": [99], "poling": ["mean"], "long_sequences": {"policy": "window"}},
        weights="nowhere.pt",
    )
    assert [problem.split(":")[0] for problem in found] == [
        *("buckets", "embedding.poling", "weights", "inputs"),
        *("embedding.layers", "embedding.long_sequences.max_residues"),
    ]


def test_missing_keys_and_unknown_models_are_named() -> None:
    with pytest.raises(
        PlmEmbedError,
        match=r"2 problems.*\n  inputs: missing: .*\n  model: missing: Published name",
    ):
        checked({})
    with pytest.raises(PlmEmbedError, match="did you mean esm2_t6_8M_UR50D"):
        checked(config(model="esm2_t6_8M_UR50"))


def test_one_file_under_two_spellings_and_braces_are_refused() -> None:
    Path("a{b}.fasta").write_text(">a\nMK\n", encoding="utf-8")
    assert problems(inputs=["a.fasta", "./a.fasta", "a{b}.fasta"], results="res{x}") == [
        "results: res{x}: must not hold braces or < >, which Snakemake takes for wildcards",
        "inputs: a{b}.fasta: must not hold braces or < >, which Snakemake takes for wildcards",
        "inputs: a.fasta: is the same file as a.fasta; name it once",
    ]


def test_mistakes_beside_each_other_are_named_together() -> None:
    found = problems(inputs=["b.fasta", 3, "."])
    assert [line.partition(":")[0] for line in found] == ["inputs[1]", "inputs", "inputs"]


def test_what_is_no_file_is_said_to_be_that() -> None:
    os.mkfifo("pipe")
    Path("one").symlink_to("two")
    Path("two").symlink_to("one")
    Path("dangling").symlink_to("nowhere")
    assert problems(
        inputs=["pipe", "one", "dangling"],
        weights="one",
        store="one",
        results="dangling",
        reuse="one",
    ) == [
        "results: dangling: is a link to something that is not there",
        "store: one: Too many levels of symbolic links",
        'weights: one: Too many levels of symbolic links; write "" to '
        "download the published weights",
        "reuse: one: Too many levels of symbolic links",
        "inputs: pipe: is a pipe or a device, not a file",
        "inputs: one: Too many levels of symbolic links",
        "inputs: dangling: is a link to something that is not there",
    ]


def test_inputs_that_cannot_be_read_are_named_together(tmp_path: Path) -> None:
    whole, empty, blank = tmp_path / "a.fasta", tmp_path / "b.fasta", tmp_path / "c.fasta"
    whole.write_text(">p\nMKTAYIAKQR\n")
    empty.touch()
    blank.write_text(" \n")
    given = [whole, empty, blank]
    with pytest.raises(InputError) as caught:
        check_inputs(checked(config(inputs=list(map(str, given)))))
    assert caught.value.path == empty
    heading, *lines = str(caught.value).splitlines()
    assert heading == "2 inputs cannot be read:"
    assert [line.split(":")[0].strip() for line in lines] == [str(empty), str(blank)]
    assert all(line.endswith("leave it out") for line in lines)
    many = [tmp_path / f"{number}.fasta" for number in range(12)]
    for path in many:
        path.touch()
    with pytest.raises(InputError) as caught:
        check_inputs(checked(config(inputs=list(map(str, many)))))
    heading, *lines = str(caught.value).splitlines()
    assert heading == "12 inputs cannot be read:" and len(lines) == 11
    assert lines[-1].strip() == "... and 2 more"
