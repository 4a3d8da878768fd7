"""One damage to each kind of file at each stage: named with a remedy that works, or harmless.
`sweep.py` has more.
"""

from pathlib import Path

import pytest

from support.corruption import KINDS, Case, cases
from support.corruption_trials import GOOD, try_out
from support.tiny_campaign import make_stages

pytestmark = pytest.mark.workflow
SEED = 7
FOUND = (
    ("buckets before embed", "delete", 839380277),
    ("fingerprint before gather", "delete", 749740908),
    ("master before read", "truncate", 1169937625),
    ("index before read", "flip", 2040557053),
    ("records before read", "flip", 658965046),
)
"""What a sweep of a thousand cases showed that the draw below does not."""


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_stages(tmp_path_factory.mktemp("stages"))


def chosen() -> list[Case]:
    """A flip where the draw says swap, but for kinds of which a campaign has several files.

    What another stage reads by the same code is left to the sweep, and so is most of what only
    users read.
    """
    left_out = {
        "validate": ("summary", "buckets", "members", "sequence records", "parts", "fingerprint")
    }
    left_out["validate"] += ("completion records", "tensors", "self-test", "record of weights")
    left_out |= {
        "collect": ("scan's summary", "scan's records"),
        "embed": ("members", "sequence records"),
    }
    left_out |= {
        "read": ("master", "index", "records", "summary", "checksums"),
        "half": ("buckets", "manifest"),
    }
    left_out["half"] += ("self-test",)
    kinds = [kind for kind in KINDS if kind.name not in left_out.get(kind.stage, ())]
    drawn = [
        case
        if "*" in case.kind.pattern or case.damage != "swap"
        else Case(case.kind, "flip", case.seed)
        for case in cases(len(kinds), SEED, kinds)
    ]
    named = {str(kind): kind for kind in KINDS}
    return drawn + [Case(named[name], damage, seed) for name, damage, seed in FOUND]


@pytest.mark.parametrize("case", chosen(), ids=str)
def test_damage_is_named_and_healed_or_harmless(stages: Path, tmp_path: Path, case: Case) -> None:
    outcome = try_out(case, stages, None, tmp_path / "campaign")
    assert outcome.verdict in GOOD, f"{outcome.verdict}: {outcome.what}\n{outcome.message}"
