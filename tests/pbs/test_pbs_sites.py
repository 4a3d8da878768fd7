"""The literal command `snakemake --profile pbs` on Polaris, and a profile for another PBS, on the
plugin's stand-in.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from standin import Queue, StandIn

from conftest import Campaign
from support.demo import GATHERED

pytestmark = [pytest.mark.workflow, pytest.mark.usefixtures("lean")]

POLARIS = "polaris-pbs-01.hsn.cm.polaris.alcf.anl.gov"
WORDS = (
    r"-N \S+ -q preemptable -A MyProject -l select=1:system=polaris -l place=scatter -l "
    r"walltime=(\S+) -l filesystems=home:eagle -j oe -o \S+ -r y -W umask=022 -k doe \S+"
)
EMBED = ["nodes=1", "gpu=4", "runtime=360"]


def test_polaris_by_the_literal_command(
    campaign: Campaign,
    undisturbed: Campaign,
    pbs: StandIn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every job gets a whole node."""
    (tmp_path / "pbs.conf").write_text(f"PBS_EXEC=/opt/pbs\nPBS_SERVER={POLARIS}\n")
    monkeypatch.setenv("PBS_CONF_FILE", str(tmp_path / "pbs.conf"))
    for variable in ("PBS_DEFAULT", "PBS_SERVER", "PBS_ACCOUNT"):
        monkeypatch.delenv(variable, raising=False)
    pbs.config.queues = {"preemptable": Queue("preemptable")}
    resources = ["--set-resources", *(f"embed:{words}" for words in EMBED)]
    said = campaign.run("pbs", GATHERED, "--pbs-account", "MyProject", *resources, buckets=1)
    assert "PBS site: polaris, " in said
    asked = {job.name: re.fullmatch(WORDS, job.arguments) for job in pbs.jobs.values()}
    assert all(asked.values()), [job.arguments for job in pbs.jobs.values()]
    (embed,) = [job for job in pbs.jobs.values() if job.name.startswith("embed-")]
    walltime = asked[embed.name]
    assert walltime and walltime[1] == "06:00:00"
    assert "export TMPDIR=/tmp" in embed.script
    assert campaign.master() == undisturbed.master()


def test_a_profile_that_is_written_submits_to_its_queue(campaign: Campaign, pbs: StandIn) -> None:
    pbs.config.queues["long"] = Queue("long")
    words = ("profile", "pbs", "--account", "lab", "--queue", "long", "--output", "mine")
    subprocess.run(
        [sys.executable, "-m", "plm_embed", *words], cwd=campaign.folder, check=True,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    campaign.run(str(campaign.folder / "mine"), "--until", "deduplicate")
    (job,) = pbs.jobs.values()
    assert "-q long -A lab" in job.arguments
    assert (campaign.folder / "results" / "sequences" / "summary.json").is_file()
