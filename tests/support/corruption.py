"""Kinds of files of a campaign, stage by stage, and damage to one of them: a flipped bit, a cut, a
loss, a swap.
"""

import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.tiny_steps import INDEX, MASTER, RECORDS, VECTORS, WEIGHTS

DAMAGES = {"flip": 6, "truncate": 2, "delete": 1, "swap": 2}
"""How often each is drawn."""
NO_SWAP = {"flip": 6, "truncate": 2, "delete": 1}


@dataclass(frozen=True)
class Kind:
    """A kind of file at a stage of a campaign, see `tiny_campaign.make_stages`.

    words: what else than the file's path names it in a message. damages: what can be seen at all:
    who names another input or checkpoint gets what he names.
    """

    stage: str
    name: str
    pattern: str
    words: str = ""
    damages: dict[str, int] = field(default_factory=lambda: DAMAGES, hash=False)

    def __str__(self) -> str:
        return f"{self.name} before {self.stage}"

    @property
    def is_the_users(self) -> bool:
        return self.stage in ("deduplicate", "start")


def _before(stage: str, *kinds: tuple[Any, ...]) -> list[Kind]:
    return [Kind(stage, *kind) for kind in kinds]


_SUMMARY = ("summary", "results/sequences/summary.json", "counts: |attributes: inputs")
_SEQUENCES = (
    _SUMMARY,
    ("buckets", "results/sequences/buckets/*.parquet", r"bucket {stem}|(embedded|members)/{stem}"),
    ("members", "results/sequences/members/*.parquet", r"bucket {stem}"),
    ("sequence records", "results/sequences/records.parquet", "records: "),
)
_WEIGHTS = (
    ("tensors", f"{WEIGHTS}/model.safetensors", f"{WEIGHTS}/"),
    ("manifest", f"{WEIGHTS}/manifest.json", f"{WEIGHTS}/"),
    ("self-test", f"{WEIGHTS}/self_test.npz", f"{WEIGHTS}/|self-test"),
)
_STORE = (
    ("parts", f"{VECTORS}/store/*/parts/*.h5"),
    ("fingerprint", f"{VECTORS}/store/*/fingerprint.json"),
    (
        "completion records",
        f"{VECTORS}/embedded/*.json",
        r"completion record.* {stem}|bucket {stem}",
    ),
)
_RESULTS = (
    (
        "master",
        MASTER,
        "rows equal their parts: |keys: |attributes: |finite: |shapes and types: |spot checks: ",
    ),
    ("index", INDEX, "index: "),
    ("records", RECORDS, "records: "),
)
KINDS = [
    *(
        Kind("deduplicate", f"input {path}", f"inputs/{path}", damages=NO_SWAP)
        for path in ("a.fasta.gz", "b.fasta.bz2", "c.fasta.xz", "d.fasta.zst", "e.parquet")
    ),
    Kind("start", "checkpoint", "model.pt", damages=NO_SWAP),
    *_before("embed", *_SEQUENCES, *_WEIGHTS),
    *_before("half", *_STORE, *_SEQUENCES[1:2], *_WEIGHTS[1:]),
    *_before("gather", *_SEQUENCES, *_STORE),
    *_before(
        "validate",
        *_RESULTS,
        *_SEQUENCES,
        *_STORE,
        *_WEIGHTS,
        ("record of weights", f"{VECTORS}/weights.json"),
    ),
    *_before(
        "read",
        *((name, path) for name, path, _ in _RESULTS),
        ("validation", f"{VECTORS}/validation.json"),
        ("record of weights", f"{VECTORS}/weights.json"),
        # who looks at a report sees what is not there, or is another campaign's
        ("completion records", f"{VECTORS}/embedded/*.json", "", {"flip": 2, "truncate": 1}),
        _SUMMARY[:2],
        ("checksums", f"{VECTORS}/checksums.sha256"),
    ),
]


@dataclass(frozen=True)
class Case:
    """A damage that `seed` alone decides."""

    kind: Kind
    damage: str
    seed: int

    def __str__(self) -> str:
        return f"{self.kind}, {self.damage}, seed {self.seed}"


def cases(count: int, seed: int, kinds: list[Kind]) -> list[Case]:
    """As many of each kind, in turn, with damages drawn by their weights."""
    chance = random.Random(seed)
    drawn = []
    for number in range(count):
        kind = kinds[number % len(kinds)]
        damage = chance.choices(list(kind.damages), list(kind.damages.values()))[0]
        drawn.append(Case(kind, damage, chance.randrange(1 << 31)))
    return drawn


def damage(case: Case, folder: Path, others: Path | None) -> tuple[Path, str]:
    """Damage a file of the campaign in `folder`; its path, and what was done in words.

    `others` holds another campaign at all stages; without it, files are only swapped with others of
    the same campaign.
    """
    chance = random.Random(case.seed)
    path = chance.choice(sorted(folder.glob(case.kind.pattern)))
    content, stamp, name = path.read_bytes(), path.stat(), path.relative_to(folder)
    if case.damage == "delete":
        path.unlink()
        return path, f"{name} deleted"
    if case.damage == "flip":
        bit = chance.randrange(8 * len(content))
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        what = f"{name}: bit {bit % 8} of byte {bit // 8} of {len(content)} flipped"
    elif case.damage == "truncate":
        size = chance.randrange(len(content))
        size += content[size:].startswith(content[:4])  # nobody sees that a whole stream is missing
        path.write_bytes(content[:size])
        what = f"{name}: cut to {size} of {len(content)} bytes"
    else:
        own = [
            each for each in sorted(folder.glob(case.kind.pattern)) if each.read_bytes() != content
        ]
        if own and (others is None or chance.random() < 0.5):
            other = chance.choice(own)
            path.write_bytes(other.read_bytes())
            other.write_bytes(content)
            what = f"{name} swapped with {other.relative_to(folder)}"
        else:
            assert others is not None, f"{case.kind}: there is one file"
            other = chance.choice(sorted((others / case.kind.stage).glob(case.kind.pattern)))
            path.write_bytes(other.read_bytes())
            what = f"{name} is another campaign's {other.name}"
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # what rots keeps its age
    return path, what
