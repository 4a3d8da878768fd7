"""The copy of a run's configuration, as users leave it."""

from dataclasses import replace
from pathlib import Path

import pytest

from plm_embed.errors import StoreError
from plm_embed.jobs.completion_record import WorkerInfo
from plm_embed.jobs.heartbeat import Heartbeat
from plm_embed.reporting.repeat import command, keep_config, kept_settings, lacks, ran_in
from plm_embed.workflow.call import shell_line

ATTEMPT = Heartbeat(
    bucket="0000",
    records="../embedded",
    node=0,
    host="x",
    job="",
    started="2026-11-25T10:00:00",
    updated="",
    workers=tuple(WorkerInfo(pid=at) for at in range(4)),
)


@pytest.mark.parametrize("text", ["a: [", "- a", "word", '# Paths are relative to "x', None])
def test_a_damaged_copy_is_named_with_its_remedy(tmp_path: Path, text: str | None) -> None:
    keep_config({"store": "here"}, tmp_path)
    assert (kept_settings(tmp_path), ran_in(tmp_path)) == ({"store": "here"}, Path.cwd())
    (tmp_path / "config.yaml").write_text(text or "# Paths are relative to 3\n")
    with pytest.raises(StoreError, match=r"config.yaml: damaged .*; delete .*config.yaml and run"):
        kept_settings(tmp_path)
        ran_in(tmp_path)


def test_the_command_has_the_gpus_of_this_machine_and_says_that_a_profile_is_missing() -> None:
    plain = shell_line(["--configfile", "my results/config.yaml", "--cores", "all"])
    assert plain.endswith("snakemake --configfile 'my results/config.yaml' --cores all")
    folder, job = Path("my results"), replace(ATTEMPT, job="17.pbs")
    assert command(folder, [], on_gpus=False) == command(folder, [ATTEMPT], on_gpus=False) == plain
    on_gpus = f"{plain} --resources gpu=4 --set-resources embed:gpu=4"
    assert command(folder, [job, ATTEMPT], on_gpus=True) == on_gpus
    assert command(folder, [ATTEMPT, job], on_gpus=True) == plain
    assert lacks([ATTEMPT]) == "" and "--profile" in lacks([ATTEMPT, job])
