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
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from cluster import Cluster
from daemons import NODES, ClusterError
from disks import Disk
from disturbances import DISTURBANCES, ON_A_DISK, Disturbance, Scene
from disturbed_run import Neighbor, Result, Run, contents
from slurm_campaign import Campaign
from snakemake_run import MODEL

SEQUENCES = 120
LENGTHS = (500, 2000)


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
        left = {"files": list(results.rglob(".tmp-*"))}
        result.left += [f"{len(paths)} {what}" for what, paths in left.items() if paths]
    jobs: dict[str, str] = {}
    cluster.wait_for("an answer of slurmctld", lambda: jobs.update(cluster.jobs()) is None)
    result.wrong += [f"job {job} is left on {node or 'no node'}" for job, node in jobs.items()]
    scratch = [path for node in NODES for path in (cluster.folder / "scratch" / node).iterdir()]
    result.left += [f"{len(scratch)} scratch folders"] * bool(scratch)
    working = [process for node in NODES for process in cluster.processes(node)]
    result.wrong += [f"{len(working)} processes are left"] * bool(working)


def like(undisturbed: Campaign, folder: Path) -> Campaign:
    """A campaign of the same sequences, with its weights."""
    campaign = Campaign(
        folder, undisturbed.cluster, sequences=undisturbed.sequences, lengths=undisturbed.lengths
    )
    campaign.adopt_weights(undisturbed)
    return campaign


def with_company(first: Campaign, company: str, undisturbed: Campaign) -> list[Campaign]:
    """A campaign, and perhaps a second one: "clone", in the same working folder, or "store", which
    shares the store.
    """
    if company == "clone":
        return [first, Neighbor(first)]
    if company == "store":
        both = [first, like(undisturbed, first.folder.with_name(f"{first.folder.name}-b"))]
        for each in both:
            with (each.folder / "config" / "config.yaml").open("a") as config:
                config.write(f"store: {first.folder / 'results' / MODEL / 'store'}\n")
        return both
    return [first]


def disturbed(
    campaigns: list[Campaign],
    undisturbed: Campaign,
    planned: list[tuple[float, Disturbance]],
    *,
    random: Random,
    shared_store: bool = False,
    target: str = "all",
) -> Result:
    """Run campaigns like the undisturbed one, and let the planned things happen to them."""
    cluster, folder = undisturbed.cluster, campaigns[0].folder
    result = Result(folder.name)
    with contextlib.ExitStack() as leave:
        disk = None
        if any(getattr(what, "__wrapped__", what) in ON_A_DISK for _, what in planned):
            disk = leave.enter_context(Disk(cluster, folder.with_name(f"{folder.name}-disk")))
            results = folder / "results"
            # the record of the weights is there already
            shutil.copytree(results, disk.folder, dirs_exist_ok=True)
            os.sync()  # it is older than the disturbance, and must not be lost with it
            shutil.rmtree(results)
            results.symlink_to(disk.folder)
        scene = Scene(cluster, campaigns, random, disk)
        try:
            if Run(scene, planned, result, target).to_the_end():
                check(scene, result, undisturbed, shared_store=shared_store)
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
        undisturbed = Campaign(
            folder / "undisturbed", cluster, sequences=SEQUENCES, lengths=LENGTHS
        )
        with undisturbed.running(f"results/{MODEL}/weights.json"):
            pass
        began = time.monotonic()
        with undisturbed.running():
            pass
        seconds = time.monotonic() - began  # without its weights
        print(f"undisturbed: {seconds:.0f} s", flush=True)
        for number in numbers:
            random = Random(options.seed * 10_000 + number)
            planned, company = plan(number, random, seconds)
            first = like(undisturbed, folder / f"{options.seed}.{number}")
            result = disturbed(
                with_company(first, company, undisturbed),
                undisturbed,
                planned,
                random=random,
                shared_store=company == "store",
            )
            bad += bool(result.wrong)
            print(*filter(None, [company, str(result)]), sep=" | ", flush=True)
    print(f"{len(numbers)} campaigns, {bad} not as they should be")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
