"""Recorded answers of a real OpenPBS, comparison with them, and jobs of the stand-in that show
exactly what a recorded one showed.
"""

import json
import re
from pathlib import Path
from typing import Any

from shell import run
from standin import render
from standin.model import Job

DATA = Path(__file__).parent / "data"
CASES: dict[str, dict[str, Any]] = {
    case["case"]: case
    for case in map(json.loads, (DATA / "captures.jsonl").read_text(encoding="utf-8").splitlines())
}


def recorded_job(case: str, position: int = 0) -> Job:
    """A job that shows exactly the attributes that a recorded JSON or `-w` text shows."""
    out = CASES[case]["stdout"]
    if out.startswith("Job Id: "):
        first, *lines = out.strip().splitlines()
        attributes: dict[str, Any] = {}
        for line in lines:
            key, _, value = line.strip().partition(" = ")
            if key == "Variable_List":
                attributes[key] = dict(part.split("=", 1) for part in value.split(","))
            elif "." in key:
                outer, inner = key.split(".")
                attributes.setdefault(outer, {})[inner] = value
            else:
                attributes[key] = value
        return blank(first.removeprefix("Job Id: "), attributes)
    if "latin-1" in str(CASES[case].get("encoding")):  # not UTF-8: the bytes one by one
        out = out.encode("latin-1").decode(errors="surrogateescape")
    job_id, attributes = list(json.loads(out)["Jobs"].items())[position]
    variables: dict[str, str] = {}
    for key, value in attributes.get("Variable_List", {}).items():
        if str(value).startswith(",") and "=" in str(value):  # what an empty variable swallowed
            variables[key] = ""
            swallowed, _, rest = str(value)[1:].partition("=")
            variables[swallowed] = rest
        else:
            variables[key] = value if isinstance(value, str) else _as_given(key, value, attributes)
    return blank(job_id, {**attributes, "Variable_List": variables})


def _as_given(key: str, shown: Any, attributes: dict[str, Any]) -> str:
    """A variable that new clients show as a number, a list or a constant, as it was typed."""
    typed = re.search(rf"-v {key}=((?:\\.|[^\s,\\])+)", attributes.get("Submit_arguments", ""))
    return re.sub(r"\\(.)", r"\1", typed[1]) if typed else json.dumps(shown)


def blank(job_id: str, attributes: dict[str, Any]) -> Job:
    nowhere = Path("/")
    number, bracket, index = job_id.partition(".")[0].partition("[")
    return Job(
        number=int(number),
        index=bracket + index,
        name=attributes["Job_Name"],
        owner=attributes["Job_Owner"].partition("@")[0],
        queue=attributes["queue"],
        state=attributes["job_state"],
        script="",
        cwd=nowhere,
        arguments="",
        walltime=None,
        chunks=[],
        resources={},
        output=nowhere,
        error=nowhere,
        given=attributes,
    )


def recorded_text(case: str) -> str:
    """A recorded job as `qstat -f` prints it."""
    return render.text(recorded_job(case), wide=False)


SCRIPTS = {
    "j_ok.sh": "#!/bin/sh\necho out\necho err >&2\n",
    "j_crlf.sh": "#!/bin/sh\r\necho hi\r\n",
    "j_directives.sh": "#!/bin/sh\n#PBS -q debug\n#PBS -l select=1:ncpus=1\n#PBS -l "
    "walltime=60\n#PBS -N fromfile\n",
    "j_multi.sh": "#!/bin/sh\n",
    "wave.sh": "#!/bin/sh\n",
    "j_array.sh": "#!/bin/sh\n",
}


def normal(text: str) -> str:
    """Numbers of jobs, times and header fields that differ between any two runs."""
    text = re.sub(r'("timestamp":\s*)\d+', r"\g<1>0", text)
    return re.sub(r"\b\d+(\[\])?(\.pbs01)?(?=[\s\"]|$)", r"N\1", text)


def same(case: str, command: str, folder: Path) -> bool:
    """Whether a command answers here as in the recorded case, apart from the numbers of jobs."""
    done = run(command, folder)
    recorded = CASES[case]
    assert (done.returncode, normal(done.stdout), normal(done.stderr)) == (
        recorded["exit_code"],
        normal(recorded["stdout"]),
        normal(recorded["stderr"]),
    )
    return True
