"""The lines of the verdict."""

import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from paper import Paper

from plm_embed.accuracy import FALLBACK
from plm_embed.jobs.completion_record import Completion
from plm_embed.store.parts import Part

TOO_SLOW = 0.5
"""Share of the speed in `plan` below which the times of plans are of no use."""
ROUNDING = 2e-3
"""Bound for the distance of a mean in float16 and the mean of rows in float16, relative."""


@dataclass
class Line:
    """Observations of something, and faults of it."""

    name: str
    seen: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        mark = "FAIL" if self.wrong else "ok  "
        return f"{mark}  {self.name}: {'; '.join(self.wrong or self.seen)}"


def device_line(line: Line, device: dict[str, Any]) -> None:
    line.seen.append(device["name"])
    if "capability" in device:
        line.seen.append(f"capability {device['capability']}, {device['gigabytes']} GB")
        line.seen.append(f"driver {_driver()}")
    line.seen.append(f"torch {device['torch']}")


def _driver() -> str:
    tool = shutil.which("nvidia-smi")
    command = [tool or "", "--query-gpu=driver_version", "--format=csv,noheader"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False) if tool else None
    return answer.stdout.split("\n")[0] if answer and not answer.returncode else "not known"


def job_line(line: Line, record: Completion, places: dict[str, int], paper: Paper) -> None:
    """A job, by its completion record, and the places of a batch."""
    tested, speed = record.self_test, record.tokens_per_second
    if tested is None or speed is None:
        line.wrong.append("nothing was computed")
        return
    line.seen.append(f"self-test passed in {record.fingerprint.compute_dtype}")
    line.seen.append(f"cosine {tested.cosine:.6f}, relative error {tested.relative_error:.1e}")
    if not tested.batch_invariant or places["different"]:
        line.wrong.append(f"other bits in {places['different']} of {places['all']} places")
    line.seen.append(f"equal bits in {places['all']} places")
    for kernel in (tested.attention, tested.elementwise):
        (line.wrong if FALLBACK in kernel else line.seen).append(kernel)
    rate = f"{speed:,.0f} tokens/s"
    if paper.planned:
        rate += f" (in plan {paper.planned:,.0f})"
    (line.wrong if speed < TOO_SLOW * paper.planned else line.seen).append(rate)


def matrices_line(line: Line, record: Completion, parts: Path) -> None:
    """A job with matrices, whose rows have the mean that lies beside them."""
    residues, apart = 0, []
    for info in record.parts:
        with Part(parts / info.name) as part:
            everything = np.arange(part.count)
            mean, matrix = (
                part.rows(name, everything)
                for name in sorted(part.names)  # mean_l..., per_residue_l...
            )
            for row, rows, length in zip(
                mean, matrix, part.column_at("length", np.arange(part.count)), strict=True
            ):
                exact = rows.astype(np.float64).mean(0)
                residues += len(rows)
                if len(rows) != length or not np.isfinite(exact).all():
                    line.wrong.append(f"{len(rows)} rows of {length} residues, or no numbers")
                apart.append(np.linalg.norm(row - exact) / np.linalg.norm(exact))
    line.seen.append(f"{residues:,} rows, whose means are those stored")
    if max(apart) > ROUNDING:
        line.wrong.append(f"means of rows are off by {max(apart):.1e}")
