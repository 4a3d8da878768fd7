rule report:
    """Everything about the campaign: in one HTML file that needs no network, and in an RO-Crate."""
    input:
        summary="<results>/sequences/summary.json",
        records="<results>/{model}/records.parquet",
        master=lambda wildcards: master(wildcards.model, "h5"),
        validation="<results>/{model}/validation.json",
        checksums="<results>/{model}/checksums.sha256",
    output:
        report=report(
            "<results>/{model}/report.html",
            caption="../report/report.rst",
            category="Report",
            labels={"model": "{model}", "file": "report"},
        ),
        skipped=report(
            "<results>/{model}/skipped.tsv",
            caption="../report/skipped.rst",
            category="Report",
            labels={"model": "{model}", "file": "skipped records"},
        ),
        config="<results>/{model}/config.yaml",
        crate="<results>/{model}/ro-crate-metadata.json",
    log:
        "<logs>/{model}/report.log",
    benchmark:
        "<benchmarks>/{model}/report.jsonl"
    conda:
        "../../envs/plm-embed.yaml"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: attempt * 4000,
    params:
        folder=lambda wildcards, output: Path(output.report).parent,
        settings=lambda wildcards, output: json.dumps(config),
    shell:
        "python -m plm_embed report {params.folder:q} --settings {params.settings:q} &> {log:q}"
