"""Campaigns through a real SLURM to which one to three things happen at random instants; see
`disturbances`.

    .venv/bin/python tests/slurm/random_campaigns.py --campaigns 40 --seed 1
    .venv/bin/python tests/slurm/random_campaigns.py --seed 1 --only 17

After each end the command is repeated as a user would, until it succeeds. Then master, index and
records must be those of an undisturbed run, and nothing may be left behind. Prints a line per
campaign; exit status 1 if one is not right.
"""

import argparse
import contextlib
import hashlib
import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
from cluster import NODES, Cluster, ClusterError
from disks import Disk
from disturbances import DISTURBANCES, ON_A_DISK, Disturbance, NotYetError, Scene
from slurm_campaign import MODEL, Campaign

SEQUENCES = 120
LENGTHS = (500, 2000)
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
            first.folder / "second", first.cluster, sequences=first.sequences, lengths=first.lengths
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
    """What became of a campaign. ends: exit status and seconds of each call; wrong: what differs;
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
    """What users read: the master, but for the commit, and digests of the tables."""
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
            if not {"claims", "heartbeats"} & set(path.parts):
                with contextlib.suppress(OSError):
                    files.append((str(path), path.stat().st_size))
    with contextlib.suppress(ClusterError):
        files.append((scene.cluster.run("squeue", "--noheader", "--format=%i %T", timeout=20), 0))
    return tuple(sorted(files))


class Run:
    """One campaign, or two at once, from the first call of Snakemake to the last."""

    def __init__(
        self, scene: Scene, planned: list[tuple[float, Disturbance]], result: Result
    ) -> None:
        self.scene = scene
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
        scene.processes = [campaign.start() for campaign in scene.campaigns]
        moved, last = time.monotonic(), _progress(scene)
        while True:
            time.sleep(0.5)
            self._disturb()
            self._end_what_is_over()
            ended = [self._repeat(number) for number in range(len(scene.campaigns))]
            if all(ended):
                return True
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
        """Whether a campaign has succeeded; one that ended otherwise is started again, as its user
        would.
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
        for what, do in self.scene.mend:
            do()
            self.tell(what)
        self.scene.mend.clear()
        self.scene.later = [each for each in self.scene.later if each[1] != "disk freed"]
        if "--unlock" in said or code == -signal.SIGKILL:
            campaign.finish(campaign.start("--unlock"))
        self._started[number] = time.monotonic()
        self.scene.processes[number] = campaign.start()
        return False

    def _cancel_what_waits_for_ever(self) -> None:
        with contextlib.suppress(ClusterError):
            for line in self.scene.cluster.run(
                "squeue", "--noheader", "--states=PD", "--format=%i|%r|%l|%k"
            ).splitlines():
                job, reason, limit, rule = line.split("|", 3)
                if reason in FOR_EVER:  # noted, and cancelled as a user would
                    self.result.wrong.append(f"{rule} waits for ever ({reason}, limit {limit})")
                    self.scene.cluster.run("scancel", job)

    def _scenery(self) -> str:
        jobs = self.scene.cluster.run("squeue", "--noheader", "--format=%i %T %r %k").replace(
            "\n", ", "
        )
        last = self.scene.campaigns[0].words().strip().splitlines()[-1:]
        return f"jobs: {jobs or 'none'}; last words: {' '.join(last)[:120]}"


def check(scene: Scene, result: Result, undisturbed: Campaign, *, shared_store: bool) -> None:
    """Compare with the undisturbed run, and note what is left behind."""
    cluster = scene.cluster
    with contextlib.suppress(ClusterError):
        cluster.wait_for("the end of all jobs", lambda: not cluster.jobs())
    expected = contents(undisturbed)
    for campaign in scene.campaigns:
        try:
            found = contents(campaign)
        except OSError as error:
            result.wrong.append(str(error))
            continue
        result.wrong += [
            f"{name} differs" for name in expected if found.get(name) != expected[name]
        ]
        if not shared_store:
            result.again += campaign.computed_again()
        results = campaign.folder / "results"
        left = {"claims": list(results.rglob("claims/*")), "files": list(results.rglob(".tmp-*"))}
        result.left += [f"{len(paths)} {what}" for what, paths in left.items() if paths]
    jobs: dict[str, str] = {}
    cluster.wait_for("an answer of slurmctld", lambda: jobs.update(cluster.jobs()) is None)
    result.wrong += [f"job {job} is left on {node or 'no node'}" for job, node in jobs.items()]
    scratch = [path for node in NODES for path in (cluster.folder / "scratch" / node).iterdir()]
    result.left += [f"{len(scratch)} scratch folders"] * bool(scratch)
    working = [process for node in NODES for process in cluster.processes(node)]
    result.wrong += [f"{len(working)} processes are left"] * bool(working)


def disturbed(
    undisturbed: Campaign,
    folder: Path,
    planned: list[tuple[float, Disturbance]],
    *,
    random: Random,
    company: str = "",
) -> Result:
    """Run a campaign like the undisturbed one in `folder`, and let the planned things happen to it.

    company: "clone" for a second campaign in the same working folder, "store" for one that shares
    the store.
    """
    cluster, result = undisturbed.cluster, Result(folder.name)

    def new(name: str) -> Campaign:
        made = Campaign(
            folder.with_name(name),
            cluster,
            sequences=undisturbed.sequences,
            lengths=undisturbed.lengths,
        )
        made.adopt_weights(undisturbed)
        return made

    with contextlib.ExitStack() as leave:
        campaigns, disk = [new(folder.name)], None
        if any(getattr(what, "__wrapped__", what) in ON_A_DISK for _, what in planned):
            disk = leave.enter_context(Disk(cluster, folder.with_name(f"{folder.name}-disk")))
            results = folder / "results"
            shutil.copytree(
                results, disk.folder, dirs_exist_ok=True
            )  # the record of the weights is there already
            os.sync()  # it is older than the disturbance, and must not be lost with it
            shutil.rmtree(results)
            results.symlink_to(disk.folder)
        if company == "clone":
            campaigns.append(Neighbor(campaigns[0]))
        elif company == "store":
            campaigns.append(new(f"{folder.name}-b"))
            for each in campaigns:
                with (each.folder / "config" / "config.yaml").open("a") as config:
                    config.write(f"store: {folder / 'results' / MODEL / 'store'}\n")
        if company:
            result.told.append({"clone": "two in one clone", "store": "two share a store"}[company])
        scene = Scene(cluster, campaigns, random, disk)
        try:
            if Run(scene, planned, result).to_the_end():
                check(scene, result, undisturbed, shared_store=company == "store")
        finally:
            for _, _, end in scene.later:
                with contextlib.suppress(ClusterError):
                    end()
            for each, process in zip(campaigns, scene.processes, strict=False):
                each.abandon(process)
    return result


def plan(
    number: int, random: Random, seconds: float
) -> tuple[list[tuple[float, Disturbance]], str]:
    """One to three things and their instants; each kind comes first once in as many campaigns as
    there are kinds.
    """
    chosen = [DISTURBANCES[number % len(DISTURBANCES)]]
    others = [each for each in DISTURBANCES if each not in ON_A_DISK]
    chosen += random.sample(others, random.choice([0, 1, 1, 2]))
    company = random.choice(["", "", "", "", "clone", "store"])
    if any(each in ON_A_DISK for each in chosen):
        company = ""
    return [(random.uniform(5, seconds), each) for each in chosen], company


def make_undisturbed(cluster: Cluster, folder: Path) -> tuple[Campaign, float]:
    """The campaign that nothing disturbs, and the seconds that it takes without its weights."""
    first = Campaign(folder, cluster, sequences=SEQUENCES, lengths=LENGTHS)
    with first.running("weights"):
        pass
    began = time.monotonic()
    with first.running():
        pass
    return first, time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--campaigns", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", type=int, nargs="+", help="some of those campaigns, by their numbers"
    )
    parser.add_argument("--keep", type=Path, help="folder for the campaigns, which stay there")
    options = parser.parse_args()
    bad = 0
    numbers = options.only or range(options.campaigns)
    with contextlib.ExitStack() as leave:
        cluster = leave.enter_context(Cluster())
        temporary = Path(leave.enter_context(tempfile.TemporaryDirectory(prefix="plm-campaigns-")))
        folder = options.keep or temporary
        for partition, minutes in (
            ("gpu", 30),
            ("cpu", 60),
        ):  # short enough for retries to run into it
            cluster.run("scontrol", "update", f"partitionname={partition}", f"MaxTime={minutes}")
        undisturbed, seconds = make_undisturbed(cluster, folder / "undisturbed")
        print(f"undisturbed: {seconds:.0f} s", flush=True)
        for number in numbers:
            random = Random(options.seed * 10_000 + number)
            planned, company = plan(number, random, seconds)
            result = disturbed(
                undisturbed,
                folder / f"{options.seed}.{number}",
                planned,
                random=random,
                company=company,
            )
            bad += bool(result.wrong)
            print(result, flush=True)
    print(f"{len(numbers)} campaigns, {bad} not as they should be")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
