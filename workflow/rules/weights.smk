rule weights:
    """Adopt or download the weights of a model, on the submitting machine: nodes may have no network."""
    input:
        weights_of,
    output:
        "<results>/{model}/weights.json",
    log:
        "<logs>/{model}/weights.log",
    benchmark:
        "<benchmarks>/{model}/weights.jsonl"
    priority: 100  # a missing network is seen before the sequences are read
    retries: 0 if config["weights"] else None  # a download may succeed later, wrong files cannot
    localrule: True
    conda:
        "../../envs/plm-embed.yaml"
    params:
        source=lambda wildcards: [f"--source={path}" for path in weights_of(wildcards)],
        # functions of `output` never cause a rerun
        cache=lambda wildcards, output: [
            f"--cache={folder}" for folder in [config["weights_folder"]] if folder
        ],
        settings=lambda wildcards, output: vector_settings(config),
    shell:
        "python -m plm_embed weights --model {wildcards.model} {params.source:q} {params.cache:q} --record {output:q}"
        " --settings {params.settings:q} &> {log:q}"
