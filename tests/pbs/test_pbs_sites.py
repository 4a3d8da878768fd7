"""The literal command `snakemake --profile pbs` on a PBS whose server bears a site's name, on the
plugin's stand-in.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from standin import Queue, StandIn

from conftest import Campaign
from support.campaign_runs import ROOT, snakemake, working_folder
from support.demo import GATHERED

pytestmark = [pytest.mark.workflow, pytest.mark.usefixtures("lean")]

POLARIS = "polaris-pbs-01.hsn.cm.polaris.alcf.anl.gov"
POLARIS_WORDS = (
    "-N {rule} -q {queue} -A MyProject -l select={nodes}:system=polaris -l place=scatter -l "
    "walltime={time}"
    " -l filesystems=home:eagle -j oe -o LOG -r {again} -W umask=022 -k doe"
)
"""As the profile with everything written out submitted, before Polaris was recognized."""
SOPHIA_WORDS = (
    "-N {rule} -q by-gpu -A MyProject -l select=1 -l walltime={time} -l filesystems=home:eagle -j "
    "oe -o LOG -r n"
    " -W umask=022"
)


def serve(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, pbs: StandIn, *queues: str
) -> None:
    """Let the PBS here have a server of this name and these queues."""
    (folder / "pbs.conf").write_text(f"PBS_EXEC=/opt/pbs\nPBS_SERVER={name}\n")
    monkeypatch.setenv("PBS_CONF_FILE", str(folder / "pbs.conf"))
    for variable in ("PBS_DEFAULT", "PBS_SERVER", "PBS_ACCOUNT", "PROJECT"):
        monkeypatch.delenv(variable, raising=False)
    pbs.config.queues = {queue: Queue(queue) for queue in queues}
    pbs.config.default_queue = queues[0]


def asked(pbs: StandIn) -> dict[str, list[str]]:
    """The words of qsub by rule, with LOG for the log and without what is new in every run."""
    found: dict[str, list[str]] = {}
    for job in pbs.jobs.values():
        words = re.sub(
            r"^(-N [a-z]+)\S*", r"\1", re.sub(r"-o \S+", "-o LOG", job.arguments)
        ).rpartition(" ")[0]
        found.setdefault(words.split()[1], []).append(words)
    return found


def test_polaris_by_the_literal_command(
    campaign: Campaign,
    undisturbed: Campaign,
    pbs: StandIn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A whole node of four workers, up to the validated master, with nothing but the account and
    --config keys.
    """
    serve(POLARIS, tmp_path, monkeypatch, pbs, "preemptable")
    said = campaign.run("pbs", "--pbs-account", "MyProject", buckets=16)
    first = next(line for line in said.splitlines() if line.startswith("plm-embed: "))
    assert first == (
        f"plm-embed: ALCF Polaris (by the PBS server {POLARIS}): queue preemptable, "
        "a submission is 1 node x 4 GPUs, 32 cores, 400 GB, 6:00 h and 16 buckets, charged to "
        "MyProject"
    )
    both = {"queue": "preemptable", "nodes": 1, "again": "y"}
    words = asked(pbs)
    assert words.pop("embed") == [POLARIS_WORDS.format(rule="embed", time="06:00:00", **both)]
    assert words == {
        rule: [POLARIS_WORDS.format(rule=rule, time=time, **both)]
        for rule, time in {
            "deduplicate": "00:30:00",
            "reference": "00:30:00",
            "gather": "00:30:00",
            "validate": "00:30:00",
            "report": "01:00:00",
        }.items()
    }
    (log,) = [job.script for job in pbs.jobs.values() if job.name.startswith("embed-0000")]
    assert "export TMPDIR=/tmp" in log
    assert campaign.master() == undisturbed.master()
    assert (campaign.vectors / "checksums.sha256").exists()
    assert len(list((campaign.vectors / "submissions").glob("*.json"))) == 1
    called = (
        campaign.folder / "results" / "logs" / "esm2_t3_untrained" / "embed" / "0000.log"
    ).read_text()
    assert "--nodes 1 --workers 4 " in called and "--minutes 360" in called


def planned(folder: Path, *options: str, **config: object) -> tuple[int, str, dict[str, str]]:
    """A dry run of a short name: exit status, what was said, and the resources of the first embed
    job.
    """
    done = snakemake(
        working_folder(folder),
        "--profile",
        str(ROOT / "profiles" / "pbs"),
        "-n",
        *options,
        **config,
    )
    found = re.search(
        r"^rule embed:.*?^    resources: (.*?)$", done.stdout, re.MULTILINE | re.DOTALL
    )
    pairs = (one.partition("=") for one in (found[1] if found else "").split(", "))
    return done.returncode, done.stdout, {name: value for name, _, value in pairs}


def test_sophia_gives_a_gpu_to_every_job_and_a_deleted_one_comes_again(
    campaign: Campaign,
    undisturbed: Campaign,
    pbs: StandIn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serve("sophia-pbs-01.lab.alcf.anl.gov", tmp_path, monkeypatch, pbs, "by-gpu")
    monkeypatch.setenv("PBS_ACCOUNT", "MyProject")
    with (campaign.folder / "out").open("w") as out:
        running = subprocess.Popen(campaign.command("pbs", GATHERED), stdout=out, stderr=out)
    while not list(campaign.vectors.glob("store/*/fingerprint.json")) and running.poll() is None:
        time.sleep(0.1)
    with pbs.lock:
        for job in [
            job for job in pbs.jobs.values() if job.name.startswith("embed") and job.state == "R"
        ][:1]:
            pbs.delete(job)
    running.wait(timeout=900)
    assert running.returncode == 0, (campaign.folder / "out").read_text()
    words = asked(pbs)
    once = SOPHIA_WORDS.format(rule="embed", time="06:00:00")
    assert words["embed"] == [once] * 3  # two buckets, one of them twice
    assert words["deduplicate"] == [SOPHIA_WORDS.format(rule="deduplicate", time="00:30:00")]
    assert campaign.master() == undisturbed.master()


def test_gadi_takes_the_project_that_its_users_have_set(
    tmp_path: Path, pbs: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("gadi-pbs", tmp_path, monkeypatch, pbs, "gpuvolta", "normal")
    code, said, _ = planned(tmp_path / "without")
    assert code == 0
    assert "before you submit: NCI Gadi charges an account: add --pbs-account NAME" in said
    monkeypatch.setenv("PROJECT", "ab12")
    code, said, resources = planned(tmp_path / "with")
    assert (
        "queue gpuvolta, a submission is 1 GPU, 12 cores, 6:00 h and 1 bucket, charged to ab12"
        in said
    )
    assert "before you submit" not in said
    assert (resources["gpu"], resources["runtime"], resources["longest_minutes"]) == (
        "1",
        "360",
        "2880",
    )


def test_a_server_that_no_file_names_gets_one_gpu_per_job(
    tmp_path: Path, pbs: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("pbs01", tmp_path, monkeypatch, pbs, "workq")
    code, said, resources = planned(tmp_path / "work")
    assert code == 0
    assert "plm-embed: this PBS (no site file names the PBS server pbs01, nor the host " in said
    assert [resources[name] for name in ("nodes", "gpu", "buckets")] == ["1", "1", "1"]


def test_an_account_that_is_missing_is_told_before_anything_runs(
    tmp_path: Path, pbs: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(POLARIS, tmp_path, monkeypatch, pbs, "preemptable")
    campaign = Campaign(working_folder(tmp_path / "campaign"))
    done = snakemake(campaign.folder, "--profile", str(ROOT / "profiles" / "pbs"))
    assert done.returncode == 1
    assert (
        "ALCF Polaris charges an account: add --pbs-account NAME, or `pbs-account: NAME` to the "
        "profile" in done.stdout
    )
    assert not pbs.jobs and not (campaign.vectors / "weights.json").exists()
    assert (
        snakemake(
            campaign.folder, "--profile", str(ROOT / "profiles" / "pbs"), "--unlock"
        ).returncode
        == 0
    )


def test_a_laptop_plans_what_polaris_will_be_asked_for(tmp_path: Path) -> None:
    code, said, resources = planned(tmp_path / "work", site="polaris", buckets=64)
    assert code == 0
    assert (
        "plm-embed: ALCF Polaris (as you say): queue preemptable, a submission is 1 node x 4 GPUs"
        in said
    )
    assert "64 buckets in 4 submissions" in said
    wanted = {"nodes": "1", "gpu": "4", "runtime": "360", "mem_mb": "400000", "buckets": "16"}
    assert wanted.items() <= resources.items()


def test_what_the_user_sets_wins(tmp_path: Path) -> None:
    options = (
        "--pbs-site",
        "polaris",
        "--pbs-account",
        "x",
        "--set-threads",
        "embed=16",
        "--set-resources",
    )
    code, said, resources = planned(
        tmp_path / "work", *options, "embed:nodes=2", "embed:runtime=90", buckets=64
    )
    assert code == 0
    assert (
        "a submission is 2 nodes x 4 GPUs, 16 cores, 400 GB, 1:30 h and 32 buckets, charged to x"
        in said
    )
    assert "64 buckets in 2 submissions" in said
    assert {"nodes": "2", "gpu": "4", "runtime": "90", "buckets": "32"}.items() <= resources.items()
    _, said, resources = planned(tmp_path / "other", *options, "embed:buckets=8", buckets=64)
    assert resources["buckets"] == "8" and "64 buckets in 8 submissions" in said


BY_PROFILE = [
    (("--profile", str(ROOT / "profiles" / f"polaris-{queue}")), *wanted)
    for queue, *wanted in (
        ("debug", "1", "60", "16"),
        ("capacity", "4", "1440", "64"),
        ("prod", "10", "180", "160"),
    )
]
BY_OPTION = (("--pbs-site", "polaris", "--pbs-queue", "capacity"), "4", "1440", "64")


@pytest.mark.parametrize(("chosen", "nodes", "minutes", "buckets"), [*BY_PROFILE, BY_OPTION])
def test_another_queue_is_a_profile_of_ten_lines_or_an_option(
    chosen: tuple[str, ...], nodes: str, minutes: str, buckets: str, tmp_path: Path
) -> None:
    if chosen[0] == "--profile":
        assert len(Path(chosen[1], "profile.yaml").read_text().splitlines()) <= 10
    account = ("--pbs-account", "x")
    _, _, resources = planned(tmp_path / "work", *chosen, *account, speed={"device": "cpu"})
    wanted = {"nodes": nodes, "gpu": "4", "runtime": minutes, "buckets": buckets}
    assert (wanted | {"mem_mb": "400000"}).items() <= resources.items()


def test_a_profile_that_is_written_submits_to_its_queue(campaign: Campaign, pbs: StandIn) -> None:
    words = ("profile", "--account", "lab", "--queue", "debug", "--output", "mine")
    subprocess.run(
        [sys.executable, "-m", "plm_embed", *words], cwd=campaign.folder, check=True,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    said = campaign.run(str(campaign.folder / "mine"), "--until", "deduplicate")
    assert "queue debug" in said
    (job,) = pbs.jobs.values()
    assert "-q debug -A lab" in job.arguments
    assert (campaign.folder / "results" / "sequences" / "summary.json").is_file()
