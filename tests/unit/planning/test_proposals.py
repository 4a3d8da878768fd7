"""Submissions within a site's limits, and the command for them."""

from pathlib import Path

import pytest
import yaml

from plm_embed.errors import PlmEmbedError
from plm_embed.keys import MAX_BUCKETS
from plm_embed.models.registry import MODELS
from plm_embed.planning import plan, proposals
from plm_embed.sites.data import read_site
from support.campaign_runs import ROOT
from support.plans import planned, text

M650 = MODELS["esm2_t33_650M_UR50D"]


@pytest.mark.parametrize("gpu_hours", [0.0, 0.3, 40.0, 5000.0])
@pytest.mark.parametrize("site", ["polaris", "generic", "perlmutter"])
def test_submissions_fit_the_queues(site: str, gpu_hours: float) -> None:
    data = read_site(site)
    found = proposals.proposals(data, gpu_hours)
    assert found and found[0].queue == data.get("default_queue", "default")
    for one in found:
        ranges = (
            data.get("queues", {})
            .get(one.queue, {})
            .get("ranges", [{"nodes": [1, 1], "walltime": ["0:0:1", "24:0:0"]}])
        )
        fitting = [
            limits
            for limits in ranges
            if limits["nodes"][0] <= one.nodes <= limits["nodes"][1]
            and one.walltime_minutes / 60 <= proposals._hours(limits["walltime"][1])
            and one.walltime_minutes / 60 >= proposals._hours(limits["walltime"][0])
        ]
        assert fitting
        assert 1.3 * one.hours_each <= one.walltime_minutes / 60
        assert (
            one.submissions
            * one.nodes
            * one.gpus_per_node
            * (one.hours_each - proposals.STARTUP_HOURS)
            >= gpu_hours - 1e-6
        )
        assert min(one.submissions, MAX_BUCKETS) == one.buckets
        assert one.charged_hours >= gpu_hours and 0 <= one.wasted <= 1


def test_whole_nodes_are_paid_whole() -> None:
    (capacity,) = [
        one for one in proposals.proposals(read_site("polaris"), 1.0) if one.queue == "capacity"
    ]
    assert (capacity.nodes, capacity.gpus_per_node) == (4, 4)
    assert capacity.charged_hours == pytest.approx(16 * (1 / 16 + proposals.STARTUP_HOURS))


def test_the_command_is_the_literal_one_with_what_its_profile_lacks(
    configfile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)

    def words(**asked: str) -> list[str]:
        return list(planned(plan.Question(configfile, **asked)).command)  # type: ignore[arg-type]

    mine = ["--configfile", str(configfile)]
    assert words(site="polaris") == ["snakemake", "--profile", "pbs", *mine]
    capacity = words(site="polaris", queue="capacity")
    assert capacity[:5] == ["snakemake", "--profile", "pbs", "--pbs-queue", "capacity"]
    assert "embed:nodes=4" in capacity and "embed:mem_mb=480000" in capacity
    assert words(site="generic")[:3] == ["snakemake", "--profile", "profiles/generic-pbs"]
    debug = words(site="perlmutter", queue="debug")
    assert debug[:3] == ["snakemake", "--profile", "slurm"]
    assert {"embed:gpu=4", "embed:qos=debug", "embed:runtime=30"} <= set(debug)


def test_a_command_keeps_what_the_profile_sets(
    configfile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slurm").mkdir()
    profile = {"set-resources": {"embed": {"gpu": 1}, "gather": {"mem_mb": 9000}}}
    (tmp_path / "slurm" / "profile.yaml").write_text(yaml.safe_dump(profile))
    found = planned(plan.Question(configfile, site="perlmutter", queue="debug"))
    assert {"gather:mem_mb=9000", "embed:qos=debug"} <= set(found.command)


def test_on_a_recognized_machine_nothing_but_the_profile_is_named(
    configfile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "qsub").write_text("#!/bin/sh\n")
    (tmp_path / "qsub").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("PBS_DEFAULT", "polaris-pbs-01.hsn.cm.polaris.alcf.anl.gov")
    monkeypatch.delenv("PBS_ACCOUNT", raising=False)
    for site in ("", "polaris"):
        found = planned(plan.Question(configfile, site=site))
        assert found.command[:5] == (
            *("snakemake", "--profile", "pbs", "--configfile", str(configfile)),
        )
        assert (found.site, found.device) == ("polaris", "A100")
    shown = text(found)
    assert "submissions at polaris (by the PBS server polaris-pbs-01." in shown
    assert "run it, with an account: --pbs-account NAME" in shown
    monkeypatch.setenv("PBS_ACCOUNT", "mine")
    assert planned(plan.Question(configfile)).missing == ""


def test_a_queue_that_is_too_short_is_marked_and_comes_last(configfile: Path) -> None:
    site = read_site("generic") | {
        "default_queue": "minute",
        "queues": {
            "minute": {"ranges": [{"nodes": [1, 1], "walltime": ["0:00:01", "0:01:00"]}]},
            "day": {"ranges": [{"nodes": [1, 1], "walltime": ["0:00:01", "24:00:00"]}]},
        },
    }
    assert [(one.queue, one.fits) for one in proposals.proposals(site, 1.0)] == [
        ("day", True),
        ("minute", False),
    ]
    long = site | {"submission": {"walltime": "36:00:00"}}
    assert not any(one.fits for one in proposals.proposals(long, 1.0))
    own = configfile.parent / "own.yaml"
    own.write_text(yaml.safe_dump(site))
    assert "minute: too short" in text(planned(plan.Question(configfile, site=str(own))))


SINFO = """#!/bin/sh
case "$*" in *%M*)
    printf 'cpu*|OFF|1\\ngpu|REQUEUE|10\\nbig|REQUEUE|1\\nshort|OFF|1\\n'
    exit;;
esac
cat <<END
cpu*|up|2-00:00:00|40|(null)
gpu|up|2-00:00:00|8|gpu:l40s:4(S:0-1)
gpu|up|2-00:00:00|2|gpu:h100:8
big|up|infinite|1|gpu:2
dead|down|1:00:00|1|gpu:a100:4
short|up|30:00|1|gpu:nvidia_a100:4,lscratch:1
END
"""


def test_a_slurm_cluster_is_asked_for_its_partitions(
    configfile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "sinfo"
    tool.write_text(SINFO)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    found = planned(plan.Question(configfile, site="slurm", queue="gpu"))
    assert (
        found.command[:3] == ("snakemake", "--profile", "slurm")
        and "embed:slurm_partition=gpu" in found.command
    )
    assert found.device == "L40S"
    assert {one.speed.device for one in found.forecasts} == {"L40S", "A100"}  # A100 is in `short`
    every = planned(plan.Question(configfile, site="slurm"))
    assert {one.queue: one.preempts for one in every.proposals} == {
        "gpu": False,
        "big": True,
        "short": False,
    }
    assert "big: preempts" in text(every)
    queues = read_site("slurm")["queues"]
    assert list(queues) == ["gpu", "big", "short"]
    assert [queue["ranges"][0]["walltime"][1] for queue in queues.values()] == [
        "48:00:00",
        "168:00:00",
        "0:30:00",
    ]
    assert (queues["gpu"]["gpu_type"], queues["gpu"]["gpus_per_node"]) == ("l40s", 4)
    for line, message in (
        ("exit 1", "sinfo says: 1"),
        ("echo 'cpu*|up|1:00|1|(null)'", "no partition"),
    ):
        tool.write_text(f"#!/bin/sh\n{line}\n")
        with pytest.raises(PlmEmbedError, match=message):
            read_site("slurm")
    tool.unlink()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(PlmEmbedError, match="there is no sinfo here"):
        read_site("slurm")


def test_one_of_several_accounts_is_asked_for_in_the_command(
    configfile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    for name, script in {
        "sinfo": SINFO,
        "sacctmgr": "#!/bin/sh\necho lab\necho project\n",
        "scontrol": "#!/bin/sh\necho 'ClusterName = mine'\n",
        "sbatch": "#!/bin/sh\n",
    }.items():
        tool = tmp_path / "bin" / name
        tool.write_text(script)
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SBATCH_ACCOUNT", raising=False)
    found = planned(plan.Question(configfile))
    assert found.command[:3] == ("SBATCH_ACCOUNT=NAME", "snakemake", "--profile")
    assert "run it, with SBATCH_ACCOUNT: one of lab, project" in text(found)
    monkeypatch.setenv("SBATCH_ACCOUNT", "lab")
    assert planned(plan.Question(configfile)).command[0] == "snakemake"
    monkeypatch.delenv("SBATCH_ACCOUNT")
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "profile.yaml").write_text("default-resources: {slurm_account: lab}\n")
    assert planned(plan.Question(configfile)).missing == ""
