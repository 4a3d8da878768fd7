"""Methods and citation, and whose weights they were."""

from dataclasses import replace
from pathlib import Path

from plm_embed.io.json_files import write_sealed
from plm_embed.reporting.citing import citation, methods
from plm_embed.reporting.facts import collect
from plm_embed.reporting.report import write_report
from plm_embed.reporting.ro_crate import write_crate
from plm_embed.reporting.summary import gathered, summarize
from support.finished import MODEL


def test_methods_and_citation_name_what_was_done(results: Path) -> None:
    facts = collect(results)
    for words in (
        "computed with weights of SHA-256",
        " (Lin et al., 2023), layer 3, in float32, and stored as float16, by plm-embed",
        "(commit 0123456789ab)",
        "(129 distinct; 1 of 181 records skipped)",
        f"with PyTorch {facts.metadata['library_versions']['torch']} and Python 3",
        "embedded in one piece",
        "Pooling: mean, arithmetic mean over",
    ):
        assert words in methods(facts)
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
    for facts.model, reference in (
        ("esm1v_t33_650M_UR90S_1", "Meier et al., 2021"),
        ("esmc_300m", "ESM Team, 2024"),
        ("DNABERT-2-117M", "Zhou et al., 2024"),
    ):
        assert f"({reference}" in methods(facts)
    assert "Zhou" in citation(facts)


def test_what_is_not_known_to_be_published_is_said_to_be_so_everywhere(copy: Path) -> None:
    facts = collect(copy)
    page = facts.folder / "report.html"
    write_report(facts, page)
    write_crate(facts)
    head = page.read_text().partition("</header>")[0].partition("<header>")[2]
    crate = (facts.folder / "ro-crate-metadata.json").read_text()
    for text in (head, crate, methods(facts), citation(facts), summarize(gathered(copy))):
        assert "random numbers, not the published weights of any model: these vectors mean" in text
    assert facts.weights is not None
    known, facts.model = facts.weights, "esm2_t6_8M_UR50D"
    for weights, words in (
        (None, "nothing here says where they came from"),
        (known, "not a published file whose SHA-256 is known"),
    ):
        facts.weights, caveat = weights, f"not verified as the published weights: {words}"
        assert facts.caveat.startswith(caveat) and facts.caveat in methods(facts)
        assert "architecture of esm2_t6_8M_UR50D" in methods(facts)
        line = f"The weights are {facts.caveat}. For the architecture alone:"
        assert citation(facts).splitlines()[1] == line
    facts.weights = replace(known, published="sha256")
    assert facts.caveat == "" and ", the published weights of SHA-256" in methods(facts)
    assert citation(facts).splitlines()[1].startswith("Lin Z.")
    # of other weights: proves nothing
    other = replace(facts.weights, weights_sha256="0" * 64)
    write_sealed(copy / MODEL / "weights.json", other)
    assert collect(copy).weights is None
