# REQUIRED INPUTS  <sequences>, <vectors>/submissions, the master and its proof
# OUTPUTS          <results>/report.html; also shown by `snakemake --report`


rule report:
    """Everything about the campaign in one HTML file that needs no network."""
    input:
        summary="<sequences>/summary.json",
        submissions=expand("<vectors>/submissions/{submission}.json", submission=SUBMISSIONS),
        master="<vectors>/master_esm2_embeddings.h5",
        index="<vectors>/master_esm2_embeddings.parquet",
        proof="<vectors>/checksums.sha256",
    output:
        report("<results>/report.html", category="Report"),
    log:
        f"<logs>/{config['model']}/report.log",
    benchmark:
        f"<benchmarks>/{config['model']}/report.jsonl"
    conda:
        "../../envs/plm-embed.yaml"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: attempt * 4000,
        runtime=lambda wildcards, attempt: attempt * 60,
    params:
        results=lambda wildcards, output: Path(output[0]).parent,
    shell:
        "python -m plm_embed report {params.results:q} --output {output:q} &> {log:q}"
