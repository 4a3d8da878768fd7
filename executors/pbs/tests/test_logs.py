"""Where the output of jobs goes, for every option of qsub that was recorded."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import run
from recorded import CASES, recorded_job
from standin import Config, StandIn

WAYS = [name.removeprefix("listing_out_") for name in CASES if name.startswith("listing_out_")]
ATTRIBUTES = ["Join_Path", "Keep_Files", "Remove_Files", "umask", "job_state", "substate", "Exit_status"]
ATTRIBUTES += ["Stageout_status", "Hold_Types"]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StandIn, Path]]:
    """One job for every way, all ended, each submitted in a folder of its own under the number it had."""
    project = tmp_path_factory.mktemp("project")
    (project / "home").mkdir()
    (project / "j_ok.sh").write_text("#!/bin/sh\necho out\necho err >&2\n")
    with pytest.MonkeyPatch.context() as patch, StandIn(Config(undeliverable=0.2)) as standin:
        patch.setenv("PATH", str(standin.bin), prepend=":")
        patch.setenv("HOME", str(project / "home"))
        for way in WAYS:
            (project / f"d_out_{way}" / "o").mkdir(parents=True)
            recorded = CASES[f"submit_out_{way}"]
            standin.last = int(recorded["stdout"].partition(".")[0]) - 1
            done = run(recorded["command"], project / f"d_out_{way}")
            assert (done.returncode, done.stdout, done.stderr) == (0, recorded["stdout"], "")
        for number in list(standin.jobs):
            standin.wait_for(number, "F", "H")
        yield standin, project


@pytest.mark.parametrize("way", WAYS)
def test_output_is_where_and_what_was_recorded(way: str, ended: tuple[StandIn, Path]) -> None:
    standin, project = ended
    listing = CASES[f"listing_out_{way}"]
    assert run(listing["command"], project / f"d_out_{way}").stdout == listing["stdout"]
    state = "H" if way == "k_doe_missing_dir" else "F"
    recorded = recorded_job(f"qstat_json_{state}_out_{way}").attributes()
    job = standin.jobs[int(CASES[f"submit_out_{way}"]["stdout"].partition(".")[0])].attributes()
    assert {key: text(job, key) for key in ATTRIBUTES} == {key: text(recorded, key) for key in ATTRIBUTES}
    for key in ("Output_Path", "Error_Path"):
        assert job[key].replace(str(project), "/home/user/proj") == recorded[key]


def text(attributes: dict[str, Any], key: str) -> str:
    return json.dumps(attributes.get(key)).strip('"')


def test_output_kept_on_the_node_is_in_the_home(ended: tuple[StandIn, Path]) -> None:
    number = CASES["submit_out_k_oe"]["stdout"].partition(".")[0]
    found = {path.name: path.read_text() for path in (ended[1] / "home").iterdir()}
    assert found == {f"j_ok.sh.o{number}": "out\n", f"j_ok.sh.e{number}": "err\n"}
