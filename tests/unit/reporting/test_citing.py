"""Methods and citation, and whose weights they were."""

from dataclasses import replace
from pathlib import Path

import pytest

from plm_embed.io.json_files import write_sealed
from plm_embed.models.registry import MODELS
from plm_embed.reporting.citing import citation, methods
from plm_embed.reporting.facts import collect
from plm_embed.reporting.report import write_report
from plm_embed.reporting.ro_crate import write_crate
from plm_embed.reporting.summary import gathered, summarize
from support.finished import MODEL


def test_methods_and_citation_name_what_was_done(results: Path) -> None:
    facts = collect(results)
    assert "computed with weights of SHA-256" in methods(facts)
    assert "(commit 0123456789ab)" in methods(facts) and "embedded in one piece" in methods(facts)
    for expected in (
        " (Lin et al., 2023), layer 3, in float32, and stored as float16, by plm-embed",
        "(129 distinct; 1 of 181 records skipped)",
        f"with PyTorch {facts.metadata['library_versions']['torch']} and Python 3",
        "Pooling: mean, arithmetic mean over",
    ):
        assert expected in methods(facts)
    assert "Scores" not in methods(facts)
    kinds = ("entropy", "pseudo_perplexity")
    facts.runs = [
        replace(run, fingerprint=replace(run.fingerprint, scores=kinds)) for run in facts.runs
    ]
    assert "Scores of the model for each sequence: entropy, mean entropy" in methods(facts)
    assert "; pseudo_perplexity, exp(-mean log-probability of each residue" in methods(facts)
    facts.metadata["library_versions"]["plm-embed"] = "0.0.9"
    assert "by plm-embed 0.0.9 (commit" in methods(facts), "what computed them, not what reports"
    assert citation(facts).startswith("plm-embed 0.0.9.")
    facts.metadata["workflow_commit"] = "unknown"
    assert "by plm-embed 0.0.9 with PyTorch" in methods(facts)
    facts.model = "esm1v_t33_650M_UR90S_1"
    assert "Meier" in citation(facts)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("esm2_t6_8M_UR50D", "Lin et al., 2023"),
        ("esmc_300m", "ESM Team, 2024"),
        ("prot_t5_xl_half_uniref50-enc", "Elnaggar et al., 2022"),
        ("DNABERT-2-117M", "Zhou et al., 2024"),
    ],
)
def test_papers_are_referred_to_by_authors_and_year(results: Path, name: str, short: str) -> None:
    facts = collect(results)
    assert name in MODELS
    facts.model = name
    assert f"({short}" in methods(facts)


def said_of_weights(results: Path) -> dict[str, str]:
    """Every text that names the model of a campaign."""
    facts = collect(results)
    write_report(facts, facts.folder / "report.html")
    write_crate(facts)
    texts = {
        name: (facts.folder / name).read_text()
        for name in ("report.html", "ro-crate-metadata.json")
    }
    texts["report.html"] = texts["report.html"].partition("</header>")[0].partition("<header>")[2]
    return texts | {
        "methods": methods(facts),
        "citation": citation(facts),
        "summary": summarize(gathered(results)),
    }


def test_what_is_not_known_to_be_published_is_said_to_be_so_everywhere(copy: Path) -> None:
    for text in said_of_weights(copy).values():
        assert (
            "random numbers, not the published weights of any model: these vectors mean nothing"
            in text
        )
    facts = collect(copy)
    assert facts.weights is not None
    # of other weights: proves nothing
    other = replace(facts.weights, published="sha256", weights_sha256="0" * 64)
    facts.model = "esm2_t6_8M_UR50D"
    for weights, word in (
        (None, "nothing here says where they came from"),
        (facts.weights, "not a published file whose SHA-256 is known"),
    ):
        facts.weights = weights
        assert (
            facts.caveat.startswith("not verified as the published weights: ")
            and word in facts.caveat
        )
        assert facts.caveat in methods(facts) and "architecture of esm2_t6_8M_UR50D" in methods(
            facts
        )
        assert (
            citation(facts).splitlines()[1]
            == f"The weights are {facts.caveat}. For the architecture alone:"
        )
    facts.weights = replace(facts.weights, published="sha256")
    assert facts.caveat == "" and ", the published weights of SHA-256" in methods(facts)
    assert citation(facts).splitlines()[1].startswith("Lin Z.")
    write_sealed(copy / MODEL / "weights.json", other)
    assert collect(copy).weights is None
