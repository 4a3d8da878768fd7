"""How far each step of a campaign is, by what it has written and by its log."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from plm_embed.io.files import last_bytes, whole_files
from plm_embed.master.validation_record import PROOF
from plm_embed.models.manifest import RECORD
from plm_embed.reading.find import MASTERS
from plm_embed.reporting.failures import Failure, error_at_the_end, reading_logs
from plm_embed.reporting.outputs import REPORT
from plm_embed.reporting.screen.small_files import Kept, time_of
from plm_embed.sequences.summary import SUMMARY

Status = Literal["done", "at work", "waits", "failed"]
_TAIL_BYTES = 2048


@dataclass(frozen=True)
class Step:
    """One step of a model's campaign. log, last: of the step at work, and the last line in it; age:
    seconds since that was written.
    """

    name: str
    status: Status
    log: Path | None = None
    last: str = ""
    age: float = 0.0


class Steps:
    """The steps of the models in a results folder, but for embed."""

    def __init__(self, results: Path, kept: Kept) -> None:
        self.results, self._kept = results, kept

    def weights(self, model: str, used: bool) -> Step:
        """Return the step that prepares the weights."""
        done = time_of(self.results / model / RECORD) is not None
        step = self._step("weights", done, [self._log(model, "weights")])
        return Step("weights", "done") if used and step.status == "waits" else step

    def sequences(self) -> Step:
        """Return the step that reads the input."""
        done = time_of(self.results / "sequences" / SUMMARY) is not None
        return self._step("sequences", done, reading_logs(self.results))

    def after_embed(self, model: str, embedded: bool) -> list[Step]:
        """Return gather, validate and report; one that is older than its input is not done."""
        folder = self.results / model
        made = max(
            (time_of(path) or 0 for path in whole_files(folder / "embedded", "*.json")), default=0
        )
        steps, before = [], embedded
        for name, pattern in (("gather", MASTERS), ("validate", PROOF), ("report", REPORT)):
            written = max((time_of(path) or 0 for path in folder.glob(pattern)), default=0)
            done = before and written >= made > 0
            steps.append(self._step(name, done, [self._log(model, name)] if before else [], made))
            before, made = done, written or made
        return steps

    def failures(self, steps: Sequence[Step]) -> list[Failure]:
        """Return those of the steps that failed."""
        found = ((step.log, self._error(step.log)) for step in steps if step.status == "failed")
        return [Failure(log, reason) for log, reason in found if log]

    def _log(self, model: str, name: str) -> Path:
        return self.results / "logs" / model / f"{name}.log"

    def _step(self, name: str, done: bool, logs: Sequence[Path], since: int = 0) -> Step:
        """Return a step by its logs that are not older than `since`."""
        if done:
            return Step(name, "done")
        written = {log: time_of(log) or 0 for log in logs}
        newer = [log for log in logs if written[log] and written[log] >= since]
        if failed := [log for log in newer if self._error(log)]:
            return Step(name, "failed", failed[0])
        if not newer:
            return Step(name, "waits")
        log = max(newer, key=lambda one: written[one])
        age = max(0.0, time.time() - written[log] / 1e9)
        return Step(name, "at work", log, self._kept.read(log, last_line) or "", age)

    def _error(self, log: Path | None) -> str:
        return (log and self._kept.read(log, error_at_the_end)) or ""


def last_line(log: Path) -> str:
    """Return the last line of a log; '' while there is nothing but the command."""
    lines = last_bytes(log, _TAIL_BYTES).decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip() if lines and not lines[-1].startswith("#") else ""
