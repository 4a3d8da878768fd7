"""Make the pictures of the manual anew: `make pictures`.

The demo and the proteins of the tutorial run in a folder of their own. The report is photographed
by chromium. `plm-embed watch` is drawn as it looks when half of the demo is done: the completion
records of two buckets, what came later and the note of the run are taken away, and two workers are
said to be at work. The picture is what `watch` itself makes of this folder.
"""

import os
import re
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml
from rich.console import Console

from plm_embed.jobs.completion_record import WorkerInfo
from plm_embed.jobs.heartbeat import FOLDER, Heartbeat, write_heartbeat
from plm_embed.reporting.watch import look, view
from plm_embed.workflow.run_note import run_note

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
MODEL = "esm2_t3_untrained"
REPORT = "report.html"
RESULTS = Path("results")
WIDTH, HEIGHT, COLUMNS = 1240, 1680, 110


def demo() -> None:
    """Run the shipped configuration here."""
    config = yaml.safe_load((ROOT / "config" / "config.yaml").read_text(encoding="utf-8"))
    config["inputs"] = [
        entry | {"path": str(ROOT / entry["path"])}
        if isinstance(entry, dict)
        else str(ROOT / entry)
        for entry in config["inputs"]
    ]
    config["buckets"] = 4
    Path("config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    program = [
        sys.executable,
        "-m",
        "snakemake",
        "--snakefile",
        str(ROOT / "workflow" / "Snakefile"),
    ]
    options = ["--configfile", "config.yaml", "--cores", "2", "--quiet", "all"]
    subprocess.run([*program, *options], check=True)


def report() -> None:
    """Draw the top of a report on the influenza proteins of the tutorial."""
    columns = (
        "--id-column",
        "brc_fea_id",
        "--sequence-column",
        "esm2_ready_seq",
        "--keep",
        "function",
    )
    table = str(ROOT / "docs" / "protein_final.csv.xz")
    program = [sys.executable, "-m", "plm_embed", "run", table, "--model", MODEL]
    subprocess.run([*program, *columns, "--results", "influenza"], check=True)
    subprocess.run(
        [
            *("chromium", "--headless", "--no-sandbox", "--hide-scrollbars"),
            "--virtual-time-budget=8000",
            f"--screenshot={PICTURES / 'report.png'}",
            f"--window-size={WIDTH},{HEIGHT}",
            Path("influenza", MODEL, REPORT).absolute().as_uri(),
        ],
        check=True,
        stderr=subprocess.DEVNULL,
    )


def watch() -> None:
    """Draw the screen of `plm-embed watch`, of a campaign that is half done."""
    model = RESULTS / MODEL
    run_note(RESULTS).unlink()
    for file in ("checksums.sha256", "records.parquet", REPORT):
        (model / file).unlink()
    for step in ("gather", "validate", "report"):
        (RESULTS / "logs" / MODEL / f"{step}.log").unlink()
    for number, bucket in enumerate(("0002", "0003")):
        (model / "embedded" / f"{bucket}.json").unlink()
        now = datetime.now(UTC)
        worker = WorkerInfo(
            pid=number + 1,
            state="computing",
            device="CPU",
            tokens_per_second=410.0 - 20 * number,
            computed=21 + 9 * number,
            progressed=(now - timedelta(seconds=2)).isoformat(timespec="seconds"),
        )
        beat = Heartbeat(
            bucket=bucket,
            host=f"node{number + 1}",
            tokens=4000 + 2500 * number,
            tokens_total=12000,
            eta_seconds=20.0 - 6 * number,
            workers=(worker,),
        )
        write_heartbeat(model / "embedded" / FOLDER / f"node1-{number}.json", beat)
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=COLUMNS, force_terminal=True, file=nowhere)
        console.print(view(look(RESULTS)))
        drawn = console.export_svg(title="plm-embed watch results")
    without_fonts = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)  # from the network
    (PICTURES / "watch.svg").write_text(without_fonts, encoding="utf-8")


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        demo()
        report()
        watch()
        os.chdir(ROOT)
    for picture in sorted(PICTURES.iterdir()):
        print(f"{picture.relative_to(ROOT)}: {picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
