"""A step, run in a process of its own, with a time limit."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
LIMIT = 240.0
"""Seconds of a step, after which it hangs."""
KEPT = 20000
"""Characters of what a step prints."""


class StepError(Exception):
    """A step that failed."""


class Check:
    """The steps on one device, in a scratch folder; `details` keeps what they did."""

    def __init__(self, device: str, folder: Path) -> None:
        self.device, self.folder = device, folder
        self.began = time.monotonic()
        self.details: dict[str, Any] = {}
        self.left_out: list[str] = []

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def run(self, name: str, command: list[str]) -> str:
        """Return what a process prints. StepError with its last words when it fails or hangs."""
        print(f"[{self.seconds:3.0f} s] {name}", file=sys.stderr, flush=True)
        began = time.monotonic()
        try:
            ended = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT
            )
        except subprocess.TimeoutExpired as error:
            output, errors = ((part or b"").decode() for part in (error.stdout, error.stderr))
            code: int | str = f"no end after {LIMIT:.0f} s"
        else:
            output, errors, code = ended.stdout, ended.stderr, ended.returncode
        self.details[name] = {
            "seconds": round(time.monotonic() - began, 1),
            "ended": code,
            "stdout": output[-KEPT:],
            "stderr": errors[-KEPT:],
        }
        if code:
            last = [line.strip() for line in errors.splitlines() if line.strip()][-3:]
            raise StepError(f"{name}: {code if isinstance(code, str) else ' '.join(last) or code}")
        return output

    def step(self, name: str, function: str, **arguments: Any) -> dict[str, Any]:
        """The result of a function of steps.py."""
        command = [sys.executable, str(HERE / "steps.py"), function, json.dumps(arguments)]
        result: dict[str, Any] = json.loads(self.run(name, command).splitlines()[-1])
        self.details[name]["result"] = result
        return result

    def embed(
        self, name: str, weights: Path, sequences: list[str], *options: str
    ) -> tuple[Any, Path]:
        """The completion record of a job that embeds these sequences, and the folder of its
        parts.
        """
        from plm_embed.jobs.completion_record import read_completion

        folder = self.folder / name.replace(" ", "")
        bucket = _write_bucket(folder / "0000.parquet", sequences)
        command = [sys.executable, "-m", "plm_embed", "embed", str(bucket)]
        command += ["--weights", str(weights), "--store", str(folder / "store")]
        command += ["--record", str(folder / "embedded" / "0000.json")]
        self.run(name, [*command, "--device", self.device, "--scratch", "", *options])
        record = read_completion(folder / "embedded" / "0000.json")
        if record.computed != len(set(sequences)):
            raise StepError(f"{name}: {record.computed} vectors of {len(set(sequences))} sequences")
        return record, folder / "store" / record.fingerprint_id / "parts"


def _write_bucket(path: Path, sequences: list[str]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from plm_embed.keys import key

    path.parent.mkdir()
    rows = sorted((key(text), text, len(text)) for text in set(sequences))
    keys, texts, lengths = map(list, zip(*rows, strict=True))
    columns = {"key": keys, "sequence": texts, "length": pa.array(lengths, pa.int32())}
    pq.write_table(pa.table(columns), path)
    return path
