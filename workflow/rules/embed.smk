# REQUIRED INPUTS  <sequences>/buckets/*.parquet and <vectors>/weights.json (and with it the weights folder)
# OUTPUTS          <vectors>/submissions/{submission}.json: says that each bucket of the submission has its completion
#                  record, <vectors>/embedded/{bucket}.json, which names the parts that hold its vectors. Records and
#                  store are not declared: Snakemake would delete them before every attempt, and a retry does the rest.


from plm_embed.workflow import recipe_options, source_options, speed_resources, speed_words

# once for each model, for there may be many jobs
ORIGINS = {name: source_options(settings) for name, settings in MODELS.items()}
RECIPE = {name: recipe_options(settings) for name, settings in MODELS.items()}


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
        * job_memory_mb(of(wildcards), SUBMISSIONS[wildcards.submission], WORKERS),
        runtime=lambda wildcards, attempt: min(
            LONGEST_MINUTES,
            attempt * job_minutes(of(wildcards), SUBMISSIONS[wildcards.submission]),
        ),
    # What decides the numbers: a change computes again.
    params:
        buckets=lambda wildcards: bucket_files(config["results"], SUBMISSIONS[wildcards.submission]),
        weights=lambda wildcards, input: weights_folder(of(wildcards)),
        store=lambda wildcards: of(wildcards)["store"],
        embedded=f"{VECTORS}/embedded",
        # A function of `input` never causes a rerun: where vectors come from is no reason to take them again.
        sources=lambda wildcards, input: ORIGINS[of(wildcards)["model"]],
        recipe=lambda wildcards: RECIPE[of(wildcards)["model"]],
    # exec: a shell in between would die of the SIGTERM that a scheduler sends to all processes of a job. SLURM would
    # then end the job, before its workers have published what they have.
    shell:
        "exec python -m plm_embed embed {params.buckets:q} --weights {params.weights:q} --store {params.store:q}"
        " --embedded {params.embedded:q} --output {output:q} {params.sources:q} {params.recipe:q}"
        " --nodes {resources.nodes} --workers {resources.gpu} --threads {threads} --minutes {resources.runtime} "
        + speed_words()
        + " &> {log:q}"
