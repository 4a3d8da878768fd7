# REQUIRED INPUTS  <sequences>/buckets/*.parquet and <vectors>/weights.json (and with it the weights folder)
# OUTPUTS          <vectors>/submissions/{submission}.json: says that each bucket of the submission has its completion
#                  record, <vectors>/embedded/{bucket}.json, which names the parts that hold its vectors. Records and
#                  store are not declared: Snakemake would delete them before every attempt, and a retry does the rest.


rule embed:
    """Embed what the store lacks of a submission's buckets, one worker per GPU (or on the CPU)."""
    input:
        buckets="<sequences>/buckets",
        weights="<vectors>/weights.json",
    output:
        "<vectors>/submissions/{submission}.json",
    log:
        f"<logs>/{MODEL}/embed/{{submission}}.log",
    benchmark:
        f"<benchmarks>/{MODEL}/embed/{{submission}}.jsonl"
    conda:
        "../../envs/plm-embed.yaml"
    threads: 1  # the most efficient on a CPU; profiles of GPU clusters ask for more
    # What decides the speed: a change computes nothing again. A profile may set any of these per site.
    resources:
        gpu=1,
        nodes=1,
        mem_mb=lambda wildcards, attempt: attempt
        * job_memory_mb(of(wildcards), SUBMISSIONS[wildcards.submission]),
        runtime=lambda wildcards, attempt: min(
            LONGEST_MINUTES,
            attempt * job_minutes(of(wildcards), SUBMISSIONS[wildcards.submission]),
        ),
        device=config["speed"]["device"],
        toks_per_batch=config["speed"]["toks_per_batch"],
        flush_minutes=str(config["speed"]["flush_minutes"]),
        per_residue_limit_gb=config["embedding"]["per_residue_limit_gb"],
        scratch=config["speed"]["scratch"],
    # What decides the numbers: a change computes again.
    params:
        buckets=lambda wildcards: bucket_files(config["results"], SUBMISSIONS[wildcards.submission]),
        weights=lambda wildcards, input: weights_folder(of(wildcards)),
        store=lambda wildcards: of(wildcards)["store"],
        embedded=f"{VECTORS}/embedded",
        # A function of `input` never causes a rerun: where vectors come from is no reason to take them again.
        reuse=lambda wildcards, input: options("reuse", of(wildcards)["reuse"]),
        layers=lambda wildcards: options("layers", of(wildcards)["embedding"]["layers"]),
        pooling=options("pooling", config["embedding"]["pooling"]),
        compute_dtype=config["embedding"]["compute_dtype"],
        storage_dtype=config["embedding"]["storage_dtype"],
        long_sequences=config["embedding"]["long_sequences"]["policy"],
        max_residues=config["embedding"]["long_sequences"]["max_residues"],
        overlap=config["embedding"]["long_sequences"]["overlap"],
        strand=config["residues"]["strand"],
    # exec: a shell in between would die of the SIGTERM that a scheduler sends to all processes of a job. SLURM would
    # then end the job, before its workers have published what they have.
    shell:
        "exec python -m plm_embed embed {params.buckets:q} --weights {params.weights:q} --store {params.store:q}"
        " --embedded {params.embedded:q} --output {output:q} {params.reuse:q} {params.layers:q} {params.pooling:q}"
        " --compute-dtype {params.compute_dtype} --storage-dtype {params.storage_dtype}"
        " --long-sequences {params.long_sequences} --max-residues {params.max_residues} --overlap {params.overlap}"
        " --strand {params.strand}"
        " --device {resources.device} --nodes {resources.nodes} --workers {resources.gpu}"
        " --threads {threads} --toks-per-batch {resources.toks_per_batch} --scratch={resources.scratch:q}"
        " --flush-minutes {resources.flush_minutes} --per-residue-limit-gb {resources.per_residue_limit_gb}"
        " --minutes {resources.runtime} &> {log:q}"
