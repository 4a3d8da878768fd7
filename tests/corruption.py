"""Damage to one file of a campaign, the steps that come after it, and what they make of it.

named: an error of one line or a few that names the damaged thing and what to run. harmless: all results are as they are
without the damage. Everything else is wrong: SILENT (a result differs without a word), traceback, hang, unnamed (an
error that does not name what is damaged), no remedy (it does not say what to do), not healed (its remedy does not lead
to the undisturbed results).
"""

import hashlib
import os
import random
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tiny_campaign import (
    BY_INPUT,
    INDEX,
    MASTER,
    ONE_JOB,
    RECORDS,
    VECTORS,
    WEIGHTS,
    read_as_users_do,
    results,
    run_command,
    run_step,
    steps_from,
)

REMEDIES = 2
"""So many errors one after the other may each name what to do."""
GOOD = ("named", "harmless", "told by checksums")
DAMAGES = {"flip": 6, "truncate": 2, "delete": 1, "swap": 2}
"""How often each is drawn."""
NO_SWAP = {"flip": 6, "truncate": 2, "delete": 1}


@dataclass(frozen=True)
class Kind:
    """A kind of file at a stage of a campaign, see `tiny_campaign.make_stages`.

    words: what else than the file's path names it in a message. damages: what can be seen at all: who names another
    input or checkpoint gets what he names.
    """

    stage: str
    name: str
    pattern: str
    words: str = ""
    damages: dict[str, int] = field(default_factory=lambda: DAMAGES, hash=False)

    def __str__(self) -> str:
        return f"{self.name} before {self.stage}"


def _before(stage: str, *kinds: tuple[str, ...]) -> list[Kind]:
    return [Kind(stage, *kind) for kind in kinds]


_SUMMARY = ("summary", "results/sequences/summary.json", "counts: |attributes: inputs")
_SEQUENCES = (
    _SUMMARY,
    ("buckets", "results/sequences/buckets/*.parquet", r"bucket {stem}|embedded/{stem}"),
    ("members", "results/sequences/members/*.parquet", r"bucket {stem}"),
    ("sequence records", "results/sequences/records.parquet"),
)
_WEIGHTS = (
    ("tensors", f"{WEIGHTS}/model.safetensors", f"{WEIGHTS}/"),
    ("manifest", f"{WEIGHTS}/manifest.json", f"{WEIGHTS}/"),
    ("self-test", f"{WEIGHTS}/self_test.npz", f"{WEIGHTS}/|self-test"),
)
_STORE = (
    ("parts", f"{VECTORS}/store/*/parts/*.h5"),
    ("fingerprint", f"{VECTORS}/store/*/fingerprint.json"),
    ("completion records", f"{VECTORS}/embedded/*.json", r"completion record.* {stem}|bucket {stem}"),
)
_SUBMISSIONS = ("submissions", f"{VECTORS}/submissions/*.json")
_RESULTS = (
    ("master", MASTER, "rows equal their parts: |keys: |attributes: |finite: |shapes and types: |spot checks: "),
    ("index", INDEX, "index: "),
    ("records", RECORDS, "records: "),
)
KINDS = [
    *(
        Kind("deduplicate", f"input {path}", f"inputs/{path}", damages=NO_SWAP)
        for path in ("a.fasta.gz", "b.fasta.bz2", "c.fasta.xz", "d.fasta.zst", "e.parquet")
    ),
    Kind("start", "checkpoint", "model.pt", damages=NO_SWAP),
    *_before(
        "split",
        ("scan's summary", "results/sequences/scans/*/summary.json", r"scans/{folder}"),
        ("scan's records", "results/sequences/scans/*/records.parquet", r"scans/{folder}"),
        ("scan's ranges", "results/sequences/scans/*/*.arrows", r"scans/{folder}"),
    ),
    *_before(
        "collect",
        ("scan's summary", "results/sequences/scans/*/summary.json", r"scans/{folder}"),
        ("scan's records", "results/sequences/scans/*/records.parquet", r"scans/{folder}"),
        ("split's summary", "results/sequences/splits/*/summary.json", r"splits/{folder}"),
        ("split's buckets", "results/sequences/splits/*/buckets/*.parquet", r"splits/|(bucket|members|buckets).{stem}"),
        ("split's members", "results/sequences/splits/*/members/*.parquet", r"splits/|(bucket|members|buckets).{stem}"),
    ),
    *_before("embed", *_SEQUENCES, *_WEIGHTS),
    *_before("half", *_STORE, *_SEQUENCES[1:2], *_WEIGHTS[1:]),
    *_before("gather", *_SEQUENCES, *_STORE, _SUBMISSIONS),
    *_before("compacted", ("notes", f"{VECTORS}/store/*/compacted/*.json"), *_STORE[:1]),
    *_before("validate", *_RESULTS, *_SEQUENCES, *_STORE, *_WEIGHTS),
    *_before(
        "read",
        *((name, path) for name, path, _ in _RESULTS),
        ("ids", INDEX.replace(".parquet", ".ids.arrow")),
        ("validation", "results/validation.json"),
        ("plan", "results/plan.json"),
        _SUMMARY[:2],
        ("checksums", f"{VECTORS}/checksums.sha256"),
    ),
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A damage that `seed` alone decides."""

    kind: Kind
    damage: str
    seed: int

    def __str__(self) -> str:
        return f"{self.kind}, {self.damage}, seed {self.seed}"


@dataclass
class Outcome:
    """What became of a case; what: the damage in words, message: what was said."""

    verdict: str
    what: str
    message: str = ""


def cases(count: int, seed: int, kinds: list[Kind]) -> list[Case]:
    """As many of each kind, in turn, with damages drawn by their weights."""
    chance = random.Random(seed)
    drawn = []
    for number in range(count):
        kind = kinds[number % len(kinds)]
        damage = chance.choices(list(kind.damages), list(kind.damages.values()))[0]
        drawn.append(Case(kind, damage, chance.randrange(1 << 31)))
    return drawn


class Trial:
    """A copy of a campaign at one stage, which is damaged and goes on."""

    def __init__(self, case: Case, stages: Path, others: Path | None, folder: Path) -> None:
        """`stages` and `others`: two campaigns by `make_stages`, the second of other inputs and weights.

        Without the second, files are only swapped with others of the same campaign.
        """
        self.case = case
        self.folder = folder
        self._stages = stages
        self._others = others
        self._undisturbed = stages / "read"
        self.steps = BY_INPUT if case.kind.stage in BY_INPUT[1:4] else ONE_JOB
        shutil.copytree(stages / case.kind.stage, folder)
        chance = random.Random(case.seed)
        self.path = chance.choice(sorted(folder.glob(case.kind.pattern)))
        self.what = self._damage(chance)

    def _damage(self, chance: random.Random) -> str:
        path, content, stamp = self.path, self.path.read_bytes(), self.path.stat()
        name = path.relative_to(self.folder)
        if self.case.damage == "delete":
            path.unlink()
            return f"{name} deleted"
        if self.case.damage == "flip":
            bit = chance.randrange(8 * len(content))
            changed = bytearray(content)
            changed[bit // 8] ^= 1 << bit % 8
            path.write_bytes(changed)
            what = f"{name}: bit {bit % 8} of byte {bit // 8} of {len(content)} flipped"
        elif self.case.damage == "truncate":
            size = chance.randrange(len(content))
            size += content[size:].startswith(content[:4])  # nobody sees that a whole stream is missing
            path.write_bytes(content[:size])
            what = f"{name}: cut to {size} of {len(content)} bytes"
        else:
            what = f"{name} swapped with {self._swap(chance, content)}"
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # what rots keeps its age
        return what

    def _swap(self, chance: random.Random, content: bytes) -> str:
        """With another file of the kind in this campaign, or with one of another campaign."""
        own = [path for path in sorted(self.folder.glob(self.case.kind.pattern)) if path.read_bytes() != content]
        if own and (self._others is None or chance.random() < 0.5):
            other = chance.choice(own)
            self.path.write_bytes(other.read_bytes())
            other.write_bytes(content)
            return str(other.relative_to(self.folder))
        assert self._others is not None, f"{self.case.kind}: there is one file"
        other = chance.choice(sorted((self._others / self.case.kind.stage).glob(self.case.kind.pattern)))
        self.path.write_bytes(other.read_bytes())
        return f"another campaign's {other.name}"

    def run(self, *, heal: bool) -> Outcome:
        """Go on after the damage; with `heal` follow the remedy that the error names, and see that all is well."""
        stage = self.case.kind.stage
        first = {"half": "embed", "compacted": "gather"}.get(stage, stage)
        if first == "read":
            failed, message = self._use()
        elif first == "start":
            failed, message = self._go_on(self.steps[:-1])
        else:
            failed, message = self._go_on(steps_from(first, self.steps))
        outcome = Outcome(self._verdict(failed, message), self.what, message)
        if heal and outcome.verdict == "named":
            healed, story = self._heal(failed, message)
            outcome = outcome if healed else Outcome("NOT HEALED", self.what, story)
        return outcome

    def _go_on(self, steps: Sequence[str]) -> tuple[str, str]:
        """Run these steps; the one that failed, empty if none, and its words."""
        for step in steps:
            status, words = run_step(self.folder, step)
            if status:
                return step, f"exit status {status}\n{words}" if status != 1 else words
        return "", ""

    def _use(self) -> tuple[str, str]:
        """Do with finished results what users do; which use failed, and what was read and said."""
        said = []
        for exported in self.folder.glob("vectors.npy*"):
            exported.unlink()
        uses = {
            "export": ["export", VECTORS, "vectors.npy", "--to", "npy"],
            "report": ["report", "results"],
            "summary": ["summary", "results"],
        }
        for use in ("read", *uses):
            status, words = run_command(self.folder, uses[use]) if use in uses else read_as_users_do(self.folder)
            if status:
                return use, f"exit status {status}\n{words}" if status != 1 else words
            said.append(words)
        said.append((self.folder / "results" / "report.html").read_text(encoding="utf-8"))
        said.append(hashlib.sha256((self.folder / "vectors.npy").read_bytes()).hexdigest())
        return "", "\n".join(_TIMES.sub("", each) for each in said)

    def _verdict(self, failed: str, message: str) -> str:
        if not failed:
            if self._right(message):
                return "harmless"
            return "told by checksums" if self.case.kind.stage == "read" and self._checksums_tell() else "SILENT"
        if message.startswith("exit status -99"):
            return "hang"
        if "Traceback (most recent call last)" in message or message.startswith("exit status"):
            return "traceback"
        error = _error(message)
        if not re.search(self._names(), error):
            return "unnamed"
        return "named" if _ACTION.search(error) else "no remedy"

    def _names(self) -> str:
        """Pattern of what names the damaged thing: its path, its folder's, or the words of its kind."""
        words = self.case.kind.words.format(stem=self.path.stem, folder=self.path.parent.name)
        path = str(self.path.relative_to(self.folder))
        folder = str(self.path.parent.relative_to(self.folder)) if self.case.damage == "delete" else path
        return "|".join(filter(None, [re.escape(path), re.escape(folder), words]))

    def _right(self, said: str) -> bool:
        """Whether the results are those of the undisturbed campaign, and what was said of them too."""
        if self.case.kind.stage == "read":
            return said == undisturbed_uses(self._stages)
        if all((self.folder / path).read_bytes() == (self._undisturbed / path).read_bytes()
               for path in (MASTER, INDEX, RECORDS)):  # fmt: skip
            return True
        inputs = not self.case.kind.name.startswith("input ")  # the checksum of a damaged file is another
        return results(self.folder, inputs=inputs) == results(self._undisturbed, inputs=inputs)

    def _checksums_tell(self) -> bool:
        command = ["sha256sum", "--check", "--quiet", "--strict", "checksums.sha256"]
        done = subprocess.run(command, cwd=self.folder / VECTORS, capture_output=True, check=False)
        return done.returncode != 0

    def _heal(self, failed: str, message: str) -> tuple[bool, str]:
        """Do what the error says, and what the next one says; whether all is right then, and the story."""
        story = ""
        for _ in range(REMEDIES):
            error = _error(message)
            story += f"{error.strip()}\n"
            again = self._follow(failed, error)
            story += f"-> {' '.join(again) or 'no rule or command of this campaign is named'}\n"
            if not again:
                return False, story
            failed, message = self._go_on(again) if again[0] in self.steps else ("", "")
            if not failed and self.case.kind.stage == "read":
                failed, message = self._use()
            if not failed:
                return self._right(message), f"{story}the results differ\n"
        return False, f"{story}{failed}: {_error(message)}"

    def _follow(self, failed: str, error: str) -> list[str]:
        """Do what comes before a repetition; the steps to repeat, none when the error names nothing to do."""
        for path in re.findall(r"\b(?:[Rr]emove|[Dd]elete) (\S+?)(?:[,;.]? |$)", error):
            target = self.path if path in ("it", "the", "this", "that") else self.folder / path
            if target.is_dir():
                shutil.rmtree(target)
            target.unlink(missing_ok=True)
        if forced := re.search(r"snakemake[^`\n]*--forcerun (\w+)", error):
            return self._rule(forced[1])
        if literal := re.search(r"plm-embed (\w+ [^`\n]*--[^`\n]+)", error):
            command = shlex.split(literal[1])
            status, _ = run_command(self.folder, command)
            return [] if status else steps_from(command[0], self.steps)[1:]
        if bare := re.search(r"plm-embed (\w+)\b(?! \w+ --)", error):
            if bare[1] == "deduplicate" and "deduplicate" not in self.steps:  # by hand it does as well
                return steps_from("deduplicate", ONE_JOB)
            return self._rule(bare[1])
        if re.search(r"\b(fetch|copy)\b.* again", error):
            shutil.copy2(self._stages / self.case.kind.stage / self.path.relative_to(self.folder), self.path)
        elif not re.search(r"\bagain\b|`snakemake", error):
            return []
        return steps_from(failed, self.steps) if failed in self.steps else ["use"]

    def _rule(self, name: str) -> list[str]:
        """The steps that Snakemake repeats when this rule is forced; scans and splits are gone after collect."""
        if name not in self.steps:
            return []
        gone = not list(self.folder.glob("results/sequences/scans/*"))
        return steps_from("scan" if name in ("split", "collect") and gone else name, self.steps)


def _error(message: str) -> str:
    """What the user is told, without the log before it."""
    found = re.search(r"(plm-embed: error|^Error): ", message, re.MULTILINE)
    return message[found.start() :] if found else message


_ACTION = re.compile(r"\b(run|remove|delete|fetch|copy|put|restore|name)\b", re.IGNORECASE)
_TIMES = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?( UTC)?|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}")
_USES: dict[Path, str] = {}


def undisturbed_uses(stages: Path) -> str:
    """What is read and said of the undisturbed results."""
    if stages not in _USES:
        probe = Trial.__new__(Trial)
        probe.folder = stages / "uses"
        shutil.copytree(stages / "read", probe.folder, dirs_exist_ok=True)
        failed, _USES[stages] = probe._use()
        assert not failed, _USES[stages]
    return _USES[stages]


def try_out(case: Case, stages: Path, others: Path | None, folder: Path, *, heal: bool = True) -> Outcome:
    """Run a case in the new folder `folder`, and remove it."""
    try:
        return Trial(case, stages, others, folder).run(heal=heal)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
