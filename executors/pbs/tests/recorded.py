"""Recorded answers of a real OpenPBS, and its jobs as `qstat -f` prints them."""

import json
from pathlib import Path
from typing import Any

from snakemake_executor_plugin_pbs.commands import Answer
from snakemake_executor_plugin_pbs.parse import Record, read_jobs

DATA = Path(__file__).parent / "data" / "captures.jsonl"
CASES: dict[str, dict[str, Any]] = {
    case["case"]: case for case in map(json.loads, DATA.read_text(encoding="utf-8").splitlines())
}


def answer(case: str) -> Answer:
    """A recorded answer; jobs that were recorded as JSON are text in it, as the plugin asks."""
    recorded = CASES[case]
    code = recorded["exit_code"]
    code = None if code == 124 else code  # cut by `timeout`
    return Answer(code, text(recorded["stdout"]), recorded["stderr"])


def record(case: str) -> Record:
    """The one job of a recorded answer."""
    (only,) = read_jobs(answer(case).out)
    return only


def text(output: str) -> str:
    """`qstat -f -F json` as `qstat -f` would be."""
    if not output.startswith("{"):
        return output
    blocks = []
    for job_id, attributes in json.loads(output).get("Jobs", {}).items():
        lines = [f"Job Id: {job_id}"]
        for key, value in attributes.items():
            if isinstance(value, dict):
                lines += [f"    {key}.{inner} = {shown}" for inner, shown in value.items()]
            else:
                lines.append(f"    {key} = {value}")
        blocks.append("\n".join(lines) + "\n\n")
    return "".join(blocks)
