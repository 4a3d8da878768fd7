# REQUIRED INPUTS  `weights` in the config: a fair-esm .pt file or a Hugging Face folder; empty: downloaded
# OUTPUTS          <vectors>/weights.json: the campaign's copy of the manifest in the weights folder, which has
#                  model.safetensors, manifest.json and self_test.npz. Campaigns share that folder, so it is not
#                  declared: Snakemake deletes the outputs of a job before it runs, and gives them a new time after it.


localrules:
    weights,


rule weights:
    """Adopt or download the model's weights, verify and convert them once, on the submitting machine."""
    input:
        source=[config["weights"]] if config["weights"] else [],
    output:
        "<vectors>/weights.json",
    log:
        f"<logs>/{config['model']}/weights.log",
    benchmark:
        f"<benchmarks>/{config['model']}/weights.jsonl"
    priority: 100  # a missing network is seen before the sequences are read, which may take hours
    conda:
        "../../envs/plm-embed.yaml"
    threads: 1
    resources:
        mem_mb=host_memory_mb(config["model"]),
        runtime=240,
    params:
        model=config["model"],
        source=options("source", [config["weights"]] if config["weights"] else []),
        folder=WEIGHTS,
    shell:
        "python -m plm_embed weights --model {params.model} {params.source:q} --output {params.folder:q}"
        " --record {output:q} &> {log:q}"
