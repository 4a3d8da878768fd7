"""Every JSON file that the package writes: those of version 0.1 are read, and what is missing,
damaged or of another kind is refused with what to do.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from plm_embed.errors import PlmEmbedError, StoreError, WeightsError
from plm_embed.io.json_files import read_sealed, write_sealed
from plm_embed.jobs.completion_record import read_completion
from plm_embed.jobs.heartbeat import read_heartbeat
from plm_embed.master.validation_record import read_validation
from plm_embed.models.weights import read_record
from plm_embed.sequences.summary import read_summary

DROPPED = {
    *("busy_seconds", "spared_tokens"),
    *("busy", "exact", "toks_per_batch", "joules", "loading_seconds", "reused", "reused_from"),
}
"""Keys of earlier versions that nothing reads any more."""
DATA = Path(__file__).parents[1] / "data" / "files_0.1"


@dataclass(frozen=True)
class Kind:
    """A sealed file and its reader."""

    recorded: str
    """The file of version 0.1, without .json."""
    name: str
    """The name that the file must have."""
    what: str
    remedy: str
    read: Callable[[Path], Any]
    error: type[PlmEmbedError] = StoreError
    optional: tuple[str, ...] = ()
    """Keys that may be missing, besides schema_version."""


KINDS = [
    Kind(
        "summary",
        "summary.json",
        "a summary of sequences",
        "delete .* and run the campaign again",
        lambda path: read_summary(path.parent),
    ),
    Kind(
        "weights",
        "weights.json",
        "a manifest of weights",
        "delete .*weights.json and run the campaign again",
        lambda path: read_record(path.parent),
        WeightsError,
        ("published", "self_test_sha256"),
    ),
    Kind(
        "completion",
        "0000.json",
        "a completion record",
        r"delete .*0000\.json and run the campaign again",
        read_completion,
        optional=("computed", "tokens", "tokens_per_second", "reused_devices"),
    ),
    Kind(
        "validation",
        "validation.json",
        "a report of validate",
        "delete .*validation.json and run the campaign again",
        read_validation,
        optional=("remedy", "counts", "norms", "spot_checks", "fingerprint", "files"),
    ),
]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.recorded)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def path(kind: Kind, tmp_path: Path) -> Path:
    """A file that version 0.1 wrote."""
    return Path(shutil.copy(DATA / f"{kind.recorded}.json", tmp_path / kind.name))


def test_what_version_0_1_wrote_is_read_and_written_again(kind: Kind, path: Path) -> None:
    record = kind.read(path)
    path.unlink()
    write_sealed(path, record)
    assert kind.read(path) == record


def refused(kind: Kind, path: Path, content: dict[str, Any], words: str) -> None:
    write_sealed(path, content)
    message = rf"{path.name}: not {kind.what} of this version \({words}.*\); {kind.remedy}"
    with pytest.raises(kind.error, match=message) as error:
        kind.read(path)
    assert "\n" not in str(error.value)


def test_keys_that_are_missing_are_named(kind: Kind, path: Path) -> None:
    content: dict[str, Any] = read_sealed(path, dict, "", "")
    for name in content.keys() - {"schema_version", *kind.optional, *DROPPED}:
        less = {key: value for key, value in content.items() if key != name}
        refused(kind, path, less, f"Object missing required field `{name}`")


def test_a_value_of_another_type_is_named(kind: Kind, path: Path) -> None:
    content: dict[str, Any] = read_sealed(path, dict, "", "")
    for name in content.keys() - DROPPED:
        refused(kind, path, content | {name: [[None]]}, rf".* `\$\.{name}")


def test_a_damaged_or_edited_file_is_refused(kind: Kind, path: Path) -> None:
    edited = path.read_text().replace("0", "1", 1)
    for text in ("", "{", "[]", "{}", '{"sha256": 1}', edited):
        path.write_text(text)
        words = "changed since.*" if text == edited else ".*"
        with pytest.raises(kind.error, match=rf"{path.name}: {words}; {kind.remedy}"):
            kind.read(path)


BEAT = {
    **{"schema_version": 1, "bucket": "0000", "records": "../embedded", "node": 0},
    **{"host": "x3001", "job": "17", "started": "2026-11-22T16:49:30+00:00"},
    **{"updated": "2026-11-22T16:49:40+00:00", "tokens": 50, "tokens_total": 100},
}


def test_a_heartbeat_is_read_or_left_out(tmp_path: Path) -> None:
    path = tmp_path / "x3001-7.json"
    path.write_text(json.dumps(BEAT) + "\n")
    beat = read_heartbeat(path)
    assert beat and (beat.fraction, beat.outcome) == (0.5, "no end")
    changes = ({"tokens": "50"}, {"tokens": None}, {"schema_version": 2})
    for damaged in ("", "{", "[]", *(json.dumps(BEAT | change) for change in changes)):
        path.write_text(damaged)
        assert read_heartbeat(path) is None
    assert read_heartbeat(tmp_path / "absent.json") is None
