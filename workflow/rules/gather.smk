# REQUIRED INPUTS  <sequences>, <vectors>/submissions (and with it <vectors>/embedded and the store)
# OUTPUTS          <vectors>/gathered.json: says that gather has written <vectors>/master_{family}_embeddings.h5, its
#                  index (.parquet) and <vectors>/records.parquet. They are not declared: Snakemake would remove the
#                  old ones before the new ones are whole. <vectors>/checksums.sha256, <vectors>/validation.json: the
#                  proof of them


from plm_embed.workflow import proof_options


rule gather:
    """Merge the parts of all buckets, in key order, into the master file and its index."""
    input:
        summary="<sequences>/summary.json",
        records="<sequences>/records.parquet",
        buckets="<sequences>/buckets",
        members="<sequences>/members",
        submissions=expand("<vectors>/submissions/{submission}.json", submission=SUBMISSIONS),
    output:
        "<vectors>/gathered.json",
    log:
        f"<logs>/{MODEL}/gather.log",
    benchmark:
        f"<benchmarks>/{MODEL}/gather.jsonl"
    conda:
        "../../envs/plm-embed.yaml"
    threads: 2
    resources:
        mem_mb=lambda wildcards, attempt: attempt * 8000,
        runtime=lambda wildcards, attempt: attempt * gather_minutes(of(wildcards)),
    # A function of `input` or `output` never causes a rerun: another commit is no reason to gather again.
    params:
        sequences=lambda wildcards, input: Path(input.summary).parent,
        embedded=f"{VECTORS}/embedded",
        store=lambda wildcards: of(wildcards)["store"],
        files=lambda wildcards: master_files(of(wildcards)),
        commit=lambda wildcards, input: COMMIT or workflow_commit(ROOT),
    shell:
        "python -m plm_embed gather --sequences {params.sequences:q} --embedded {params.embedded:q}"
        " --store {params.store:q} --master {params.files[master]:q} --index {params.files[index]:q}"
        " --records {params.files[records]:q} --output {output:q}"
        " --workflow-commit {params.commit:q} &> {log:q}"


rule validate:
    """Prove the result: every key once, every record answered, every row right. A problem fails the run."""
    input:
        summary="<sequences>/summary.json",
        weights="<vectors>/weights.json",
        gathered="<vectors>/gathered.json",
    output:
        "<vectors>/checksums.sha256",
    # The report is listed as a log because Snakemake deletes the outputs of a job that fails, and it must survive.
    log:
        f"<logs>/{MODEL}/validate.log",
        report="<vectors>/validation.json",
    benchmark:
        f"<benchmarks>/{MODEL}/validate.jsonl"
    conda:
        "../../envs/plm-embed.yaml"
    threads: 2
    resources:
        mem_mb=lambda wildcards, attempt: attempt * (4000 + host_memory_mb(of(wildcards)["model"])),
        runtime=lambda wildcards, attempt: attempt * validate_minutes(of(wildcards)),
    params:
        sequences=lambda wildcards, input: Path(input.summary).parent,
        embedded=f"{VECTORS}/embedded",
        store=lambda wildcards: of(wildcards)["store"],
        weights=lambda wildcards, input: weights_folder(of(wildcards)),
        files=lambda wildcards: master_files(of(wildcards)),
        proof=proof_options(config),
    shell:
        "python -m plm_embed validate --sequences {params.sequences:q} --embedded {params.embedded:q}"
        " --store {params.store:q} --weights {params.weights:q} --master {params.files[master]:q}"
        " --index {params.files[index]:q} --records {params.files[records]:q} {params.proof:q}"
        " --report {log.report:q} --checksums {output:q} &> {log[0]:q}"
