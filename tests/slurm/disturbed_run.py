"""A campaign, or two at once, under disturbances: repeated as its user would until it has
succeeded.
"""

import contextlib
import hashlib
import re
import shutil
import signal
import time
from dataclasses import dataclass, field

import pyarrow.parquet as pq
from daemons import ClusterError
from disturbances import Disturbance, NotYetError, Scene
from slurm_campaign import Campaign
from snakemake_run import MODEL

REPETITIONS = 8
PATIENCE = 420.0
"""Seconds without any progress, longer than a stale claim, a wait between retries or the plugin's
own waits.
"""

FOR_EVER = (
    "PartitionTimeLimit",
    "PartitionNodeLimit",
    "BadConstraints",
    "InvalidAccount",
    "InvalidQOS",
)
"""Reasons for which a job waits until somebody cancels it."""


class Neighbor(Campaign):
    """A second campaign in the working folder, the clone, of another one: its own configuration and
    results.
    """

    def __init__(self, first: Campaign) -> None:
        super().__init__(
            first.folder / "second",
            first.cluster,
            buckets=first.buckets,
            sequences=first.sequences,
            lengths=first.lengths,
        )
        self._clone = first.folder
        with (self.folder / "config" / "config.yaml").open("a") as config:
            config.write("results: second/results\n")

    def command(self, *options: str) -> list[str]:
        config = self.folder / "config" / "config.yaml"
        return [
            *super().command(*options),
            "--directory",
            str(self._clone),
            "--configfile",
            str(config),
        ]


@dataclass
class Result:
    """Outcome of a campaign. ends: exit status and seconds of each call; wrong: what differs;
    left: behind.
    """

    name: str
    told: list[str] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    again: int = 0
    left: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        state = "; ".join(self.wrong) or "right"
        return " | ".join(
            [
                self.name,
                "; ".join(self.told),
                ", ".join(self.ends),
                state,
                f"{self.again} again",
                "; ".join(self.left),
            ]
        )


def contents(campaign: Campaign) -> dict[str, object]:
    """Return what users read: the master, but for the commit, and digests of the tables."""
    results = campaign.folder / "results"
    found = campaign.master()
    for name in (f"{MODEL}/master_esm2_embeddings.parquet", f"{MODEL}/records.parquet"):
        found[name] = hashlib.sha256(
            repr(pq.read_table(results / name).to_pylist()).encode()
        ).hexdigest()
    return found


def _progress(scene: Scene) -> tuple[object, ...]:
    """Changes as long as a campaign gets on: files of results but signs of life, and the states of
    jobs.
    """
    files = []
    for campaign in scene.campaigns:
        for path in (campaign.folder / "results").rglob("*"):
            if "heartbeats" not in path.parts:
                with contextlib.suppress(OSError):
                    files.append((str(path), path.stat().st_size))
    with contextlib.suppress(ClusterError):
        files.append((scene.cluster.run("squeue", "--noheader", "--format=%i %T", timeout=20), 0))
    return tuple(sorted(files))


class Run:
    """One campaign, or two at once, from the first call of Snakemake to the last."""

    def __init__(
        self, scene: Scene, planned: list[tuple[float, Disturbance]], result: Result, target: str
    ) -> None:
        self.scene = scene
        self.target = target
        self.result = result
        self._planned = sorted(planned, key=lambda each: each[0])
        self._began = time.monotonic()
        self._started = [self._began] * len(scene.campaigns)
        self._seen = [0] * len(scene.campaigns)

    def tell(self, what: str) -> None:
        self.result.told.append(f"{time.monotonic() - self._began:.0f}s {what}")

    def to_the_end(self) -> bool:
        """Disturb and repeat until every campaign has succeeded; False when one hangs or never
        succeeds.
        """
        scene = self.scene
        scene.processes = [campaign.start(self.target) for campaign in scene.campaigns]
        moved, last = time.monotonic(), _progress(scene)
        while True:
            time.sleep(0.5)
            self._disturb()
            self._end_what_is_over()
            ended = [self._repeat(number) for number in range(len(scene.campaigns))]
            if all(ended):
                if all(what != "config as before" for what, _ in scene.mend):
                    return True
                self._start_again()  # these are the results of the edit
            if any(len(self.result.ends) > REPETITIONS * len(scene.campaigns) for _ in ended):
                self.result.wrong.append(f"not finished after {len(self.result.ends)} calls")
                return False
            if time.monotonic() - moved > 15 and (now := _progress(scene)) != last:
                moved, last = time.monotonic(), now
            if time.monotonic() - moved > PATIENCE and not scene.later:
                self.result.wrong.append(
                    f"HANG: no progress for {PATIENCE:.0f} s; {self._scenery()}"
                )
                return False
            self._cancel_what_waits_for_ever()
            self._resume_drained_nodes()

    def _disturb(self) -> None:
        for each in list(self._planned):
            if time.monotonic() - self._began >= each[0]:
                with contextlib.suppress(NotYetError, ClusterError):
                    self.tell(each[1](self.scene))
                    self._planned.remove(each)

    def _end_what_is_over(self) -> None:
        for each in list(self.scene.later):
            if time.monotonic() >= each[0]:
                self.scene.later.remove(each)
                try:
                    each[2]()
                    self.tell(each[1])
                except ClusterError as error:  # a node that came back by itself cannot be resumed
                    self.tell(f"not {each[1]}: {str(error).splitlines()[-1]}")

    def _repeat(self, number: int) -> bool:
        """Return whether a campaign has succeeded; one that ended otherwise is started again, as
        its user would.
        """
        campaign, process = self.scene.campaigns[number], self.scene.processes[number]
        code = process.poll()
        if code is None or (code == 0 and self._seen[number] < 0):
            return code == 0
        self.result.ends.append(f"{code}/{time.monotonic() - self._started[number]:.0f}s")
        if code == 0:
            self._seen[number] = -1
            return True
        said = campaign.words()[self._seen[number] :]
        self._seen[number] += len(said)
        if "Traceback (most recent call last)" in said and code > 0:
            self.result.told.append("a traceback on the screen")
        for damaged in re.findall(r"delete (\S+) and run the campaign again", said):
            for folder in {campaign.folder, self.scene.campaigns[0].folder}:
                shutil.rmtree(folder / damaged, ignore_errors=True)
        self._mend()
        if "--unlock" in said or code == -signal.SIGKILL:
            campaign.finish(campaign.start("--unlock"))
        self._started[number] = time.monotonic()
        self.scene.processes[number] = campaign.start(self.target)
        return False

    def _start_again(self) -> None:
        """Take an edit back that came in time for all jobs, and repeat the command as the workflow
        advises: Snakemake's notes are those of the settings that it began with.
        """
        self._mend()
        for number, campaign in enumerate(self.scene.campaigns):
            self._seen[number] = len(campaign.words())
            self._started[number] = time.monotonic()
            self.scene.processes[number] = campaign.start(self.target, "--forcerun", "embed")

    def _mend(self) -> None:
        for what, do in self.scene.mend:
            do()
            self.tell(what)
        self.scene.mend.clear()
        self.scene.later = [each for each in self.scene.later if each[1] != "disk freed"]

    def _cancel_what_waits_for_ever(self) -> None:
        with contextlib.suppress(ClusterError):
            for line in self.scene.cluster.run(
                "squeue", "--noheader", "--states=PD", "--format=%i|%r|%l|%k"
            ).splitlines():
                job, reason, limit, rule = line.split("|", 3)
                if reason in FOR_EVER:  # noted, and cancelled as a user would
                    self.result.wrong.append(f"{rule} waits for ever ({reason}, limit {limit})")
                    self.scene.cluster.run("scancel", job)

    def _resume_drained_nodes(self) -> None:
        """Do the work of an administrator: a killed controller may give out the number of a job
        anew while the job runs, and SLURM then drains the node.
        """
        with contextlib.suppress(ClusterError):
            drained = ("sinfo", "--noheader", "--list-reasons", "--Node", "--format=%n|%E")
            for line in self.scene.cluster.run(*drained).splitlines():
                node, reason = line.split("|", 1)
                if reason.startswith("Duplicate jobid"):
                    resume = ("scontrol", "update", f"nodename={node}", "state=resume")
                    self.scene.cluster.run(*resume)
                    self.tell(f"{node} resumed ({reason})")

    def _scenery(self) -> str:
        jobs = self.scene.cluster.run("squeue", "--noheader", "--format=%i %T %r %k").replace(
            "\n", ", "
        )
        last = self.scene.campaigns[0].words().strip().splitlines()[-1:]
        return f"jobs: {jobs or 'none'}; last words: {' '.join(last)[:120]}"
