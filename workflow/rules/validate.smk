# REQUIRED INPUTS  <sequences>, <vectors>/weights.json, <vectors>/gathered.json
# OUTPUTS          <vectors>/reference.npz: a few vectors as the reference path computes them; <vectors>/checksums.sha256
#                  and <vectors>/validation.json: the proof of the master and its tables


from plm_embed.workflow import meaning_options, proof_options

MEANING = {name: meaning_options(settings) for name, settings in MODELS.items()}


rule reference:
    """Embed a few random sequences by the reference path, for validate, while the others are embedded."""
    input:
        summary="<sequences>/summary.json",
        buckets="<sequences>/buckets",
        weights="<vectors>/weights.json",
    output:
        "<vectors>/reference.npz",
    log:
        f"<logs>/{MODEL}/reference.log",
    benchmark:
        f"<benchmarks>/{MODEL}/reference.jsonl"
    conda:
        "../../envs/plm-embed.yaml"
    threads: 1  # embed jobs run beside it
    resources:
        mem_mb=lambda wildcards, attempt: attempt * (4000 + host_memory_mb(of(wildcards)["model"])),
        runtime=lambda wildcards, attempt: attempt * reference_minutes(of(wildcards)),
    params:
        sequences=lambda wildcards, input: Path(input.summary).parent,
        weights=lambda wildcards, input: weights_folder(of(wildcards)),
        meaning=lambda wildcards: MEANING[of(wildcards)["model"]],
        proof=proof_options(config),
    shell:
        "python -m plm_embed reference --sequences {params.sequences:q} --weights {params.weights:q}"
        " {params.meaning:q} {params.proof:q} --output {output:q} &> {log:q}"


rule validate:
    """Prove the result: every key once, every record answered, every row right. A problem fails the run."""
    input:
        summary="<sequences>/summary.json",
        weights="<vectors>/weights.json",
        gathered="<vectors>/gathered.json",
        reference="<vectors>/reference.npz",
    output:
        "<vectors>/checksums.sha256",
    # The report is listed as a log because Snakemake deletes the outputs of a job that fails, and it must survive.
    log:
        f"<logs>/{MODEL}/validate.log",
        report="<vectors>/validation.json",
    benchmark:
        f"<benchmarks>/{MODEL}/validate.jsonl"
    priority: 2
    conda:
        "../../envs/plm-embed.yaml"
    threads: 2
    resources:
        mem_mb=lambda wildcards, attempt: attempt * validate_memory_mb(of(wildcards)),
        runtime=lambda wildcards, attempt: attempt * gather_minutes(of(wildcards)),
    params:
        sequences=lambda wildcards, input: Path(input.summary).parent,
        embedded=f"{VECTORS}/embedded",
        store=lambda wildcards: of(wildcards)["store"],
        weights=lambda wildcards, input: weights_folder(of(wildcards)),
        files=lambda wildcards: master_files(of(wildcards)),
    shell:
        "python -m plm_embed validate --sequences {params.sequences:q} --embedded {params.embedded:q}"
        " --store {params.store:q} --weights {params.weights:q} --master {params.files[master]:q}"
        " --index {params.files[index]:q} --records {params.files[records]:q} --reference {input.reference:q}"
        " --report {log.report:q} --checksums {output:q} &> {log[0]:q}"
