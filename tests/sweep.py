"""Random damage to every kind of file at every stage of a campaign; see `corruption_trials`.

    .venv/bin/python tests/sweep.py --cases 1000 --seed 1
    .venv/bin/python tests/sweep.py --kinds 'buckets before embed' --cases 100
    .venv/bin/python tests/sweep.py --kinds 'parts before gather' --damage flip --only 1234567

Prints a table, a line per kind (after Ctrl-C: of the cases so far), and what is needed to see each
case again that is not as it should be. Exit status 1 if there is one.
"""

import argparse
import os
import sys
import tempfile
import time
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from support.corruption import KINDS, Case, cases
from support.corruption_trials import GOOD, Outcome, try_out
from support.tiny_campaign import FORK, load_package, make_stages
from support.uses import undisturbed_uses


def make_campaigns(folder: Path) -> tuple[Path, Path]:
    """The campaign that is damaged and another one, from which files are swapped in; both at all
    stages.

    They are taken from `folder` if they are there.
    """
    load_package()
    stages, others = folder / "stages", folder / "others"
    if not others.exists():
        with ProcessPoolExecutor(2, mp_context=FORK) as pool:
            list(pool.map(make_stages, (stages, others), (1, 2)))
    undisturbed_uses(stages)  # once, before this process forks
    return stages, others


def _run(
    case: Case, folder: Path, campaigns: tuple[Path, Path], heal: bool, by_snakemake: bool
) -> Outcome:
    return try_out(case, *campaigns, folder, heal=heal, by_snakemake=by_snakemake)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default="", help="only kinds whose name and stage contain this")
    parser.add_argument(
        "--damage", choices=["flip", "truncate", "delete", "swap"], help="only this one"
    )
    parser.add_argument(
        "--only", type=int, help="the seed of one case, as the list of a sweep has it"
    )
    parser.add_argument(
        "--campaigns", type=Path, help="folder for the whole campaigns, kept for the next sweep"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument(
        "--snakemake",
        action="store_true",
        help="go on by the real one; ten seconds a case and more",
    )
    parser.add_argument("--no-heal", action="store_true", help="do not follow the remedies")
    options = parser.parse_args()
    kinds = [kind for kind in KINDS if options.kinds in str(kind)]
    if not kinds:
        parser.error("no such kind; there are:\n  " + "\n  ".join(map(str, KINDS)))
    if options.only is not None:
        chosen = [Case(kinds[0], options.damage or "flip", options.only)]
    else:
        chosen = cases(options.cases, options.seed, kinds)
        chosen = [Case(case.kind, options.damage or case.damage, case.seed) for case in chosen]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="plm-sweep-") as folder:
        campaigns = make_campaigns(options.campaigns or Path(folder))
        ready = time.monotonic()
        run = partial(
            _run, campaigns=campaigns, heal=not options.no_heal, by_snakemake=options.snakemake
        )
        folders = [Path(folder, f"case-{number}") for number in range(len(chosen))]
        with ProcessPoolExecutor(options.jobs, mp_context=FORK) as pool:
            outcomes = []
            try:
                for case, outcome in zip(chosen, pool.map(run, chosen, folders), strict=True):
                    outcomes.append((case, outcome))
                    if outcome.verdict not in GOOD:
                        _show(case, outcome)
            except KeyboardInterrupt:
                pool.shutdown(cancel_futures=True)
    ended = time.monotonic()
    bad = _tabulate(outcomes)
    print(
        f"\n{len(outcomes)} cases in {ended - ready:.0f} s, after {ready - began:.0f} s for the "
        f"campaigns; {bad} bad"
    )
    return 1 if bad else 0


def _show(case: Case, outcome: Outcome) -> None:
    """Print what is needed to see a case again."""
    print(f"{outcome.verdict}: {outcome.what}")
    print(f"    again: --kinds '{case.kind}' --damage {case.damage} --only {case.seed}")
    lines = outcome.message.strip().splitlines()
    print("".join(f"    | {line[:240]}\n" for line in lines[-6:]), flush=True)


def _tabulate(outcomes: list[tuple[Case, Outcome]]) -> int:
    """Print verdicts by kind; return how many are bad."""
    table = defaultdict[str, Counter[str]](Counter)
    for case, outcome in outcomes:
        table[str(case.kind)][outcome.verdict] += 1
    totals = sum(table.values(), Counter[str]())
    verdicts = sorted(totals, key=lambda name: (name not in GOOD, name))
    width = max(map(len, table))
    print(f"{'':{width}}  " + "  ".join(verdicts))
    for kind, counts in [*table.items(), ("all", totals)]:
        print(
            f"{kind:{width}}  "
            + "  ".join(f"{counts[name] or '.':>{len(name)}}" for name in verdicts)
        )
    return sum(count for name, count in totals.items() if name not in GOOD)


if __name__ == "__main__":
    sys.exit(main())
