"""Every form in which qstat and qselect list jobs, as recorded: text, DSV, JSON of both
generations, tables, ids.

Each recorded command is run by a server that holds the jobs that the recorded one held.
"""

import json
import re
import shlex
from collections.abc import Iterator

import pytest

from recorded import CASES, blank, recorded_job
from standin import Config, StandIn
from standin.model import Job

STAMP = re.compile(r'"timestamp":\s*\d+')
ENDED = ["qstat_json_F_ok", "qstat_json_F_exit3"]
RUNNING = ["qstat_json_R_x"]
TWO = ["json_batch_two_new", "json_V_bashfunc_newclient"]
EIGHT = [f"json_all_new {at}" for at in range(8)]
LATER = [*EIGHT[:5], "later", *EIGHT[6:]]
B, F = ([f"qstat_array_t_json_{state} {at}" for at in range(9)] for state in "BF")
LESS = [f"qstat_array_t_json_some_deleted {at}" for at in range(9)]
JOBS: dict[str, list[str]] = {
    "dsv_batch_two_new": TWO,
    "dsv_D_batch_two_new": TWO,
    "json_V_bashfunc_dsv": TWO,
    "json_V_bashfunc_newclient": TWO,
    "json_V_bashfunc_oldclient": TWO,
    "json_V_bashfunc_poisons_all_oldclient": TWO[::-1],
    "json_V_bashfunc_poisons_batch_oldclient": TWO,
    "json_V_bashfunc_text": TWO,
    "json_all_new": EIGHT,
    "json_all_old": EIGHT,
    "json_batch_two_new": TWO,
    "text_batch_two_new": TWO,
    "qselect_states": EIGHT,
    "qselect_name_F": ["qstat_json_F_exit3 as 34.pbs01", *RUNNING, *ENDED],
    "qselect_user_x": [
        f"qstat_json_F_ok as {job}" for job in CASES["qselect_user_x"]["stdout"].split()
    ],
    "qstat_H_F": ENDED,
    "qstat_alt_a_R": RUNNING,
    "qstat_alt_n1w_R": RUNNING,
    "qstat_default_E": ["qstat_json_E"],
    "qstat_default_R": RUNNING,
    "qstat_default_x_F": ENDED,
    "qstat_dsv_R": RUNNING,
    "qstat_empty_id": RUNNING,
    "qstat_full_text_R": ["qstat_full_text_R_w"],
    "qstat_history_off_H": ENDED,
    "qstat_history_off_x_list": ENDED,
    "qstat_json_dup": ENDED,
    "qstat_json_history_purged": ENDED,
    "qstat_json_many_first_unknown": ENDED,
    "qstat_json_many_last_unknown": ENDED,
    "qstat_json_many_malformed": ENDED,
    "qstat_json_many_one_finished_no_x": ENDED,
    "qstat_json_many_one_unknown": ENDED,
    "qstat_json_many_one_unknown_oldclient": ENDED,
    "qstat_json_no_jobs": ENDED,
    "qstat_json_otherid": RUNNING,
    "qstat_other_user_hidden": RUNNING,
    "qstat_s_R": RUNNING,
    "qstat_table_mixed_states": LATER,
    "qstat_u_mixed_w": LATER,
    "qstat_unknown_x_oldclient": RUNNING,
    "qstat_user": RUNNING,
    "qselect_running": ENDED,
    "qstat_array_deleted_subjob_no_x": LESS,
    "qstat_array_noindex": B,
    "qstat_array_parent_json_B": B,
    "qstat_array_parent_json_F": F,
    "qstat_array_range": B,
    "qstat_array_subjob_json_F_failed": F,
    "qstat_array_subjob_json_R": B,
    "qstat_array_subjob_out_of_range": F,
    "qstat_array_t_json_B_oldclient": B,
    "qstat_array_t_json_F_oldclient": F,
    "qstat_array_table_B": B,
    "qstat_array_table_t_B": B,
    "qstat_array_table_t_F": F,
    "qstat_array_table_t_some_deleted": LESS,
    "qstat_array_without_x_F": F,
    "qdel_array": LESS,
    "qdel_array_subjob": LESS,
    "qdel_array_subjob_range": LESS,
    "qdel_array_without_brackets": LESS,
    "qdel_other_user": RUNNING,
    "qdel_queued": ["qstat_json_Q"],
    "qdel_running": RUNNING,
    "qstat_json_unknown": ENDED,
}
OWN = {  # those that show jobs in full, whose own recording tells which
    name: [f"{name} {at}" for at in range(len(json.loads(case["stdout"])["Jobs"]))]
    for name, case in CASES.items()
    if name.startswith("qstat_") and '"Jobs"' in case["stdout"] and name not in JOBS
}


@pytest.fixture(scope="module")
def still() -> Iterator[StandIn]:
    """A server that starts nothing."""
    with StandIn(Config(cycle=3600)) as standin:
        yield standin


def recorded_as(source: str) -> Job:
    """A recorded job, its user with a name of 7 letters: for that the recorded columns and folds
    were made.
    """
    source, _, other_id = source.partition(" as ")
    name, _, at = source.partition(" ")
    if name == "later":  # the sixth of the eight at the next look, past its first second
        job = recorded_job("json_all_new", 5)
        used = {"cput": "00:00:00", "walltime": "00:00:00"}
        job.given = {**job.attributes(), "session_id": "29216", "resources_used": used}
    else:
        job = recorded_job(name, int(at or 0))
    attributes = re.sub(r"\buser\b", "seventh", json.dumps(job.attributes()))
    return blank(other_id or job.id, json.loads(attributes))


@pytest.mark.parametrize("case", [*JOBS, *OWN])
def test_jobs_are_listed_as_recorded(case: str, still: StandIn) -> None:
    recorded = CASES[case]
    still.jobs = dict(enumerate(recorded_as(source) for source in {**OWN, **JOBS}[case]))
    still.config.history = "history_off" not in case
    still.config.others_shown = case != "qstat_other_user_hidden"
    still.config.client = "old" if "v22" in recorded["client"] else "new"
    command, *words = shlex.split(recorded["command"].replace("-u user", "-u seventh"))
    user = "eighth" if "other_user" in case else "seventh"
    answer = still.answer({"command": command, "words": words, "user": user})
    assert {
        key: STAMP.sub("", str(value)).replace("seventh", "user") for key, value in answer.items()
    } == {
        "code": str(recorded["exit_code"]),
        "out": STAMP.sub("", recorded["stdout"]),
        "err": recorded["stderr"],
    }


@pytest.mark.parametrize(
    "case", ["qstat_json_Q", "qstat_json_R_10_nodes", "qstat_json_F_ok", "qstat_json_F_walltime"]
)
def test_old_clients_print_what_new_ones_do(case: str) -> None:
    """The old client looked a moment later: what a running job has used by then is its own."""
    old = recorded_job(f"{case}_oldclient").attributes()
    new = recorded_job(case).attributes()
    changing = {"resources_used", "mtime", "session_id", "substate"}
    assert {key: value for key, value in old.items() if key not in changing} == {
        key: value for key, value in new.items() if key not in changing
    }
