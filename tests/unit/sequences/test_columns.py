"""Records in columns are judged as each of them is by itself."""

from hypothesis import given
from hypothesis import strategies as st

from plm_embed.sequences.batch import Faults, batch_of, strings
from plm_embed.sequences.columns import judge
from plm_embed.sequences.normalize import Normalized, Skipped, format_events, normalize
from plm_embed.sequences.settings import ResiduePolicy

RAW = st.text("ACGT", max_size=6) | st.text("MKk*-. J>\n\u00e9流", max_size=6)
POLICIES = [
    ResiduePolicy(),
    ResiduePolicy(unknown="substitute", gaps="skip"),
    ResiduePolicy(alphabet="dna"),
    ResiduePolicy(unknown="substitute", alphabet="dna", strand="canonical"),
    ResiduePolicy(alphabet="3di"),
]


@given(st.lists(RAW, min_size=1, max_size=8), st.sets(st.integers(0, 7)), st.sampled_from(POLICIES))
def test_a_batch_is_judged_record_by_record(
    residues: list[str], faulty: set[int], policy: ResiduePolicy
) -> None:
    faults: Faults = {place: ("a_fault", None) for place in faulty if place < len(residues)}
    names = [str(number) for number in range(len(residues))]
    found = judge(batch_of(3, names, names, residues, kept=[names], faults=faults), policy)
    alone = [
        Skipped(*faults[place]) if place in faults else normalize(raw, policy)
        for place, raw in enumerate(residues)
    ]
    good = [each for each in alone if isinstance(each, Normalized)]
    skipped = [each if isinstance(each, Skipped) else Skipped(None, None) for each in alone]  # type: ignore[arg-type]
    assert strings(found.text, found.ends).to_pylist() == [each.sequence for each in good]
    assert list(zip(found.reasons.to_pylist(), found.details.to_pylist(), strict=True)) == skipped
    assert found.skipped.tolist() == [isinstance(each, Skipped) for each in alone]
    assert found.events.to_pylist() == [
        format_events(each.events) if isinstance(each, Normalized) else "" for each in alone
    ]
    assert found.ids.to_pylist() == found.kept[0].to_pylist() == names and found.first == 3
