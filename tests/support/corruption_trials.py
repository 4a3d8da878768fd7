"""A damaged campaign goes on: what its steps make of the damage.

named: an error of one line or a few that names the damaged thing and what to run. harmless: all
results are as they are without the damage. warned: results are shown with a warning that names the
damaged thing and what to run. told by checksums: who reads finished results gets others, and
`sha256sum --check` says so. Everything else is wrong: SILENT (a result differs without a word),
traceback, hang, unnamed (an error that does not name what is damaged), no remedy (it does not say
what to do; about a file of the user's own it need not), NOT HEALED (what it says to do does not
lead to the undisturbed results).
"""

import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.campaign_runs import snakemake
from support.corruption import Case, damage
from support.said import ACTION, WARNING, WAYS, error_of
from support.tiny_campaign import run_command, run_step
from support.tiny_results import results
from support.tiny_steps import (
    INDEX,
    MASTER,
    MODEL,
    OUTPUTS,
    RECORDS,
    STEPS,
    VECTORS,
    WEIGHTS,
    steps_from,
)
from support.uses import undisturbed_uses, use

REMEDIES = 2
"""So many errors one after the other may each name what to do."""
GOOD = ("named", "harmless", "warned", "told by checksums")


@dataclass
class Outcome:
    """What became of a case; what: the damage in words, message: what was said."""

    verdict: str
    what: str
    message: str = ""


class Trial:
    """A copy of a campaign at one stage, which is damaged and goes on."""

    def __init__(
        self,
        case: Case,
        stages: Path,
        others: Path | None,
        folder: Path,
        *,
        by_snakemake: bool = False,
    ) -> None:
        """`stages` and `others`: two campaigns by `make_stages`, the second of other inputs and
        weights.

        Without the second, files are only swapped with others of the same campaign. by_snakemake:
        the real one goes on.
        """
        self.case = case
        self.folder = folder
        self._by_snakemake = by_snakemake
        self._forced = ""
        self._stages = stages
        self._undisturbed = stages / "read"
        shutil.copytree(stages / case.kind.stage, folder)
        self.path, self.what = damage(case, folder, others)

    def run(self, *, heal: bool) -> Outcome:
        """Go on after the damage; with `heal` follow the remedy that the error names, and see that
        all is well.
        """
        if self.case.kind.stage == "read":
            failed, message = use(self.folder)
        else:
            first = next(step for step in STEPS if self._is_missing(step))
            failed, message = self._go_on(STEPS[:-1] if first == "weights" else steps_from(first))
        outcome = Outcome(self._verdict(failed, message), self.what, message)
        if heal and outcome.verdict == "named":
            healed, story = self._heal(failed, message)
            outcome = outcome if healed else Outcome("NOT HEALED", self.what, story)
        return outcome

    def _is_missing(self, step: str) -> bool:
        """Whether Snakemake runs a rule because an output of it is not there."""
        return not all((self.folder / path).exists() for path in OUTPUTS[step])

    def _go_on(self, steps: Sequence[str]) -> tuple[str, str]:
        """Run these steps; the one that failed, empty if none, and its words. Snakemake finds them
        by itself.
        """
        if self._by_snakemake:
            forced = ["--forcerun", self._forced] if self._forced else []
            done = snakemake(self.folder, "--cores", "1", *forced)
            return ("snakemake" if done.returncode else ""), done.stdout
        for step in steps:
            status, words = run_step(self.folder, step, missing_only=step == steps[0])
            if status:
                return step, f"exit status {status}\n{words}" if status != 1 else words
        return "", ""

    def _verdict(self, failed: str, message: str) -> str:
        if not failed:
            if self._right(message):
                return "harmless"
            if any(
                re.search(self._names(), line) and ACTION.search(line)
                for line in WARNING.findall(message)
            ):
                return "warned"
            return (
                "told by checksums"
                if self.case.kind.stage == "read" and self._checksums_tell()
                else "SILENT"
            )
        if message.startswith("exit status -99"):
            return "hang"
        if "Traceback (most recent call last)" in message or message.startswith("exit status"):
            return "traceback"
        error = error_of(message)
        if not re.search(self._names(), error):
            return "unnamed"
        return "named" if self.case.kind.is_the_users or ACTION.search(error) else "no remedy"

    def _names(self) -> str:
        """Pattern of what names the damaged thing: its path, its folder's, or the words of its
        kind.
        """
        names = []
        other = self.what.partition(" swapped with ")[2]  # is as wrong as the first
        for path in filter(None, (self.path.relative_to(self.folder), other and Path(other))):
            words = self.case.kind.words.format(stem=path.stem, folder=path.parent.name)
            folder = path.parent if self.case.damage == "delete" else path
            names += [re.escape(str(path)), re.escape(str(folder)), words]
        return "|".join(filter(None, names))

    def _right(self, said: str, *, healed: bool = False) -> bool:
        """Whether the results are those of the undisturbed campaign, and what was said of them too.

        That is not asked after it was healed: other things may have been computed.
        """
        if self.case.kind.stage == "read":
            expected = undisturbed_uses(self._stages)
            return said == expected or (
                healed and said.partition("\n")[0] == expected.partition("\n")[0]
            )
        pairs = [
            (self.folder / path, self._undisturbed / path) for path in (MASTER, INDEX, RECORDS)
        ]
        if not all(mine.exists() for mine, _ in pairs):
            return False
        if all(mine.read_bytes() == theirs.read_bytes() for mine, theirs in pairs):
            return True
        inputs = not self.case.kind.is_the_users  # the checksum of a damaged file is another
        return results(self.folder, inputs=inputs) == results(self._undisturbed, inputs=inputs)

    def _checksums_tell(self) -> bool:
        command = ["sha256sum", "--check", "--quiet", "--strict", "checksums.sha256"]
        done = subprocess.run(command, cwd=self.folder / VECTORS, capture_output=True, check=False)
        return done.returncode != 0

    def _heal(self, failed: str, message: str) -> tuple[bool, str]:
        """Do what the error says, and what the next one says; whether all is right then, and the
        story.
        """
        story = ""
        for _ in range(REMEDIES):
            error = error_of(message)
            story += f"{error.strip()}\n"
            again = self._follow(failed, error)
            story += f"-> {' '.join(again) or 'no rule or command of this campaign is named'}\n"
            if not again:
                return False, story
            failed, message = self._go_on(again) if again != ["use"] else ("", "")
            if not failed and self.case.kind.stage == "read":
                failed, message = use(self.folder)
            if not failed:
                return self._right(message, healed=True), f"{story}the results differ\n"
        return False, f"{story}{failed}: {error_of(message)}"

    def _follow(self, failed: str, error: str) -> list[str]:
        """Do what comes before a repetition; the steps to repeat, none when the error names nothing
        to do.
        """
        if self.case.kind.is_the_users:  # who has a good copy of it
            shutil.copy2(
                self._stages / self.case.kind.stage / self.path.relative_to(self.folder), self.path
            )
            return list(STEPS[STEPS.index(failed) if failed in STEPS else 0 : -1])
        for named in re.findall(r"\b(?:[Rr]emove|[Dd]elete) (\S+?)(?:[,;.]? |$)", error):
            path = named.replace("{model}", MODEL)
            target = self.path if path in ("it", "the", "this", "that") else self.folder / path
            if target.is_dir():
                shutil.rmtree(target)
            elif target.is_relative_to(self.folder):
                target.unlink(missing_ok=True)
        self._forced = ""
        ways = list(dict.fromkeys(match[0] for match in WAYS.finditer(error)))
        if ways:  # each leads there: which of them is tried is up to the case
            return self._go(WAYS.fullmatch(ways[self.case.seed % len(ways)]))
        if not re.search(r"\bagain\b|`snakemake", error):
            return []
        if failed == "snakemake":
            return list(STEPS)
        if not (self.folder / WEIGHTS).is_dir():  # a job makes them anew where a record names them
            return steps_from("weights")
        if missing := next(filter(self._is_missing, STEPS[:-1]), ""):  # it was removed
            return steps_from(missing)
        return ["use"] if self.case.kind.stage == "read" else steps_from(failed)

    def _go(self, way: re.Match[str] | None) -> list[str]:
        """Go one of `WAYS`: the steps that are left to do."""
        assert way
        if way["forced"]:
            self._forced = shlex.split(way["forced"])[0]
            return self._rule(self._forced)
        if way["command"]:
            command = shlex.split(way["command"])
            status, _ = run_command(self.folder, command)
            return [] if status else steps_from(command[0])[1:]
        if self._by_snakemake:
            run_step(self.folder, way["step"])
        return self._rule(way["step"])

    def _rule(self, name: str) -> list[str]:
        """The steps that Snakemake repeats when a rule, or a file, is forced."""
        for step in STEPS:
            if name == step or any(Path(name).is_relative_to(path) for path in OUTPUTS[step]):
                for path in OUTPUTS[step]:  # it runs, whatever is there
                    if (self.folder / path).is_file():
                        (self.folder / path).unlink()
                return steps_from(step)
        return []


def try_out(
    case: Case,
    stages: Path,
    others: Path | None,
    folder: Path,
    *,
    heal: bool = True,
    by_snakemake: bool = False,
) -> Outcome:
    """Run a case in the new folder `folder`, and remove it."""
    try:
        return Trial(case, stages, others, folder, by_snakemake=by_snakemake).run(heal=heal)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
