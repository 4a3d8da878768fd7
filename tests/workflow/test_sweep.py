"""One damage to each kind of file: harmless, or named with a remedy that heals. `sweep.py` has
more.
"""

from pathlib import Path

import pytest

from support.tiny_campaign import load_package
from sweep import GOOD, KINDS, Case, cases, make_stages, try_out

pytestmark = pytest.mark.workflow
LEFT_OUT = {
    "half": ("fingerprint", "completion records"),
    "embed": ("members", "sequence records"),
    "gather": ("summary",),
    "validate": tuple(case.name for case in KINDS if case.stage == "validate"),
    "finished": ("sequence records", "summary", "self-test", "buckets"),
}
"""Kinds that other stages read by the same code: the sweep has them."""
MORE = [
    ("parts before finished", "flip", 11),
    ("parts before finished", "delete", 12),
    ("completion records before gather", "swap", 13),
    ("index before finished", "cut", 14),
    ("sequence records before gather", "delete", 15),
]


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    load_package()
    return make_stages(tmp_path_factory.mktemp("stages"))


def chosen() -> list[Case]:
    kinds = [case for case in KINDS if case.name not in LEFT_OUT.get(case.stage, ())]
    by_kind = {case.kind: case for case in KINDS}
    more = [by_kind[kind]._replace(damage=damage, seed=seed) for kind, damage, seed in MORE]
    return cases(len(kinds), 7, kinds) + more


@pytest.mark.parametrize("case", chosen(), ids=lambda case: f"{case.kind}, {case.damage}")
def test_damage_is_harmless_or_healed_by_what_is_said(
    stages: Path, tmp_path: Path, case: Case
) -> None:
    verdict, story = try_out(case, stages, None, tmp_path / "campaign")
    assert verdict in GOOD, story
