# A rule for each family, whose name is part of the master's: all outputs of a rule must have the same wildcards.
for family in FAMILIES.values():

    rule:
        """Merge the store's parts of all buckets, in key order, into the master and its index."""
        name:
            f"gather_{family.name}"
        input:
            summary="<results>/sequences/summary.json",
            records="<results>/sequences/records.parquet",
            buckets="<results>/sequences/buckets",
            members="<results>/sequences/members",
            embedded=expand("<results>/{{model}}/embedded/{bucket}.json", bucket=BUCKETS),
        output:
            master=f"<results>/{{model}}/{family.master}.h5",
            index=f"<results>/{{model}}/{family.master}.parquet",
            records="<results>/{model}/records.parquet",
        log:
            "<logs>/{model}/gather.log",
        benchmark:
            "<benchmarks>/{model}/gather.jsonl"
        wildcard_constraints:
            model="|".join(name for name in MODELS if MODELS[name].family.name == family.name),
        conda:
            "../../envs/plm-embed.yaml"
        threads: 2
        resources:
            mem_mb=lambda wildcards, attempt: attempt * 8000,
        params:
            sequences=lambda wildcards, input: Path(input.summary).parent,
            embedded=lambda wildcards, input: Path(input.embedded[0]).parent,
            store=store,
        shell:
            "python -m plm_embed gather --sequences {params.sequences:q} --embedded {params.embedded:q}"
            " --store {params.store:q} --master {output.master:q} --index {output.index:q}"
            " --records {output.records:q} &> {log:q}"


rule validate:
    """Prove the result: every key once, every record answered, every row right. A problem fails the run."""
    input:
        summary="<results>/sequences/summary.json",
        weights="<results>/{model}/weights.json",
        embedded=expand("<results>/{{model}}/embedded/{bucket}.json", bucket=BUCKETS),
        records="<results>/{model}/records.parquet",
        master=lambda wildcards: master(wildcards.model, "h5"),
        index=lambda wildcards: master(wildcards.model, "parquet"),
    output:
        report="<results>/{model}/validation.json",
        checksums="<results>/{model}/checksums.sha256",
    log:
        "<logs>/{model}/validate.log",
    benchmark:
        "<benchmarks>/{model}/validate.jsonl"
    conda:
        "../../envs/plm-embed.yaml"
    threads: 4
    resources:
        mem_mb=lambda wildcards, attempt: attempt * (8000 + worker_mb(MODELS[wildcards.model])),
    params:
        folder=lambda wildcards, output: Path(output.report).parent,
        store=lambda wildcards, input: store(wildcards, [input.embedded[0]]),
        checks=config["validate"]["spot_checks"],
    shell:
        "python -m plm_embed validate {params.folder:q} --store {params.store:q} --spot-checks {params.checks}"
        " &> {log:q}"
