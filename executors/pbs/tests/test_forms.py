"""Every form in which qstat prints jobs, as recorded: text, DSV, JSON of both generations of clients, tables."""

import json
import re
from collections.abc import Callable

import pytest

from recorded import CASES, blank, recorded_job
from standin import render
from standin.model import Job

STAMP = re.compile(r'"timestamp":\s*\d+')


def long(job: Job) -> Job:
    """The job with a user's name of 7 letters, for which the recorded columns and folds were made."""
    return blank(job.id, json.loads(re.sub(r"\buser\b", "seventh", json.dumps(job.attributes()))))


def shown(form: Callable[..., str], jobs: list[Job], **options: object) -> str:
    return form([long(job) for job in jobs], **options).replace("seventh", "user")


def texts(jobs: list[Job]) -> str:
    return "".join(render.text(job, wide=False) for job in jobs)


def one(name: str) -> list[Job]:
    return [recorded_job(name)]


def eight(later: bool = False) -> list[Job]:
    """Jobs in all states; `later` as they were at the next look, when the sixth was past its first second."""
    jobs = [recorded_job("json_all_new", at) for at in range(8)]
    if later:
        used = {"cput": "00:00:00", "walltime": "00:00:00"}
        jobs[5] = blank(jobs[5].id, {**jobs[5].attributes(), "session_id": "29216", "resources_used": used})
    return jobs


def two() -> list[Job]:
    """A job as any other, and one with the variables of a login shell."""
    return [recorded_job("json_batch_two_new"), recorded_job("json_V_bashfunc_newclient")]


FORMS: dict[str, Callable[[], str]] = {
    "dsv_batch_two_new": lambda: "".join(render.dsv(job) for job in two()),
    "dsv_D_batch_two_new": lambda: "".join(render.dsv(job, "|||") for job in two()),
    "json_V_bashfunc_dsv": lambda: render.dsv(two()[1]),
    "json_V_bashfunc_newclient": lambda: render.json_new(two()[1:]),
    "json_V_bashfunc_oldclient": lambda: render.json_old(two()[1:]),
    "json_V_bashfunc_poisons_all_oldclient": lambda: render.json_old(two()[::-1]),
    "json_V_bashfunc_poisons_batch_oldclient": lambda: render.json_old(two()),
    "json_V_bashfunc_text": lambda: shown(texts, two()[1:]),
    "json_all_new": lambda: render.json_new(eight(), asked=False),
    "json_all_old": lambda: render.json_old(eight()),
    "json_batch_two_new": lambda: render.json_new(two()),
    "qstat_H_F": lambda: shown(render.table_of_requests, one("qstat_json_F_ok")),
    "qstat_alt_a_R": lambda: shown(render.table_of_requests, one("qstat_json_R_x")),
    "qstat_alt_n1w_R": lambda: shown(render.table_of_requests, one("qstat_json_R_x"), wide=True, nodes=True),
    "qstat_default_E": lambda: shown(render.table, one("qstat_json_E")),
    "qstat_default_R": lambda: shown(render.table, one("qstat_json_R_x")),
    "qstat_default_x_F": lambda: shown(render.table, one("qstat_json_F_ok") + one("qstat_json_F_exit3")),
    "qstat_dsv_R": lambda: render.dsv(recorded_job("qstat_json_R_x")),
    "qstat_s_R": lambda: shown(render.table_of_requests, one("qstat_json_R_x"), comments=True),
    "qstat_table_mixed_states": lambda: shown(render.table, eight(later=True)),
    "qstat_u_mixed_w": lambda: shown(render.table_of_requests, eight(later=True), wide=True),
    "qstat_user": lambda: shown(render.table_of_requests, one("qstat_json_R_x")),
    "text_batch_two_new": lambda: shown(texts, two()),
}


@pytest.mark.parametrize("case", FORMS)
def test_jobs_are_printed_as_recorded(case: str) -> None:
    assert STAMP.sub("", FORMS[case]()) == STAMP.sub("", CASES[case]["stdout"])


@pytest.mark.parametrize("case", ["qstat_json_Q", "qstat_json_R_10_nodes", "qstat_json_F_ok", "qstat_json_F_walltime"])
def test_old_clients_print_what_new_ones_do(case: str) -> None:
    """The old client looked a moment later: what a running job has used by then is its own."""
    old = recorded_job(f"{case}_oldclient").attributes()
    new = recorded_job(case).attributes()
    changing = {"resources_used", "mtime", "session_id", "substate"}
    assert {key: value for key, value in old.items() if key not in changing} == {
        key: value for key, value in new.items() if key not in changing
    }
