"""What `plm-embed plan` says, and keeps as `plan.json` in the folder of the model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from plm_embed.io.json_files import read_sealed, write_sealed
from plm_embed.planning.costs import Speed, Work
from plm_embed.planning.proposals import Proposal

PLAN = "plan.json"


@dataclass(frozen=True)
class Forecast:
    """Time on one kind of device."""

    speed: Speed
    hours: float | None
    """Of one device at work, None when its speed is not known."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that `plm-embed plan` says; see `plan_view`."""

    schema_version: Literal[3] = 3
    made: str
    """ISO 8601, with its zone."""
    model: str
    weights: str
    """In words, which will be used."""
    verified: bool
    """Whether nothing speaks against their being the published ones."""
    counted: str
    """In words, how the input was counted."""
    records: int
    accepted: int
    unique: int
    """Sequences."""
    residues: int
    """Of the unique sequences."""
    lengths: dict[int, int]
    """Unique sequences by their number of residues."""
    stored: int | None
    """Unique sequences that the store holds, None where nothing fits the settings yet."""
    reused: int | None
    """Of plans of earlier versions."""
    todo: Work
    forecasts: tuple[Forecast, ...]
    device: str
    """The one that the submissions are planned for."""
    local_hours: float | None
    """Until the last bucket on this machine alone; None when its speed is not known or a site was
    named.
    """
    bytes: dict[str, int]
    """That will be written, by what they are."""
    free_bytes: int
    files: int = 0
    """That will be written, but for the sequences of other models."""
    site: str
    recognized: str
    """What the site was recognized by, '' where it was named."""
    missing: str
    """What has to be added to submit anything."""
    proposals: tuple[Proposal, ...]
    command: tuple[str, ...]


def write_plan(path: Path, plan: Plan) -> None:
    """Keep a plan."""
    write_sealed(path, plan)


def read_plan(path: Path) -> Plan | None:
    """A plan that was kept, None when there is none. StoreError when it was changed."""
    remedy = "remove it, and run this again: the report goes without"
    return read_sealed(path, Plan, "a plan", remedy) if path.is_file() else None
