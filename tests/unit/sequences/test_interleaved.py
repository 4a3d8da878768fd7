"""Residues and 3Di states by turns, from files to unique sequences."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_embed.errors import PlmEmbedError
from plm_embed.keys import key
from plm_embed.models.families.esm import SAPROT
from plm_embed.sequences.residues import PROTEIN_3DI, Normalized, ResiduePolicy, Skipped, normalize
from plm_embed.sequences.settings import Table
from plm_embed.workflow.checks import mistakes
from support.deduplicated import all_rows, rows, run
from support.nasty_inputs import write

BOTH = ResiduePolicy(alphabet="protein_3di")
BY_TURNS = "not a residue and its 3Di letter by turns"
REPLACED = ResiduePolicy(alphabet="protein_3di", unknown="substitute")


@pytest.mark.parametrize(
    ("raw", "outcome"),
    [
        ("MdEvVp", Normalized("MdEvVp", {})),
        ("M#EvV#", Normalized("M#EvV#", {})),
        ("#dXvUp", Normalized("#dXvUp", {})),
        (" Md\nEv\tVp", Normalized("MdEvVp", {"whitespace_removed": 2})),
        ("MEV", Normalized("M#E#V#", {"structure_unknown": 3})),
        ("me", Normalized("M#E#", {"upper_cased": 2, "structure_unknown": 2})),
        ("M-", Normalized("M#", {"gaps_removed": 1, "structure_unknown": 1})),
        ("M*", Normalized("M#", {"stop_removed": 1, "structure_unknown": 1})),
        ("MdEvV", Skipped("not_interleaved", f"5 letters, {BY_TURNS}")),
        ("MdevVp", Skipped("not_interleaved", f"6 letters, {BY_TURNS}")),
        ("M#EV", Skipped("not_interleaved", f"4 letters, {BY_TURNS}")),
        ("MdJvVx", Skipped("unknown_residues", "J at 2, x at 3")),
        ("Md--Ev", Skipped("unknown_residues", "- at 2, - at 2")),
        ("ME1", Skipped("unknown_residues", "1 at 3")),
        ("", Skipped("empty", None)),
    ],
)
def test_a_state_belongs_to_each_residue(raw: str, outcome: Normalized | Skipped) -> None:
    assert normalize(raw, BOTH) == outcome


def test_unknown_letters_become_unknown_but_gaps_never_do() -> None:
    assert normalize("MdJvVx", REPLACED) == Normalized("Md#vV#", {"substituted": 2})
    skipped = Skipped("unknown_residues", "- at 2, - at 2, J at 3, x at 3")
    assert normalize("Md--Jx", REPLACED) == skipped
    events = {"substituted": 1, "structure_unknown": 2}
    assert normalize("MJ", REPLACED) == Normalized("M#X#", events)


@given(
    st.lists(
        st.tuples(st.sampled_from(PROTEIN_3DI.letters), st.sampled_from(PROTEIN_3DI.states)),
        min_size=1,
    )
)
def test_no_other_model_reads_them_letter_by_letter(pairs: list[tuple[str, str]]) -> None:
    text = "".join(map("".join, pairs))
    assert normalize(text, BOTH) == Normalized(text, {})
    assert PROTEIN_3DI.length(text) == len(pairs)
    assert SAPROT.texts(text, [(1, len(pairs))], "") == [text[2:]]
    for alphabet in ("protein", "3di"):
        outcome = normalize(text, ResiduePolicy(alphabet=alphabet))
        assert isinstance(outcome, Skipped) and outcome.reason == "interleaved_structure"


def test_a_table_has_residues_and_states_in_two_columns(tmp_path: Path) -> None:
    cells = [
        *("both,MEV,DVP", "lower,mev,dvp", "blanks, ME V ,D#P", "alone,MEV,", "null,MEV,NaN"),
        *("longer,MEV,DVPP", "stop,MEV*,DVP", "nothing,,DVP", "missing,NaN,DVP", "ragged,MEV"),
        *("odd,MEV,DXP", "ß,ME,D"),
    ]
    text = "\n".join(["name,seq,states", *cells, "name,seq,states"])
    path = write(tmp_path / "table.csv", text + "\n")
    fasta = write(tmp_path / "more.fasta", ">a\nMdEv\nVp\n>b\nMdE\n")
    table = Table("name", "seq", structure="states")
    summary = run([path, fasta], tmp_path / "out", table=table, policy=BOTH)
    unique = {row["sequence"] for row in all_rows(tmp_path / "out" / "buckets")}
    assert unique == {"MdEvVp", "MdE#Vp", "M#E#V#"}
    assert (summary.residues, summary.lengths) == (9, {3: 3})
    records = {row["id"]: row for row in rows(tmp_path / "out" / "records.parquet")}
    assert (records["both"]["key"], records["both"]["length"]) == (key("MdEvVp"), 3)
    assert records["lower"]["key"] == records["a"]["key"] == key("MdEvVp")
    assert records["alone"]["events"] == records["null"]["events"] == "structure_unknown=3"
    assert {id: (row["reason"], row["detail"]) for id, row in records.items() if row["reason"]} == {
        "longer": ("unlike_lengths", "3 residues, 4 3Di letters"),
        "stop": ("unlike_lengths", "4 residues, 3 3Di letters"),
        "nothing": ("unlike_lengths", "0 residues, 3 3Di letters"),
        "missing": ("missing_value", None),
        "ragged": ("ragged_row", "line 11: 2 fields instead of 3"),
        "odd": ("unknown_residues", "x at 2"),
        "ß": ("unlike_lengths", "2 residues, 1 3Di letters"),
        "name": ("repeated_header", None),
        "b": ("not_interleaved", f"3 letters, {BY_TURNS}"),
    }
    assert "records without 3Di letters, each read as unknown (#): 2" in summary.warnings
    with pytest.raises(PlmEmbedError, match="no column '3di'; the columns are 'name', 'seq', 'sta"):
        run([path], tmp_path / "none", table=Table("name", "seq", structure="3di"), policy=BOTH)


def test_a_column_of_states_is_for_models_that_read_them() -> None:
    inputs = [{"path": __file__, "structure": "states"}]
    (line,) = mistakes({"inputs": inputs, "model": "esm2_8m"}, {})
    assert line == "inputs: structure: esm2_t6_8M_UR50D reads no 3Di letters; leave it out"
    assert not mistakes({"inputs": inputs, "model": "saprot_35m"}, {})
    (line,) = mistakes({"inputs": inputs, "model": ["saprot_35m", "esm2_8m"]}, {})
    assert "SaProt_35M_AF2 reads protein_3di, esm2_t6_8M_UR50D reads protein" in line
    inputs[0]["partner"] = "other"
    (line,) = mistakes({"inputs": inputs, "model": "saprot_35m"}, {})
    assert line.endswith("SaProt_35M_AF2 reads protein_3di; only chains of proteins can be paired")
