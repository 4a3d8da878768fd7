import pyarrow as pa
import pytest
from Bio.Seq import Seq
from hypothesis import given, settings
from hypothesis import strategies as st

from plm_embed.sequences.records import Batch, normalize_batch
from plm_embed.sequences.residues import (
    ALPHABETS,
    DNA,
    EVENTS,
    Faults,
    Normalized,
    ResiduePolicy,
    Skipped,
    normalize,
)

CODES = "codes, the first is MET"
SKIP = ResiduePolicy()
SUBSTITUTE = ResiduePolicy(unknown="substitute")
STRICT = ResiduePolicy(gaps="skip")
DNA_SKIP = ResiduePolicy(alphabet="dna")
DNA_SUBSTITUTE = ResiduePolicy(unknown="substitute", alphabet="dna")
DNA_STRICT = ResiduePolicy(gaps="skip", alphabet="dna")
CANONICAL = ResiduePolicy(alphabet="dna", strand="canonical")
POLICIES = {
    "protein": (SKIP, SUBSTITUTE),
    "dna": (DNA_SKIP, DNA_SUBSTITUTE),
    "canonical": (CANONICAL,),
}
ANY_DNA = st.text(DNA.letters + DNA.letters.lower() + "Uu-. ", max_size=60)
ANY_TEXT = st.one_of(st.text(), st.text("MKXBUZOJ-.* \t\nmk1<>ß\u0131\x00\xa0", max_size=40))


@pytest.mark.parametrize(
    ("alphabet", "raw", "sequence", "events"),
    [
        ("canonical", "ACGT", "ACGT", {}),  # its own reverse complement
        ("canonical", "guu", "AAC", {"upper_cased": 3, "u_to_t": 2, "reverse_complemented": 3}),
        ("canonical", "VHDBMKWSYRNTGCA", "TGCANYRSWMKVHDB", {"reverse_complemented": 15}),
        ("protein", "XBUZO", "XBUZO", {}),
        ("protein", " M K\tT", "MKT", {"whitespace_removed": 3}),
        ("protein", "M\xa0K\u3000T", "MKT", {"whitespace_removed": 2}),
        ("protein", "mKt", "MKT", {"upper_cased": 2}),
        ("protein", "MKT* \n", "MKT", {"stop_removed": 1, "whitespace_removed": 1}),
        ("protein", "-M-K.T-", "MKT", {"gaps_removed": 4}),
        ("protein", "MKT*--", "MKT", {"gaps_removed": 2, "stop_removed": 1}),
        ("protein", "METLYSMET", "METLYSMET", {}),
        ("protein", "ALAALAALAVAL", "ALAALAALAVAL", {}),
        ("dna", "RYSWKMBDHVN", "RYSWKMBDHVN", {}),
        ("dna", "auUG", "ATTG", {"upper_cased": 2, "u_to_t": 2}),
        ("dna", "AC--G.T", "ACGT", {"gaps_removed": 3}),
        ("dna", "AC GT\r\nN", "ACGTN", {"whitespace_removed": 1}),
    ],
)
def test_what_is_dropped_and_what_is_kept(
    alphabet: str, raw: str, sequence: str, events: dict[str, int]
) -> None:
    for policy in POLICIES[alphabet]:
        assert normalize(raw, policy) == Normalized(sequence, events)


@pytest.mark.parametrize(
    ("alphabet", "raw", "detail", "substituted"),
    [
        ("protein", "MKJT", "J at 3", "MKXT"),
        ("protein", "MKjT", "j at 3", "MKXT"),
        ("protein", "M*KT*", "* at 2", "MXKT"),
        ("protein", "MKT**", "* at 4", "MKTX"),
        ("protein", "M K1T", "1 at 4", "MKXT"),
        ("protein", "JMJ7JKJJ", "J at 1, 3, 5, 7; 7 at 4; 1 more", "XMXXXKXX"),
        ("protein", "MK\x00T", "U+0000 at 3", "MKXT"),
        ("protein", "MKßT", "ß at 3", "MKXT"),
        ("protein", "MK\u0131T", "\u0131 at 3", "MKXT"),
        ("dna", "ACGT*", "* at 5", "ACGTN"),
        ("dna", "ACXXGT", "X at 3, 4", "ACNNGT"),
        ("dna", "AC1u", "1 at 3", "ACNT"),
    ],
)
def test_unknown_letters_skip_the_record_or_become_x_or_n(
    alphabet: str, raw: str, detail: str, substituted: str
) -> None:
    skip, substitute = POLICIES[alphabet]
    assert normalize(raw, skip) == Skipped("unknown_residues", detail)
    outcome = normalize(raw, substitute)
    assert isinstance(outcome, Normalized)
    assert outcome.sequence == substituted
    unknown = ALPHABETS[skip.alphabet].unknown
    assert outcome.events["substituted"] == substituted.count(unknown) - raw.count(unknown)


@pytest.mark.parametrize(
    ("raw", "reason", "detail", "policies"),
    [
        *((raw, "empty", None, (SKIP, SUBSTITUTE, DNA_SKIP)) for raw in ("", " \r\n", "-", ". -")),
        *((raw, "empty", None, (SKIP, SUBSTITUTE)) for raw in ("*", "-*-", ". - *")),
        ("M-K.T", "gaps", "- at 2; . at 4", (STRICT,)),
        ("A-C.T", "gaps", "- at 2; . at 4", (DNA_STRICT,)),
        ("MK<mask>T", "unknown_residues", "< at 3; > at 8", (SKIP, SUBSTITUTE, STRICT)),
        # a header among the residues is never replaced
        (">id MKV", "glued_header", "> at 1: no line end before '>id MKV'", (SKIP, SUBSTITUTE)),
        ("ACGT>b", "glued_header", "> at 5: no line end before '>b'", (DNA_SKIP, DNA_SUBSTITUTE)),
        (
            "M<mask>K>b\x1b[31m two\n" + "A" * 90,
            "glued_header",
            "> at 9: no line end before '>b\\x1b[31m two\\nAAAAAAAA'",
            (SKIP, SUBSTITUTE, STRICT),
        ),
        ("METLYSTHRALA", "three_letter_code", f"4 {CODES}", (SKIP, SUBSTITUTE)),
        ("Met Lys\nThr-Ala", "three_letter_code", f"4 {CODES}", (SKIP, SUBSTITUTE)),
        ("metlysthralaMETXAA*", "three_letter_code", f"6 {CODES}", (SKIP, SUBSTITUTE)),
    ],
)
def test_a_record_without_a_sequence_is_skipped(
    raw: str, reason: str, detail: str | None, policies: tuple[ResiduePolicy, ...]
) -> None:
    for policy in policies:
        assert normalize(raw, policy) == Skipped(reason, detail)


@settings(max_examples=40, deadline=None)
@given(ANY_TEXT)
def test_only_letters_with_a_token_come_through_and_the_count_adds_up(raw: str) -> None:
    for policy in (SKIP, SUBSTITUTE, STRICT, DNA_SKIP, DNA_SUBSTITUTE, DNA_STRICT):
        outcome = normalize(raw, policy)
        if isinstance(outcome, Normalized):
            events = outcome.events
            line_ends = raw.count("\r") + raw.count("\n")
            names = ("whitespace_removed", "gaps_removed", "stop_removed")
            dropped = sum(events.get(name, 0) for name in names)
            letters = set(ALPHABETS[policy.alphabet].letters)
            assert outcome.sequence and letters.issuperset(outcome.sequence)
            assert len(outcome.sequence) == len(raw) - line_ends - dropped
            assert normalize(outcome.sequence, policy) == Normalized(outcome.sequence, {})
        else:
            assert outcome.reason in {"empty", "unknown_residues", "gaps", "glued_header"}
            assert (outcome.detail is None) == (outcome.reason == "empty")
    for policy in (SUBSTITUTE, DNA_SUBSTITUTE):
        assert getattr(normalize(raw, policy), "reason", "empty") == "empty" or ">" in raw


RAW = (
    st.sampled_from(["METLYSGLYALA", "MetLysGlyAla"])
    | st.text("ACGT", max_size=6)
    | st.text("MKk*-. J>\n\u00e9流", max_size=6)
)
OF_BATCHES = [
    ResiduePolicy(),
    ResiduePolicy(unknown="substitute", gaps="skip"),
    ResiduePolicy(alphabet="dna"),
    ResiduePolicy(unknown="substitute", alphabet="dna", strand="canonical"),
    ResiduePolicy(alphabet="3di"),
]


@given(
    st.lists(RAW, min_size=1, max_size=8), st.sets(st.integers(0, 7)), st.sampled_from(OF_BATCHES)
)
def test_a_batch_is_normalized_record_by_record(
    residues: list[str], faulty: set[int], policy: ResiduePolicy
) -> None:
    faults: Faults = {place: ("a_fault", None) for place in faulty if place < len(residues)}
    names = pa.array(map(str, range(len(residues))))
    found = normalize_batch(Batch(3, names, names, pa.array(residues), faults=faults), policy)
    alone = [
        Skipped(*faults[place]) if place in faults else normalize(raw, policy)
        for place, raw in enumerate(residues)
    ]
    good = [each for each in alone if isinstance(each, Normalized)]
    skipped = [each if isinstance(each, Skipped) else (None, None) for each in alone]
    assert found.sequences.to_pylist() == [each.sequence for each in good]
    assert list(zip(found.reasons.to_pylist(), found.details.to_pylist(), strict=True)) == skipped
    assert found.events.to_pylist() == [
        ";".join(f"{name}={each.events[name]}" for name in EVENTS if name in each.events)
        if isinstance(each, Normalized)
        else ""
        for each in alone
    ]


@settings(deadline=None)
@given(ANY_DNA)
def test_a_sequence_and_its_reverse_complement_are_one(raw: str) -> None:
    given, canonical = normalize(raw, DNA_SKIP), normalize(raw, CANONICAL)
    if not isinstance(given, Normalized):
        assert canonical == given
        return
    other = str(Seq(given.sequence).reverse_complement())
    assert DNA.reverse_complement(given.sequence) == other
    for outcome in (canonical, normalize(other, CANONICAL)):
        assert isinstance(outcome, Normalized)
        assert outcome.sequence == min(given.sequence, other)
    turned = isinstance(canonical, Normalized) and "reverse_complemented" in canonical.events
    assert turned == (other < given.sequence)
