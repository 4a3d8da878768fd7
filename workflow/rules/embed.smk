# REQUIRED INPUTS  <sequences>/buckets/*.parquet and <vectors>/weights.json (and with it the weights folder)
# OUTPUTS          <vectors>/embedded/{bucket}.json: the completion record, which names the parts that hold the vectors of
#                  the bucket. The store is not declared: Snakemake would delete it before every attempt, and a retry
#                  does the rest.


from plm_embed.workflow import recipe_options, source_options, speed_resources, speed_words

# once for each model, for there may be many jobs
ORIGINS = {name: source_options(settings) for name, settings in MODELS.items()}
RECIPE = {name: recipe_options(settings) for name, settings in MODELS.items()}


rule embed:
    """Embed what the store lacks of a bucket, one worker per GPU (or on the CPU)."""
    input:
        buckets="<sequences>/buckets",
        weights="<vectors>/weights.json",
    output:
        "<vectors>/embedded/{bucket}.json",
    log:
        f"<logs>/{MODEL}/embed/{{bucket}}.log",
    benchmark:
        f"<benchmarks>/{MODEL}/embed/{{bucket}}.jsonl"
    priority: 1  # the reference takes cores that it leaves
    conda:
        "../../envs/plm-embed.yaml"
    threads: 1  # the most efficient on a CPU; profiles of GPU clusters ask for more
    # What decides the speed: a change computes nothing again. A profile may set any of these per site.
    resources:
        **speed_resources(config),
        gpu=1,
        nodes=1,
        mem_mb=lambda wildcards, attempt: attempt
        * job_memory_mb(of(wildcards), [wildcards.bucket], WORKERS),
        runtime=lambda wildcards, attempt: min(
            LONGEST_MINUTES,
            attempt * job_minutes(of(wildcards), [wildcards.bucket]),
        ),
    # What decides the numbers: a change computes again.
    params:
        bucket=lambda wildcards: bucket_files(config["results"], [wildcards.bucket]),
        weights=lambda wildcards, input: weights_folder(of(wildcards)),
        store=lambda wildcards: of(wildcards)["store"],
        # A function of `input` never causes a rerun: where vectors come from is no reason to take them again.
        sources=lambda wildcards, input: ORIGINS[of(wildcards)["model"]],
        recipe=lambda wildcards: RECIPE[of(wildcards)["model"]],
    # exec: a shell in between would die of the SIGTERM that a scheduler sends to all processes of a job. SLURM would
    # then end the job, before its workers have published what they have.
    shell:
        "exec python -m plm_embed embed {params.bucket:q} --weights {params.weights:q} --store {params.store:q}"
        " --record {output:q} {params.sources:q} {params.recipe:q}"
        " --nodes {resources.nodes} --workers {resources.gpu} --threads {threads} --minutes {resources.runtime} "
        + speed_words()
        + " &> {log:q}"
