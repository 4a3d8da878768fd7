# REQUIRED INPUTS  <sequences>, <vectors>/submissions and weights.json, the master and its proof
# OUTPUTS          <vectors>/report.html, also shown by `snakemake --report`; <vectors>/ro-crate-metadata.json


rule report:
    """Everything about the campaign: for people in one HTML file that needs no network, for machines in an RO-Crate."""
    input:
        summary="<sequences>/summary.json",
        submissions=expand("<vectors>/submissions/{submission}.json", submission=SUBMISSIONS),
        gathered="<vectors>/gathered.json",
        proof="<vectors>/checksums.sha256",
        weights="<vectors>/weights.json",
    output:
        report=report("<vectors>/report.html", category="Report", labels={"model": MODEL}),
        crate="<vectors>/ro-crate-metadata.json",
    log:
        f"<logs>/{MODEL}/report.log",
    benchmark:
        f"<benchmarks>/{MODEL}/report.jsonl"
    conda:
        "../../envs/plm-embed.yaml"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: attempt * 4000,
        runtime=lambda wildcards, attempt: attempt * 60,
    params:
        results=lambda wildcards, output: Path(output.report).parent,
    shell:
        "python -m plm_embed report {params.results:q} --output {output.report:q} &> {log:q}"
