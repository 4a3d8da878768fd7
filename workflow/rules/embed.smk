rule embed:
    """Compute what the store lacks of a bucket, and write its completion record."""
    input:
        buckets="<results>/sequences/buckets",
        weights="<results>/{model}/weights.json",
    output:
        "<results>/{model}/embedded/{bucket}.json",
    log:
        "<logs>/{model}/embed/{bucket}.log",
    benchmark:
        "<benchmarks>/{model}/embed/{bucket}.jsonl"
    conda:
        "../../envs/plm-embed.yaml"
    threads: 1
    # What decides the speed: a profile sets these per site, and a change computes nothing again.
    resources:
        gpu=1,
        nodes=1,
        mem_mb=lambda wildcards, attempt: attempt * worker_mb(MODELS[wildcards.model]),
        runtime=240,
        device="auto",
        scratch="auto",
        toks_per_batch=0,
        flush_minutes=5,
    # What decides the vectors; functions of `input` or `output` never cause a rerun.
    params:
        settings=lambda wildcards: vector_settings(config),
        store=store,
        limit=lambda wildcards, input: config["embedding"]["per_residue_limit_gb"],
        gpu=gpu_required,
    # exec: a shell in between would die of the scheduler's SIGTERM before the workers have flushed.
    shell:
        "exec python -m plm_embed embed {input.buckets:q}/{wildcards.bucket}.parquet --weights {input.weights:q}"
        " --store {params.store:q} --record {output:q} --settings {params.settings:q}"
        " --per-residue-limit-gb {params.limit} --nodes {resources.nodes} --workers {resources.gpu} --threads {threads}"
        " --minutes {resources.runtime} {params.gpu} --device={resources.device:q} --scratch={resources.scratch:q}"
        " --toks-per-batch {resources.toks_per_batch} --flush-minutes {resources.flush_minutes} &> {log:q}"
