"""Damage to every kind of file of a campaign at every stage, and the remedy that the message names.

    .venv/bin/python tests/sweep.py --cases 1000 --seed 1
    .venv/bin/python tests/sweep.py --kinds 'parts before gather' --damage flip --only 1234567

A damaged campaign goes on, and finished results are used. All is as it would be without the damage
(harmless), or an error of a few lines names what is damaged and what to do; that is done, the
campaign runs again, and all is whole (healed). Everything else is bad: SILENT (results differ
without a word), traceback, hang, unnamed, no remedy, NOT HEALED. Prints a line per kind, and what
is needed to see a bad case again. Exit status 1 if there is one.
"""

import argparse
import os
import random
import re
import shlex
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import pyarrow.parquet as pq

from plm_embed.store.checksums import SEAL
from support.campaign_runs import snakemake
from support.tiny_campaign import (
    FORK,
    begin,
    digest,
    half_embedded,
    read_as_users_do,
    run_command,
    run_step,
)
from support.tiny_steps import INDEX, MASTER, MODEL, OUTPUTS, RECORDS, VECTORS, WEIGHTS

GOOD = ("harmless", "healed")
ROUNDS = 2
"""So many errors one after the other may each name what to do."""
STAGES = ("start", "deduplicate", "embed", "half", "gather", "validate", "finished")
"""Each is a copy of the campaign at which the step of this name comes next; start: only inputs and
checkpoint; half: embed was killed when one bucket was done and parts of another were written.
"""
DAMAGES = {"flip": 6, "cut": 2, "delete": 1, "swap": 2}
"""Weights of the draw. A swap is with a file of the same kind, or another campaign's."""
INPUTS = {"deduplicate": "inputs/*", "start": "model.pt"}
"""Files of the user, by the stage that reads them. Who names others gets what they hold."""
SEQUENCES = {
    "summary": "results/sequences/summary.json",
    "buckets": "results/sequences/buckets/*.parquet",
    "members": "results/sequences/members/*.parquet",
    "sequence records": "results/sequences/records.parquet",
}
PREPARED = {
    "tensors": f"{WEIGHTS}/model.safetensors",
    "head": f"{WEIGHTS}/lm_head.safetensors",
    "manifest": f"{WEIGHTS}/manifest.json",
    "self-test": f"{WEIGHTS}/self_test.npz",
    "record of weights": f"{VECTORS}/weights.json",
}
STORE = {
    "parts": f"{VECTORS}/store/*/parts/*.h5",
    "fingerprint": f"{VECTORS}/store/*/fingerprint.json",
    "completion records": f"{VECTORS}/embedded/*.json",
}
RESULTS = {"master": MASTER, "index": INDEX, "records": RECORDS}
LATER = {name: f"{VECTORS}/{name}" for name in ("validation.json", "checksums.sha256")}
READ = {
    "embed": SEQUENCES | PREPARED,
    "half": STORE,
    "gather": SEQUENCES | STORE,
    "validate": SEQUENCES | PREPARED | STORE | RESULTS,
    "finished": SEQUENCES | PREPARED | STORE | RESULTS | LATER,
}
USES = {
    "read": [],
    "validate": ["validate", "results"],
    "export": ["export", VECTORS, "vectors.npy", "--to", "npy"],
    "report": ["report", "results"],
    "summary": ["summary", "results"],
}
"""Uses of finished results."""
REMEDY = re.compile(r"(?:delete (?P<paths>[^;\n]*?) and )?run (?:the campaign )?again")
COMMAND = re.compile(r"run `plm-embed (?P<command>[^`\n]+)`")


class Case(NamedTuple):
    """A damage to a file of a kind at a stage, which the seed alone decides."""

    name: str
    stage: str
    pattern: str
    damage: str = "flip"
    seed: int = 0

    @property
    def kind(self) -> str:
        return f"{self.name} before {self.stage}"


KINDS = [
    *(Case(pattern, stage, pattern) for stage, pattern in INPUTS.items()),
    *(Case(name, stage, path) for stage, kinds in READ.items() for name, path in kinds.items()),
]


def cases(count: int, seed: int, kinds: list[Case]) -> list[Case]:
    """Draw as many cases of each kind, in turn."""
    chance = random.Random(seed)
    drawn = []
    for kind in (kinds[number % len(kinds)] for number in range(count)):
        damage = chance.choices(list(DAMAGES), list(DAMAGES.values()))[0]
        if damage == "swap" and kind.stage in INPUTS:
            damage = "flip"
        drawn.append(kind._replace(damage=damage, seed=chance.randrange(1 << 31)))
    return drawn


def make_stages(root: Path, seed: int = 1) -> Path:
    """Run a campaign in `root`/finished, and keep a copy of every stage beside it."""
    folder = root / "finished"
    begin(folder, seed)
    steps = ("weights", "deduplicate", "embed", "gather", "validate", "report")
    for step, stage in zip(steps, ("start", *STAGES[1:3], *STAGES[4:6], ""), strict=True):
        if stage:
            shutil.copytree(folder, root / stage)
        status, words = run_step(folder, step)
        assert not status, words
    half_embedded(Path(shutil.copytree(root / "gather", root / "half")))
    return root


def damage(case: Case, folder: Path, others: Path | None) -> list[Path]:
    """Damage a file of the campaign in `folder`, two if they are swapped; return their paths."""
    chance = random.Random(case.seed)
    paths = sorted(folder.glob(case.pattern))
    path = chance.choice(paths)
    content, stamp, damaged = path.read_bytes(), path.stat(), [path]
    place = chance.randrange(8 * len(content))
    if case.damage == "delete":
        path.unlink()
        return damaged
    if case.damage == "swap":
        own = [other for other in paths if other.read_bytes() != content]
        if own and (others is None or chance.random() < 0.5):
            damaged.append(chance.choice(own))
            path.write_bytes(damaged[1].read_bytes())
            damaged[1].write_bytes(content)
        elif others:
            other = chance.choice(sorted((others / case.stage).glob(case.pattern)))
            path.write_bytes(other.read_bytes())
    if case.damage == "cut":
        size = place // 8
        size += content[size:].startswith(content[:4])  # nobody sees that a whole stream is missing
        path.write_bytes(content[:size])
    if path.read_bytes() == content:  # a flip, or a swap without another file
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        path.write_bytes(changed)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # what rots keeps its age
    return damaged


def run_campaign(folder: Path) -> tuple[int, str]:
    """Do what Snakemake does: run each step that misses an output, and those that need it."""
    ran: set[str] = set()
    needs = {"embed": {"weights", "deduplicate"}, "gather": {"embed"}}
    needs |= {"validate": {"gather"}, "report": {"validate"}}
    for step, outputs in OUTPUTS.items():
        anew = bool(ran & needs.get(step, set()))
        if anew or not all((folder / path).exists() for path in outputs):
            status, words = run_step(folder, step, missing_only=not anew)
            if status:
                return status, words
            ran.add(step)
    return 0, ""


def use_results(folder: Path, seed: int) -> tuple[int, str, str]:
    """Use finished results in an order of its own; exit status and words of what failed, and what
    was read.
    """
    read = ""
    for name in random.Random(seed).sample(list(USES), len(USES)):
        for exported in folder.glob("vectors.npy*"):
            exported.unlink()
        status, words = run_command(folder, USES[name]) if USES[name] else read_as_users_do(folder)
        if status:
            return status, words, ""
        read = read if USES[name] else words
    return 0, "", read


def held(folder: Path) -> dict[str, Any]:
    """Return what master, index and records hold, but commit and seal."""
    left_out = {"workflow_commit", SEAL}
    content: dict[str, Any] = {path: pq.read_table(folder / path) for path in (INDEX, RECORDS)}
    with h5py.File(folder / MASTER) as master:
        content |= {name: str(master.attrs[name]) for name in master.attrs.keys() - left_out}
        names: list[str] = []
        master.visit(names.append)
        for name in names:
            if isinstance(master[name], h5py.Dataset):
                content[name] = digest(master[name][...])
    return content


@cache
def undisturbed(stages: Path) -> tuple[str, dict[str, Any]]:
    """Return what is read of undamaged results, and what they hold."""
    folder = Path(shutil.copytree(stages / "finished", stages / "used", dirs_exist_ok=True))
    status, words, read = use_results(folder, 0)
    assert not status, words
    return read, held(folder)


def try_out(
    case: Case, stages: Path, others: Path | None, folder: Path, *, real: bool = False
) -> tuple[str, str]:
    """Damage a copy of a campaign in the new folder `folder`, which is removed in the end, and go
    on; return the verdict and the story. real: Snakemake itself goes on.
    """
    shutil.copytree(stages / case.stage, folder)
    try:
        damaged, story = damage(case, folder, others), ""
        story += f"{case.damage}: {' and '.join(str(path.relative_to(folder)) for path in damaged)}"
        for _ in range(ROUNDS + 1):
            if real:
                done = snakemake(folder, "--cores", "1")
                status, words = done.returncode, done.stdout
            else:
                status, words = run_campaign(folder)
            if not status:
                status, words, read = use_results(folder, case.seed)
            if not status:
                whole = undisturbed(stages)
                changed = {"inputs"} if case.stage in INPUTS else set()
                same = read == whole[0] and all(
                    held(folder)[name] == value
                    for name, value in whole[1].items()
                    if name not in changed
                )
                good = "healed" if "->" in story else "harmless"
                return good if same else "NOT HEALED" if "->" in story else "SILENT", story
            error = words[max(words.rfind("plm-embed: error"), words.rfind("\nError:"), 0) :]
            story += f"\n{error.strip()}"
            if status != 1 or "Traceback (most recent call last)" in error:
                return "hang" if status == -99 else "traceback", story
            names = [path.stem for path in damaged] + [path.parent.name for path in damaged]
            if "->" not in story and not any(name in error for name in names):
                return "unnamed", story
            if not (followed := follow(case, error, folder, stages, damaged)):
                return "no remedy", story
            story += f"\n-> {followed}"
        return "NOT HEALED", story
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def follow(case: Case, error: str, folder: Path, stages: Path, damaged: list[Path]) -> str:
    """Do what an error says; what was done, empty when it says nothing."""
    if case.stage in INPUTS:  # who has a good copy of the file
        for path in damaged:
            shutil.copy2(stages / case.stage / path.relative_to(folder), path)
        return "the good copy"
    remedy, command = REMEDY.search(error), COMMAND.search(error)
    if remedy and remedy["paths"]:
        for named in remedy["paths"].split(" and "):
            (word,) = shlex.split(named.replace("{model}", MODEL))
            path = damaged[0] if word == "it" else folder / word
            if not path.is_relative_to(folder):  # of another campaign
                return ""
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    elif command and not remedy:
        status, words = run_command(folder, shlex.split(command["command"]))
        return "" if status else command[0] + words
    return remedy[0] if remedy else ""


def _run(case: Case, folder: Path, campaigns: tuple[Path, Path], real: bool) -> tuple[str, str]:
    return try_out(case, *campaigns, folder, real=real)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default="", help="only kinds whose name and stage contain this")
    parser.add_argument("--damage", choices=DAMAGES, help="only this one")
    parser.add_argument("--only", type=int, help="the seed of one case, as the list has it")
    parser.add_argument("--campaigns", type=Path, help="keep the whole campaigns in this folder")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--snakemake", action="store_true", help="the real one; 20 s a case")
    options = parser.parse_args()
    kinds = [case for case in KINDS if options.kinds in case.kind]
    if not kinds:
        parser.error("no such kind; there are:\n  " + "\n  ".join(case.kind for case in KINDS))
    chosen = cases(options.cases, options.seed, kinds)
    if options.only is not None:
        chosen = [chosen[0]._replace(seed=options.only)]
    chosen = [case._replace(damage=options.damage or case.damage) for case in chosen]
    table = defaultdict[str, Counter[str]](Counter)
    with tempfile.TemporaryDirectory(prefix="plm-sweep-") as temporary:
        root = options.campaigns or Path(temporary)
        campaigns = root / "stages", root / "others"
        for folder, seed in zip(campaigns, (1, 2), strict=True):
            if not folder.exists():
                make_stages(folder, seed)
        undisturbed(campaigns[0])  # once, before this process forks
        folders = [Path(temporary, f"case-{number}") for number in range(len(chosen))]
        run = partial(_run, campaigns=campaigns, real=options.snakemake)
        with ProcessPoolExecutor(options.jobs, mp_context=FORK) as pool:
            for case, (verdict, story) in zip(chosen, pool.map(run, chosen, folders), strict=True):
                table[case.kind][verdict] += 1
                if verdict not in GOOD:
                    print(f"{verdict}: --kinds '{case.kind}' --damage {case.damage}", end=" ")
                    print(f"--only {case.seed}\n    " + "\n    ".join(story.splitlines()[-30:]))
    totals = sum(table.values(), Counter[str]())
    verdicts = sorted(totals, key=lambda name: (name not in GOOD, name))
    width = max(map(len, table))
    print(f"{'':{width}}  " + "  ".join(verdicts))
    for kind, counts in [*table.items(), ("all", totals)]:
        numbers = (f"{counts[name] or '.':>{len(name)}}" for name in verdicts)
        print(f"{kind:{width}}  " + "  ".join(numbers))
    return int(any(name not in GOOD for name in totals))


if __name__ == "__main__":
    sys.exit(main())
