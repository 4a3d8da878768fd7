"""Exceptions as a Python user meets them: of which kind they are, and what they carry beside their
text.
"""

import errno
import gzip
import os
import pickle
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import plm_embed
from plm_embed.errors import (
    EXTRAS,
    ConfigError,
    PlmEmbedError,
    missing_extra,
    out_of_memory,
    some_path,
    unusable_path,
)
from plm_embed.models.weights import read_manifest
from plm_embed.sequences.records import Reader
from plm_embed.sequences.settings import Table
from plm_embed.sequences.summary import read_summary
from plm_embed.workflow.checks import read_config
from support.campaigns import gathered_campaign, make_campaign

ROOT = Path(__file__).parents[2]


def test_the_package_offers_six_names() -> None:
    assert plm_embed.__all__ == ["PlmEmbedError", "embed", "load", "models", "open", "score"]
    assert plm_embed.models.find_model("esm2_650m").dim == 1280
    with pytest.raises(AttributeError, match="has no attribute 'Dataset'"):
        plm_embed.Dataset  # type: ignore[attr-defined]  # noqa: B018


def test_errors_are_of_one_family() -> None:
    family = [kind for name, kind in vars(plm_embed.errors).items() if name.endswith("Error")]
    assert len(family) >= 8
    assert all(issubclass(kind, plm_embed.PlmEmbedError) for kind in family)
    assert issubclass(plm_embed.errors.DeviceError, plm_embed.errors.PassingError)
    assert issubclass(plm_embed.errors.UnknownIdError, KeyError)


def test_the_text_is_message_and_remedy_also_after_pickling() -> None:
    error = plm_embed.errors.StoreError("a.h5: damaged", path="a.h5", remedy="run `this`")
    for same in (error, pickle.loads(pickle.dumps(error))):
        assert str(same) == "a.h5: damaged; run `this`"
        parts = same.message, same.path, same.remedy
        assert parts == ("a.h5: damaged", Path("a.h5"), "run `this`")
    assert str(plm_embed.errors.UnknownIdError("no vector for a")) == "no vector for a"


def test_an_input_names_path_record_and_line(tmp_path: Path) -> None:
    for name, content, record, line in (
        ("cut.fasta.gz", gzip.compress(b">a\nMKT\n>b\nMKTA\n")[:-12], 2, None),
        ("quoted.csv", b'id,sequence\na,MKT\nb,"MKT\n', 2, 3),
        ("page.fasta", b"<html>", None, 1),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(plm_embed.errors.InputError) as raised:
            list(Reader(tmp_path / name, Table()))
        error = raised.value
        assert (error.path, error.record, error.line) == (tmp_path / name, record, line)


def test_a_configuration_names_keys_and_problems() -> None:
    with pytest.raises(plm_embed.errors.ConfigError) as found:
        read_config(None, ["inputs=[a.fasta]", "buckets=0", "model=esm5", "store=3"])
    assert len(found.value.problems) == 2
    assert found.value.key == found.value.problems[0].partition(":")[0] == "buckets"


def test_what_the_program_wrote_names_path_and_remedy(tmp_path: Path) -> None:
    campaign = make_campaign(tmp_path)
    (campaign.sequences / "summary.json").write_text("{}", encoding="utf-8")
    with pytest.raises(plm_embed.errors.StoreError) as found:
        read_summary(campaign.sequences)
    assert found.value.path == campaign.sequences / "summary.json"
    assert found.value.remedy == f"delete {found.value.path} and run the campaign again"
    assert "delete" not in found.value.message
    with pytest.raises(plm_embed.errors.WeightsError) as weights:
        read_manifest(tmp_path / "absent")
    assert weights.value.path is not None
    assert "weights" in weights.value.remedy


@pytest.mark.parametrize(
    ("call", "remedy"),
    [
        (lambda folder: plm_embed.open(folder / "none"), "give a master .h5, its .parquet, "),
        (lambda _: plm_embed.open(""), "give a path, or '.' for this folder"),
        (lambda folder: Reader(folder, Table()), "name the files in it"),
        (lambda _: plm_embed.embed(5), "give a list of sequences, a dictionary by id, or a file"),  # type: ignore[arg-type]
    ],
)
def test_what_to_do_is_the_remedy(
    tmp_path: Path, call: Callable[[Path], object], remedy: str
) -> None:
    with pytest.raises(PlmEmbedError) as found:
        call(tmp_path)
    assert found.value.remedy.startswith(remedy)
    assert str(found.value) == f"{found.value.message}; {found.value.remedy}"


def test_a_problem_of_a_configuration_says_what_to_do() -> None:
    error = ConfigError("x: is wrong", key="x", remedy="leave it out")
    assert error.problems == ("x: is wrong; leave it out",)


def test_an_unknown_id_is_a_key_error(tmp_path: Path) -> None:
    campaign = gathered_campaign(tmp_path)
    with plm_embed.open(campaign.master) as embeddings, pytest.raises(KeyError) as found:
        embeddings.get(["nobody"])
    assert isinstance(found.value, plm_embed.errors.UnknownIdError)
    assert found.value.path == campaign.master


def test_a_missing_extra_is_named() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for module, (package, extra) in EXTRAS.items():
        error = ModuleNotFoundError(f"No module named {module}.sub", name=f"{module}.sub")
        words = f"{package} is not installed: pip install 'plm-embed[{extra}]'"
        assert missing_extra(error) == words
        requirements = project["optional-dependencies"][extra]
        assert any(re.match(rf"{package}\b", requirement) for requirement in requirements)
    assert missing_extra(ModuleNotFoundError("no", name="plm_embed.absent")) == ""
    assert missing_extra(ModuleNotFoundError("no")) == missing_extra(PlmEmbedError("no")) == ""


def test_memory_of_the_host_runs_out_too() -> None:
    with pytest.raises(MemoryError) as error:
        np.empty(1 << 62, np.uint8)
    assert out_of_memory(error.value) and out_of_memory(MemoryError())
    assert not out_of_memory(ValueError("memory"))


def test_what_no_file_can_be_called_is_no_path() -> None:
    shown = ("x" * 300, "x" * 40), ("~nobody_has_this_name/x",) * 2, ("a\0b",) * 2, ("\ud800",) * 2
    for text, name in shown:
        with pytest.raises(ConfigError) as raised:
            some_path("weights", text)
        assert str(raised.value) == f"weights: {name!r}: no file can be called that"


def test_a_folder_that_cannot_be_written_to_is_named_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = tmp_path / "store" / "parts"
    monkeypatch.setattr(os, "access", lambda *_: False)
    said = f"{tmp_path}: cannot be written to; change its permissions"
    assert unusable_path(PermissionError(13, "Permission denied", str(wanted))).startswith(said)


def test_other_paths_are_named_with_what_the_system_says(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(OSError) as raised:
        (file / "x").mkdir()
    assert unusable_path(raised.value) == f"{file / 'x'}: Not a directory"
    unreadable = PermissionError(errno.EACCES, "Permission denied", str(file))
    assert unusable_path(unreadable) == f"{file}: Permission denied"
    renamed = FileExistsError(errno.EEXIST, "File exists", ".tmp-x", None, str(file))
    assert unusable_path(renamed) == f"{file}: File exists"
    assert unusable_path(PermissionError(errno.EPERM, "no")) == "[Errno 1] no"
    assert unusable_path(OSError(errno.EIO, "broken", "x")) == unusable_path(ValueError()) == ""
