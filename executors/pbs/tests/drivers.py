"""The plugin's submitter and its watch, each as a test drives it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from shell import Cut, submit, until
from snakemake_executor_plugin_pbs.commands import Answer, Pbs
from snakemake_executor_plugin_pbs.ledger import Entry, Ledger
from snakemake_executor_plugin_pbs.request import Request
from snakemake_executor_plugin_pbs.submit import Submitter
from snakemake_executor_plugin_pbs.verdict import Verdict
from snakemake_executor_plugin_pbs.watch import Job, Watch
from standin import StandIn


@dataclass
class Driver:
    """A submitter as one run of Snakemake has it, and what it called back."""

    folder: Path
    pbs: StandIn
    submitted: dict[str, tuple[str, bool]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    held: int = 0

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.folder / "ledger")
        self.submitter = Submitter(
            pbs=Cut(self.pbs),
            ledger=self.ledger,
            submitted=lambda request, entry, adopted: self.submitted.update(
                {request.name: (entry.id or "", adopted)}
            ),
            refused=lambda request, error: self.refused.update({request.name: str(error)}),
            in_queue=lambda _queue: self.held,
            crashed=lambda error: self.messages.append(repr(error)),
            say=self.messages.append,
            pause=0.05,
        )
        self.submitter.start()

    def request(
        self, name: str = "train-0", *words: str, queue: str = "workq", work: str = "w"
    ) -> Request:
        script = self.folder / f"{name}.sh"
        script.write_text("#!/bin/sh\nsleep 600\n")
        log = self.folder / "logs" / f"{name}.log"
        options = ("-N", name, "-q", queue, "-j", "oe", "-o", str(log), *words)
        return Request(name, work, queue, None, options, script, log)

    def add(self, request: Request) -> Request:
        self.submitter.add(request)
        return request

    def wait(self, name: str = "train-0") -> tuple[str, bool]:
        until(lambda: name in self.submitted or name in self.refused)
        return self.submitted[name]


Make = Callable[[], Driver]


class Looker:
    """A watch with its ledger, and jobs whose scripts record their end as the plugin's do."""

    def __init__(self, folder: Path, pbs: StandIn, unknown_seconds: float = 0.3) -> None:
        self.folder, self.pbs = folder, Cut(pbs)
        self.ledger = Ledger(folder / "ledger")
        self.messages: list[str] = []
        self.watch = Watch(self.pbs, self.ledger, unknown_seconds, self.messages.append)
        self.jobs: list[Job] = []

    def job(self, command: str, *words: str, record: bool = True) -> Job:
        name = f"job-{len(self.jobs)}"
        end = self.ledger.end(name)
        last = f'code=$?\necho "$PBS_JOBID $code" > {end}\nexit $code\n' if record else ""
        number = submit(
            self.folder,
            f"#!/bin/sh\necho $PBS_JOBID > {end}\n({command})\n{last}",
            "-N",
            name,
            *words,
        )
        self.ledger.write(Entry(name, "w", "workq", "/log", time.time(), f"{number}.pbs01"))
        self.jobs.append(Job(f"{number}.pbs01", name, "workq", "/log"))
        return self.jobs[-1]

    def look(self) -> dict[str, Verdict]:
        return self.watch.look(self.jobs)

    def until(self, job: Job, kind: str, seconds: float = 120.0) -> Verdict:
        end = time.monotonic() + seconds
        while (verdict := self.look()[job.id]).kind == "running" and time.monotonic() < end:
            time.sleep(0.02)
        assert verdict.kind == kind
        return verdict


def answering(monkeypatch: pytest.MonkeyPatch, answer: Callable[[tuple[str, ...]], Answer]) -> None:
    """Give answers that the stand-in can't be made to give."""
    monkeypatch.setattr(Pbs, "call", lambda _self, *words: answer(words))
