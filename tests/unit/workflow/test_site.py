"""The layer under the user's settings: what a recognized site gives, what is left to the user, what
is missing.
"""

from pathlib import Path

import pytest
import yaml

from plm_embed.errors import ConfigError, PlmEmbedError
from plm_embed.sites import slurm as slurm_site
from plm_embed.sites.data import read_site
from plm_embed.sites.recognize import Here, recognize, scheduler_here
from plm_embed.sites.slurm_executor import instead_of_plain
from plm_embed.workflow.site import Given, layer
from support.told_slurm import TWO_PARTITIONS, slurm


def test_a_site_has_one_scheduler_and_slurm_gives_a_submission_one_node() -> None:
    with pytest.raises(ConfigError, match="site: polaris: has PBS; use `--profile pbs`"):
        layer(Given("slurm", site="polaris"))
    with pytest.raises(ConfigError, match="site: perlmutter: has SLURM; use `--profile slurm`"):
        layer(Given("pbs", site="perlmutter"))
    with pytest.raises(ConfigError, match="nodes: 2: a submission is of one node on SLURM"):
        layer(Given("slurm", site="perlmutter", embed={"nodes": "2"}))


def test_one_account_and_one_partition_need_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm(tmp_path, monkeypatch)
    found = layer(Given("slurm", default={"nodes": "1", "gpu": "0"}))
    assert found.missing == ""
    assert found.embed == {
        **{"nodes": "1", "gpu": "1", "buckets": "1"},
        **{"longest_minutes": "1440", "slurm_partition": "'gpu'"},
    }
    assert found.default == {"slurm_account": "'lab'"}
    assert found.threads == 4
    assert found.line == (
        "plm-embed: SLURM (cluster bed): partition gpu, a submission is 1 GPU, 4 cores and 1 "
        "bucket, charged to lab"
    )


def test_several_of_each_are_listed_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm(tmp_path, monkeypatch, accounts="lab\nroot\nlab\n", partitions=TWO_PARTITIONS)
    found = layer(Given("slurm"))
    assert "\n" not in found.missing
    for words in (
        "several partitions have GPUs (gpu, long): add --set-resources embed:slurm_partition=NAME",
        "you have several accounts (lab, root): export SBATCH_ACCOUNT=NAME, or add "
        "`slurm_account: NAME`",
    ):
        assert words in found.missing
    assert "slurm_partition" not in found.embed and "slurm_account" not in found.default


def test_what_the_user_names_is_not_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm(tmp_path, monkeypatch, accounts="lab\nroot\n", partitions=TWO_PARTITIONS)
    given = Given("slurm", embed={"slurm_partition": "long"}, default={"slurm_account": "root"})
    found = layer(given)
    assert found.missing == "" and found.default == {}
    assert (
        found.embed["longest_minutes"] == str(7 * 24 * 60) and "slurm_partition" not in found.embed
    )
    for_all = layer(Given("slurm", default={"slurm_partition": "gpu", "slurm_account": "lab"}))
    assert for_all.missing == "" and "slurm_partition" not in for_all.embed
    monkeypatch.setenv("SBATCH_ACCOUNT", "root")
    assert layer(Given("slurm", embed={"slurm_partition": "long"})).default == {
        "slurm_account": "'root'"
    }


def test_a_default_partition_with_gpus_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm(
        tmp_path,
        monkeypatch,
        partitions=TWO_PARTITIONS.replace("cpu*", "cpu").replace("long|", "long*|"),
    )
    found = layer(Given("slurm"))
    assert found.missing == "" and found.embed["slurm_partition"] == "'long'"


def test_perlmutter_is_recognized_by_its_clusters_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm(
        tmp_path,
        monkeypatch,
        cluster="perlmutter",
        accounts="m1234_g\n",
        partitions="regular*|up|1-0|9|gpu:a100:4\n",
    )
    assert recognize("slurm") == Here("perlmutter", "by the cluster perlmutter")
    found = layer(Given("slurm"))
    assert found.embed == {
        **{
            "nodes": "1",
            "gpu": "1",
            "buckets": "1",
            "mem_mb": "60000",
            "runtime": "min(2880, 240 * attempt)",
        },
        **{"longest_minutes": "2880", "constraint": "gpu", "scratch": "''", "qos": "'shared'"},
    }
    assert found.default == {"constraint": "cpu", "qos": "'shared'", "slurm_account": "'m1234_g'"}
    regular = layer(Given("slurm", embed={"qos": "regular"}))
    assert (regular.embed["gpu"], regular.embed["buckets"]) == ("4", "16")
    assert regular.default["qos"] == "'regular'"


def test_a_machine_without_slurm_plans_one_gpu_per_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = layer(Given("slurm"))
    assert found.missing == "" and found.embed == {"nodes": "1", "gpu": "1", "buckets": "1"}
    assert found.line == "plm-embed: SLURM (no SLURM here): a submission is 1 GPU and 1 bucket"


def test_slurm_that_does_not_answer_is_told_unless_the_partition_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm(tmp_path, monkeypatch)
    for name in ("scontrol", "sinfo", "sacctmgr"):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\nexit 1\n")
    assert layer(Given("slurm")).missing.startswith("SLURM does not answer")
    found = layer(Given("slurm", embed={"slurm_partition": "gpu"}))
    assert found.missing == "" and "SLURM (it does not answer): a submission is 1 GPU" in found.line


def test_a_cluster_without_a_known_gpu_is_left_to_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm(tmp_path, monkeypatch, partitions="cpu*|up|1:00|1|(null)\n")
    found = layer(Given("slurm"))
    assert found.missing == "" and "no partition that is up has GPUs" in found.line
    with pytest.raises(PlmEmbedError, match="no partition that is up has GPUs"):
        layer(Given("slurm", site="slurm"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "base: polaris\nqueues: {prod: {ranges: [{nodes: [1, 2], walltime: [0:05:00, "
            "1:00:00]}]}}\n",
            "walltime",
        ),
        ("base: generic\nqueue: x\n", "'queue' was unexpected"),
        ("base: nosuch\n", "nosuch: not known"),
        ("- a\n", "no site data"),
    ],
)
def test_a_wrong_site_file_is_told_by_key(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(text)
    with pytest.raises(PlmEmbedError) as caught:
        layer(Given("pbs", site=str(tmp_path / "own.yaml")))
    assert words in str(caught.value)


def test_accounts_are_those_of_this_cluster_and_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm(tmp_path, monkeypatch)
    (tmp_path / "bin" / "sacctmgr").write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/words\nprintf "b\\na\\n\\nb\\n"\n'
    )
    assert slurm_site.accounts() == ["a", "b"]
    assert " cluster=bed format=account" in (tmp_path / "words").read_text()
    (tmp_path / "bin" / "sacctmgr").write_text("#!/bin/sh\necho none >&2; exit 1\n")
    assert slurm_site.accounts() == []


def test_pbs_charges_the_account_that_is_named_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PBS_ACCOUNT", raising=False)
    assert (
        "ALCF Polaris charges an account: add --pbs-account NAME"
        in layer(Given("pbs", site="polaris")).missing
    )
    monkeypatch.setenv("PBS_ACCOUNT", "mine")
    for given, account in (
        (Given("pbs", site="polaris"), "mine"),
        (Given("pbs", site="polaris", account="typed"), "typed"),
        (
            Given("pbs", site="polaris", account="typed", default={"pbs_account": "resource"}),
            "resource",
        ),
    ):
        found = layer(given)
        assert found.missing == "" and found.line.endswith(f", charged to {account}")
    assert layer(Given("pbs", site="generic")).missing == ""


def test_a_polaris_node_is_laid_under_what_the_user_sets() -> None:
    full = layer(Given("pbs", site="polaris", default={"nodes": "1", "gpu": "0", "runtime": "60"}))
    assert full.embed == {
        **{"nodes": "1", "gpu": "4", "buckets": "16", "mem_mb": "400000", "runtime": "360"},
        **{"longest_minutes": "4320"},
    }
    assert (full.threads, full.default, full.site) == (32, {}, "polaris")
    given = {"nodes": "2", "gpu": "4", "mem": "100GB", "runtime": "90 * attempt"}
    assert layer(Given("pbs", site="polaris", embed=given)).embed == {
        "buckets": "32",
        "longest_minutes": "4320",
    }
    assert layer(Given("pbs", site="polaris", embed={"buckets": "5"})).embed.get("buckets") is None
    assert layer(Given("pbs", site="polaris"), 7).embed["buckets"] == "7", (
        "the configuration's number"
    )


def test_the_line_says_what_will_be_asked_for_with_what_the_user_set() -> None:
    given = {"runtime": "90", "mem_mb": "64000", "buckets": "3", "gpu": "2"}
    found = layer(Given("pbs", site="polaris", account="x", embed=given, threads="8"))
    assert "a submission is 1 node x 2 GPUs, 8 cores, 64 GB, 1:30 h and 3 buckets" in found.line
    found = layer(Given("pbs", site="polaris", account="x", embed={"runtime": "90 * attempt"}))
    assert "a submission is 1 node x 4 GPUs, 32 cores, 400 GB and 16 buckets" in found.line


def test_gadi_gives_node_local_disk_to_every_job() -> None:
    assert layer(Given("pbs", site="gadi")).default == {"disk_mb": "10000"}
    assert layer(Given("pbs", site="gadi", default={"disk_mb": "500"})).default == {}


def test_without_a_scheduler_only_the_workers_count() -> None:
    assert layer(Given("local")).embed == {"buckets": "1"}
    assert layer(Given("", embed={"gpu": "4"})).embed == {"buckets": "16"}
    assert layer(Given("local", embed={"gpu": "4"}), 1).embed == {"buckets": "1"}
    assert layer(Given("local"), per_job_here=3).embed == {"buckets": "3"}
    assert layer(Given("local"), 1, per_job_here=3).embed == {"buckets": "1"}
    assert layer(Given("pbs", site="generic"), per_job_here=3).embed["buckets"] == "1"
    assert layer(Given("htcondor"), per_job_here=3).embed == {"buckets": "1"}
    assert layer(Given("local")).line == ""


def test_sites_of_ones_own_are_laid_over_their_base_key_by_key(tmp_path: Path) -> None:
    own = {
        "base": "polaris",
        "queues": {"preemptable": {"submission": {"nodes": 3}}},
        "account": {"name": "p"},
    }
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(own))
    site = read_site(str(tmp_path / "own.yaml"))
    assert site["queues"]["preemptable"]["rerunnable"] and "prod" in site["queues"]
    found = layer(Given("pbs", site=str(tmp_path / "own.yaml")))
    assert (found.embed["nodes"], found.embed["gpu"], found.missing) == ("3", "4", "")


def test_the_scheduler_is_the_one_whose_commands_are_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert scheduler_here() == ""
    for name, scheduler in (("sbatch", "slurm"), ("qsub", "pbs")):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
        assert scheduler_here() == scheduler


def test_the_plain_slurm_executor_is_taken_and_said_to_be_plain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm(tmp_path, monkeypatch)
    assert layer(Given("slurm-steady")) == layer(Given("slurm"))
    told = instead_of_plain("slurm", ["slurm_requeue", "slurm_logdir", "cores", "pbs_queue"])
    assert told.endswith(
        "write `executor: slurm-steady`, and slurm-steady- for slurm- in slurm-logdir, "
        "slurm-requeue"
    )
    assert instead_of_plain("slurm", []).endswith("write `executor: slurm-steady`")
    half = instead_of_plain("slurm-steady", ["slurm_requeue", "slurm_steady_logdir"])
    assert (
        half
        == "plm-embed: executor slurm-steady takes no slurm-requeue: write slurm-steady- for slurm-"
    )
    assert instead_of_plain("slurm-steady", ["slurm_steady_logdir"]) == ""
    assert instead_of_plain("pbs", ["slurm_requeue"]) == instead_of_plain(None, []) == ""
