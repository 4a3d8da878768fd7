"""Checks of the parts: those that completion records name, and all others in the store; while
`plm-embed compact` may be at work.
"""

from pathlib import Path

from plm_embed.errors import StoreError
from plm_embed.io.files import sha256_file
from plm_embed.jobs.completion_record import read_completion
from plm_embed.master.findings import Findings, Problem
from plm_embed.master.planned import Plan
from plm_embed.store.part_name import part_names
from plm_embed.store.parts import read_part
from plm_embed.store.replaced import PartInfo, current_parts, was_compacted
from plm_embed.store.store import store_folder


def check_parts(findings: Findings, plan: Plan, embedded: Path, store: Path) -> None:
    """Every part that a completion record names is there, unchanged, and of the fingerprint; so are
    all others.
    """
    folder = store_folder(store, plan.fingerprint) / "parts"
    named: dict[str, PartInfo] = {}
    with findings.check("parts") as problem:
        for name in plan.names:
            for part in current_parts(
                read_completion(embedded / f"{name}.json").parts, folder.parent
            ):
                if named.setdefault(part.name, part) != part:
                    problem(f"{part.name}: completion records disagree about its size or hash")
    for part in (named[name] for name in sorted(named)):
        with findings.check("parts") as problem:
            _check_part(problem, folder, part)
    checked: set[str] = set()
    # listed until nothing is new: what compact removes meanwhile, newer parts replace
    while new := [name for name in part_names(folder) if name not in checked]:
        checked.update(new)
        for path in (folder / name for name in new):
            with findings.check("fingerprints in the store") as problem:
                _check_fingerprint(problem, path, named.get(path.name), plan)


def _check_fingerprint(problem: Problem, path: Path, named: PartInfo | None, plan: Plan) -> None:
    try:
        if named and path.stat().st_size != named.bytes:
            return  # said by _check_part
        opened = read_part(path)
    except (FileNotFoundError, StoreError):
        if was_compacted(path):
            return
        raise
    with opened as part_file:
        part_file.check(plan.fingerprint)
        plan.dims = plan.dims or part_file.dims
        if part_file.dims != plan.dims:
            problem(f"{path}: dimensions {part_file.dims}, other parts have {plan.dims}")


def _check_part(problem: Problem, folder: Path, part: PartInfo) -> None:
    """What is wrong with a part that completion records name; of one that was compacted meanwhile,
    with those that replace it.
    """
    path = folder / part.name
    try:
        size = path.stat().st_size
        if size != part.bytes:
            problem(f"{path}: has {size:,} bytes instead of {part.bytes:,} (truncated?)")
        elif sha256_file(path) != part.sha256:
            problem(f"{path}: its bytes have changed: another SHA-256 than when it was written")
    except FileNotFoundError:
        if not was_compacted(path):
            problem(f"{path}: missing, though completion records name it")
            return
        for other in current_parts([part], folder.parent):
            _check_part(problem, folder, other)
