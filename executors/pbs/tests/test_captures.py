"""Every capture of the real OpenPBS is either compared with the stand-in or named here with the reason why not.

The captures that the other tests need are in `data`; the rest lies beside the checkout, where there is one.
"""

import json
import re
from pathlib import Path

import pytest

from recorded import CASES, recorded_job
from standin import render

FOLDER = Path(__file__).parents[4] / "shared" / "pbs-captures"
CAPTURES = sorted(path.stem for path in FOLDER.glob("*.json"))
STAMP = re.compile(r'"timestamp":\s*(\d+|"")')

NOT_COMPARED = {
    r".*array.*": "job arrays, which the plugin does not use",
    r".*depend.*": "dependencies, which the plugin does not use: Snakemake has its own",
    r"(listing|submit|qstat_json_[FH])_out_.*": "other places for logs than the plugin's -j oe -o FILE",
    r"output_.*": "what jobs print about their nodes",
    r"(nodes|pbsnodes|queue|queues|server|version)_.*|queues": "commands that the plugin does not call",
    r"qrerun_.*|qrls_.*|submit_(block|interactive|no_args|nodes_ppn)_.*": "not called so",
    r"submit_as_root|submit_bad_server|submit_script_unreadable|qs(ub|tat)_server_name_.*": "another user or server",
    r"qsub_no_daemon_f|qsub_unwritable_tmp": "the client's own daemon and folder",
    r"qstat_array_table_.*": "tables of job arrays",
    r"qstat_other_user.*|qdel_other_user|qdel_empty_arg|qstat_empty_id": "not asked by the plugin",
    r"qselect_after_hung|qstat_after_qdel_many_one_unknown": "follows another case, whose test looks at the same",
    r"json_.*_submit": "the qsub of another case",
}

pytestmark = pytest.mark.skipif(not CAPTURES, reason="the captures are not beside this checkout")


def capture(name: str) -> str:
    CASES.setdefault(name, json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")))
    return STAMP.sub("", str(CASES[name]["stdout"]))


def is_odd_value(name: str) -> bool:
    return bool(re.fullmatch(r"json_(V|v|name|account|args|project)_(?!.*_poisons_).*_(new|old)client", name))


def reasons(name: str) -> list[str]:
    return [reason for pattern, reason in NOT_COMPARED.items() if re.fullmatch(pattern, name)]


@pytest.mark.parametrize("name", [name for name in CAPTURES if is_odd_value(name)])
def test_odd_values_are_printed_as_by_either_generation(name: str) -> None:
    new = f"{name.rpartition('_')[0]}_newclient"
    capture(new)
    if name != new:
        assert STAMP.sub("", render.json_old([recorded_job(new)])) == capture(name)
        return
    printed = STAMP.sub("", render.json_new([recorded_job(new)]))
    if "latin-1" in CASES[new].get("encoding", ""):
        printed = printed.encode(errors="surrogateescape").decode("latin-1")
    assert printed == capture(name)


def test_no_capture_is_passed_over_in_silence() -> None:
    kept = {json.loads(line)["case"] for line in (Path(__file__).parent / "data" / "captures.jsonl").open()}
    silent = [name for name in CAPTURES if name not in kept and not is_odd_value(name) and not reasons(name)]
    assert not silent
    for name in kept & set(CAPTURES):
        assert capture(name) == STAMP.sub("", str(CASES[name]["stdout"]))
