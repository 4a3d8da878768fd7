"""How far each step of a campaign is, by what it has written and by its log."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from plm_embed.errors import PlmEmbedError
from plm_embed.io.files import last_bytes
from plm_embed.jobs.completion_record import FOLDER as RECORDS
from plm_embed.master.attributes import gathered_from, is_of
from plm_embed.master.gather_record import read_record
from plm_embed.master.validation_record import PROOF
from plm_embed.models.manifest import RECORD
from plm_embed.reading.find import GATHERED
from plm_embed.reporting.screen.small_files import Kept, time_of
from plm_embed.sequences.summary import SUMMARY, Summary, read_summary
from plm_embed.workflow.ending import REFERENCE, REPORT
from plm_embed.workflow.failures import Failure, error_at_the_end, reading_logs

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

    def weights(self, model: str, used: bool, began: int) -> Step:
        done = time_of(self.results / model / RECORD) is not None
        step = self._step("weights", done, [self._log(model, "weights")], began)
        return Step("weights", "done") if used and step.status == "waits" else step

    def sequences(self, began: int) -> Step:
        done = time_of(self.results / "sequences" / SUMMARY) is not None
        return self._step("sequences", done, [] if done else reading_logs(self.results), began)

    def after_embed(
        self, model: str, embedded: bool, began: int, *, copied: bool = False
    ) -> list[Step]:
        """gather, validate and report. One that is older than what it was made of is not done,
        unless they were `copied`: then the times of files are those of the copy. Nor is a master of
        other sequences than are there now.
        """
        folder = self.results / model
        made = time_of(folder / RECORDS) or 0  # the last record that came or went
        steps, before = [], embedded
        for name, file in (("gather", GATHERED), ("validate", PROOF), ("report", REPORT)):
            written = time_of(folder / file)
            done = before and written is not None and (written >= made or copied)
            done = done and not (name == "gather" and self.of_other_sequences(folder))
            logs = [self._log(model, name)] if before else []
            step = self._step(name, done, logs, max(began, made))
            if name == "validate" and step.status == "waits":
                step = self._reference(model, began, before=before) or step
            steps.append(step)
            before, made = done, written or made
        return steps

    def of_other_sequences(self, folder: Path) -> bool:
        """Whether a master was gathered from other sequences than are there; not where a file that
        tells is gone or damaged, which the next run says.
        """
        with suppress(PlmEmbedError):
            summary = self._kept.read(self.results / "sequences" / SUMMARY, _read_summary)
            record = self._kept.read(folder / GATHERED, read_record)
            for name in record.files if record and summary else ():
                said = self._kept.read(folder / name, gathered_from) if name.endswith(".h5") else {}
                if summary and not is_of(said or {}, summary):
                    return True
        return False

    def _reference(self, model: str, began: int, *, before: bool) -> Step | None:
        """The part of validate that runs beside embed, when it has failed or is waited for."""
        log = self._log(model, "reference")
        done = time_of(self.results / model / REFERENCE) is not None
        step = self._step("validate", done, [log], began)
        return step if step.status == "failed" or (before and step.status == "at work") else None

    def failures(self, steps: Sequence[Step]) -> list[Failure]:
        """Of the steps that failed."""
        found = ((step.log, self._error(step.log)) for step in steps if step.status == "failed")
        return [Failure(log, reason) for log, reason in found if log]

    def _log(self, model: str, name: str) -> Path:
        return self.results / "logs" / model / f"{name}.log"

    def _step(self, name: str, done: bool, logs: Sequence[Path], began: int) -> Step:
        """A step by its logs that are not older than `began`, of which the newest one counts."""
        if done:
            return Step(name, "done")
        written = {log: time_of(log) or 0 for log in logs}
        newer = [log for log in logs if written[log] and written[log] >= began]
        failed = [log for log in newer if self._error(log)]
        if failed:
            return Step(name, "failed", failed[0])
        if not newer:
            return Step(name, "waits")
        log = max(newer, key=lambda one: written[one])
        age = max(0.0, time.time() - written[log] / 1e9)
        return Step(name, "at work", log, self._kept.read(log, last_line) or "", age)

    def _error(self, log: Path | None) -> str:
        return (log and self._kept.read(log, error_at_the_end)) or ""


def _read_summary(path: Path) -> Summary:
    return read_summary(path.parent)


def last_line(log: Path) -> str:
    """Of what a step says; '' while there is nothing but the command."""
    lines = last_bytes(log, _TAIL_BYTES).decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip() if lines and not lines[-1].startswith("#") else ""
