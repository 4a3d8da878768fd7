"""Where the output of jobs goes, for every option of qsub that was recorded, and what jobs see
around them.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recorded import CASES, recorded_job
from shell import run
from standin import Config, StandIn

WAYS = [name.removeprefix("listing_out_") for name in CASES if name.startswith("listing_out_")]
ATTRIBUTES = [
    "Join_Path",
    "Keep_Files",
    "Remove_Files",
    "umask",
    "job_state",
    "substate",
    "Exit_status",
]
ATTRIBUTES += ["Stageout_status", "Hold_Types"]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StandIn, Path]]:
    """One job for every way, all ended, each submitted in a folder of its own under the number it
    had.
    """
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
    assert {key: text(job, key) for key in ATTRIBUTES} == {
        key: text(recorded, key) for key in ATTRIBUTES
    }
    for key in ("Output_Path", "Error_Path"):
        assert job[key].replace(str(project), "/home/user/proj") == recorded[key]


def text(attributes: dict[str, Any], key: str) -> str:
    return json.dumps(attributes.get(key)).strip('"')


def test_output_kept_on_the_node_is_in_the_home(ended: tuple[StandIn, Path]) -> None:
    number = CASES["submit_out_k_oe"]["stdout"].partition(".")[0]
    found = {path.name: path.read_text() for path in (ended[1] / "home").iterdir()}
    assert found == {f"j_ok.sh.o{number}": "out\n", f"j_ok.sh.e{number}": "err\n"}


OF_THE_LAB = {"MANPATH", "PATH", "PBS_JOBCOOKIE", "PBS_MOMPORT", "PWD", "SHLVL", "_"}


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("output_env_default", "-A proj"),
        ("output_env_select1_ncpus8", "-N one -l select=1:ncpus=8"),
        (
            "output_env_select2_mpiprocs4",
            recorded_job("qstat_json_F_select2").attributes()["Submit_arguments"],
        ),
    ],
)
def test_jobs_see_the_recorded_nodes_and_variables(
    case: str, words: str, pbs: StandIn, tmp_path: Path
) -> None:
    recorded = CASES[case]["stdout"]
    script = tmp_path / "j_env.sh"
    script.write_text(
        '#!/bin/sh\necho "# umask=$(umask)"\necho "# nodefile:"\ncat '
        '$PBS_NODEFILE\necho "# env:"\nenv\n'
    )
    pbs.last = int(CASES[case]["command"].rpartition(".")[2][1:]) - 1
    words = words.rpartition(" ")[0] if words.endswith(".sh") else words
    assert run(f"qsub -q debug -o out -e err {words} j_env.sh", tmp_path).returncode == 0
    pbs.wait_for(pbs.last, "F")
    assert seen((tmp_path / "out").read_text()) == seen(recorded)


def seen(output: str) -> dict[str, Any]:
    """The mask, the nodes, the names of all variables, and the values of those that are no place or
    person.
    """
    around, _, lines = output.partition("# env:\n")
    variables = dict(line.split("=", 1) for line in sorted(lines.splitlines()))
    names = [name for name in variables if name not in OF_THE_LAB and not name.startswith("PBS_O_")]
    alike = [
        "NCPUS",
        "OMP_NUM_THREADS",
        "PBS_ACCOUNT",
        "PBS_ENVIRONMENT",
        "PBS_JOBID",
        "PBS_JOBNAME",
        "PBS_QUEUE",
    ]
    return {
        "umask": "umask=0077" in around,
        "nodes": around.partition("# nodefile:\n")[2],
        "names": names,
        "values": {name: variables.get(name) for name in alike},
    }
