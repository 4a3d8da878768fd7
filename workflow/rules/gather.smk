# REQUIRED INPUTS  <sequences>, <vectors>/embedded (and with it the store)
# OUTPUTS          <vectors>/gathered.json: says that gather has written <vectors>/master_{family}_embeddings.h5, its
#                  index (.parquet) and <vectors>/records.parquet. They are not declared: Snakemake would remove the
#                  old ones before the new ones are whole


rule gather:
    """Merge the parts of all buckets, in key order, into the master file and its index."""
    input:
        summary="<sequences>/summary.json",
        records="<sequences>/records.parquet",
        buckets="<sequences>/buckets",
        members="<sequences>/members",
        embedded=expand("<vectors>/embedded/{bucket}.json", bucket=BUCKETS),
    output:
        "<vectors>/gathered.json",
    log:
        f"<logs>/{MODEL}/gather.log",
    benchmark:
        f"<benchmarks>/{MODEL}/gather.jsonl"
    priority: 2  # before what other models have to embed
    conda:
        "../../envs/plm-embed.yaml"
    threads: lambda wildcards: reading_threads(input_bytes(config))
    resources:
        mem_mb=lambda wildcards, attempt: attempt * 8000,
        runtime=lambda wildcards, attempt: attempt * gather_minutes(of(wildcards)),
    # A function of `input` or `output` never causes a rerun: another commit is no reason to gather again.
    params:
        sequences=lambda wildcards, input: Path(input.summary).parent,
        embedded=lambda wildcards, input: Path(input.embedded[0]).parent,
        store=lambda wildcards: of(wildcards)["store"],
        files=lambda wildcards: master_files(of(wildcards)),
        commit=lambda wildcards, input: COMMIT or workflow_commit(ROOT),
    shell:
        "python -m plm_embed gather --sequences {params.sequences:q} --embedded {params.embedded:q}"
        " --store {params.store:q} --master {params.files[master]:q} --index {params.files[index]:q}"
        " --records {params.files[records]:q} --output {output:q}"
        " --workflow-commit {params.commit:q} &> {log:q}"
