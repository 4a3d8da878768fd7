# REQUIRED INPUTS  <sequences>, <vectors>/weights.json, the master and its proof (and with them <vectors>/embedded)
# OUTPUTS          <vectors>/report.html and skipped.tsv, also shown by `snakemake --report`; config.yaml, the
#                  configuration of the run; <vectors>/ro-crate-metadata.json


rule report:
    """Everything about the campaign: for people in one HTML file that needs no network, for machines in an RO-Crate."""
    input:
        summary="<sequences>/summary.json",
        gathered="<vectors>/gathered.json",
        proof="<vectors>/checksums.sha256",
        weights="<vectors>/weights.json",
    output:
        report=report(
            "<vectors>/report.html",
            caption="../report/report.rst",
            category="Report",
            labels={"model": MODEL, "file": "report"},
        ),
        skipped=report(
            "<vectors>/skipped.tsv",
            caption="../report/skipped.rst",
            category="Report",
            labels={"model": MODEL, "file": "skipped records"},
        ),
        config="<vectors>/config.yaml",
        crate="<vectors>/ro-crate-metadata.json",
    log:
        f"<logs>/{MODEL}/report.log",
    benchmark:
        f"<benchmarks>/{MODEL}/report.jsonl"
    priority: 2
    conda:
        "../../envs/plm-embed.yaml"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: attempt * 4000,
        runtime=lambda wildcards, attempt: attempt * 60,
    # A function of `output` never causes a rerun: a change of speed is no reason to report again.
    params:
        config=lambda wildcards, output: FROZEN,
        results=lambda wildcards, output: Path(output.report).parent,
    shell:
        "python -m plm_embed report {params.results:q} --configfile {params.config:q} &> {log:q}"
