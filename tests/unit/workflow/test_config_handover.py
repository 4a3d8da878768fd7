"""What the jobs of a campaign are given by its main process."""

import json
import shlex
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from snakemake.api import SnakemakeApi
from snakemake.settings.types import (
    ConfigSettings,
    DAGSettings,
    OutputSettings,
    Quietness,
    ResourceSettings,
)
from snakemake_interface_executor_plugins import utils

from plm_embed.errors import PlmEmbedError
from plm_embed.workflow.config_handover import (
    check_folders,
    check_version,
    freeze,
    hand_over,
    notes_file,
    quote_words,
)
from support.campaign_runs import ROOT, working_folder
from support.clones import clone, environment

NASTY = 'it\'s a $HOME & (co); [größe] `x` "y" 日本 \\'


def test_jobs_read_the_configuration_that_was_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = SimpleNamespace(configfiles=[Path("config.yaml")], config_args=["buckets=3"])
    workflow = SimpleNamespace(config_settings=given)
    config = {"buckets": 3, "results": "größe"}
    hand_over(workflow, freeze(config))
    (path,) = given.configfiles
    assert json.loads(path.read_text(encoding="utf-8")) == config
    assert path.is_absolute()
    assert given.config_args == ""
    assert freeze(config | {"buckets": 4}) != path
    assert json.loads(path.read_text(encoding="utf-8"))["buckets"] == 3
    as_a_job_reads_it = json.loads(path.read_text(encoding="utf-8"))
    assert notes_file(as_a_job_reads_it) == path.with_suffix(".failures")


def test_rules_of_another_version_are_refused() -> None:
    check_version((ROOT / "workflow/src/plm_embed/_version.py").read_text(encoding="utf-8"))
    with pytest.raises(PlmEmbedError, match=r"of plm_embed 999\.0, installed is"):
        check_version('"""."""\n\n__version__ = "999.0"\n')


def test_a_working_folder_that_cannot_be_written_to_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".snakemake").touch()
    with pytest.raises(PlmEmbedError, match=f"{tmp_path}/.snakemake/plm-embed"):
        freeze({})


@pytest.mark.workflow
def test_an_edited_file_does_not_change_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Snakemake starts a job: with the words that it has for jobs, here in a dry run."""
    folder = working_folder(tmp_path / "work")
    monkeypatch.chdir(folder)
    for name in ("PATH", "PYTHONPATH"):  # the Snakefile extends them
        monkeypatch.setenv(name, "")

    def buckets(settings: ConfigSettings) -> tuple[int, str]:
        with SnakemakeApi(OutputSettings(quiet={Quietness.ALL})) as api:
            resources = ResourceSettings(cores=1)
            workflow = api.workflow(
                snakefile=ROOT / "Snakefile",
                workdir=folder,
                config_settings=settings,
                resource_settings=resources,
            )
            workflow.dag(DAGSettings()).execute_workflow(executor="dryrun")
            inner = workflow._workflow
            assert not inner.config_settings.config_args
            return inner.globals["config"][
                "buckets"
            ], inner.spawned_job_args_factory.get_configfiles_arg()

    own = folder / "own.yaml"
    own.write_text(
        (folder / "config" / "config.yaml").read_text(encoding="utf-8"), encoding="utf-8"
    )
    found, words = buckets(ConfigSettings(configfiles=[own], config={"buckets": 3}))
    assert found == 3
    own.write_text("buckets: [")
    flag, path = shlex.split(words)
    assert flag == "--configfiles"
    assert buckets(ConfigSettings(configfiles=[Path(path)])) == (3, words)


def test_a_shell_reads_the_words_as_they_are() -> None:
    quote_words(utils)
    quote_words(utils)
    words = utils.format_cli_arg("--wait-for-files", [f"results {NASTY}/{name}" for name in "ab"])
    said = subprocess.run(
        ["/bin/sh", "-c", f"printf '%s\\n' {words}"], capture_output=True, text=True, check=True
    )
    assert said.stdout.splitlines() == [
        "--wait-for-files",
        f"results {NASTY}/a",
        f"results {NASTY}/b",
    ]


def test_folders_that_path_cannot_hold_are_refused() -> None:
    check_folders([Path("/a clone"), Path(f"/{NASTY}")])
    with pytest.raises(PlmEmbedError, match="/a:b/src: no colon"):
        check_folders([Path("/x"), Path("/a:b/src")])


@pytest.mark.workflow
def test_a_clone_and_results_anywhere(tmp_path: Path) -> None:
    """Characters that mean something to a shell in the paths of clone, environment, working folder
    and results.
    """
    folder = clone(tmp_path / NASTY, plugin=False)
    python = folder / ".venv" / "bin" / "python"
    command = [
        str(python),
        "-m",
        "snakemake",
        "--cores",
        "2",
        "--config",
        "buckets=1",
        f"results=out {NASTY}",
    ]
    run = subprocess.run(
        command,
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert run.returncode == 0, run.stderr
    assert (
        json.loads((folder / f"out {NASTY}" / "esm2_t3_untrained/validation.json").read_text())[
            "status"
        ]
        == "passed"
    )
