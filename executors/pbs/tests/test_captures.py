"""Every capture of the real OpenPBS is either compared with the stand-in or named here with the
reason why not.

Those of `data` are compared by the other tests; those of odd values here, where they lie beside the
checkout.
"""

import json
import re
from pathlib import Path

import pytest

import test_forms
import test_logs
import test_standin
from recorded import CASES, recorded_job
from standin import render

FOLDER = Path(__file__).parents[4] / "shared" / "pbs-captures"
KEPT = frozenset(CASES)
CAPTURES = sorted(path.stem for path in FOLDER.glob("*.json"))
STAMP = re.compile(r'"timestamp":\s*(\d+|"")')

NOT_COMPARED = {
    r"(listing|submit)_out_array_.*|listing_array_.*": "job arrays are listed by the "
    "stand-in, not run",
    r"(listing|submit)_out_unwritable": "root may write everywhere; the log of a missing "
    "folder ends the same way",
    r"output_(env_V|sandbox_private)": "-V and sandbox=PRIVATE, which the plugin never asks for",
    r"output_(10_nodes_tools|sister_dead.*)": "what the launchers of real nodes print",
    r"output_(badinterp|trap|.*_stderr)": "words of the shell and of the killer in the "
    "job's output, read by nobody",
    r"(nodes|pbsnodes|queue|queues|server|"
    r"version)_.*|queues": "commands that the plugin does not call",
    r"qrerun_.*|qrls_.*": "commands that the plugin does not call",
    r"submit_(block|interactive)_.*": "a qsub that waits for its job",
    r"submit_as_root": "root may submit to the stand-in, as tests run as root in containers",
}


def capture(name: str) -> str:
    CASES.setdefault(name, json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")))
    return STAMP.sub("", str(CASES[name]["stdout"]))


def is_odd_value(name: str) -> bool:
    return bool(
        re.fullmatch(
            r"json_(V|v|name|account|args|project)_(?!.*_poisons_).*_(new|old)client", name
        )
    )


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


@pytest.mark.skipif(not CAPTURES, reason="the captures are not beside this checkout")
def test_no_capture_is_passed_over_in_silence() -> None:
    silent = [
        name
        for name in CAPTURES
        if name not in KEPT and not is_odd_value(name) and not reasons(name)
    ]
    assert not silent
    assert not [name for name in KEPT if reasons(name)]
    for name in KEPT & set(CAPTURES):
        assert capture(name) == STAMP.sub("", str(CASES[name]["stdout"]))


def test_every_kept_capture_is_compared() -> None:
    tests = Path(__file__).parent.glob("test_*.py")
    named = {
        word for path in tests for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))
    }
    of_logs = {f"{kind}_out_{way}" for kind in ("submit", "listing") for way in test_logs.WAYS}
    assert not KEPT - named - {*test_forms.OWN, *test_standin.SUBMISSIONS} - of_logs
