# REQUIRED INPUTS  `weights` in the config: a fair-esm .pt file or a Hugging Face folder; empty: downloaded
# OUTPUTS          <weights>/model.safetensors, manifest.json, self_test.npz


localrules:
    weights,


rule weights:
    """Adopt or download the model's weights, verify and convert them once, on the submitting machine."""
    input:
        source=[config["weights"]] if config["weights"] else [],
    output:
        tensors="<weights>/model.safetensors",
        manifest="<weights>/manifest.json",
        self_test="<weights>/self_test.npz",
    log:
        f"<logs>/{config['model']}/weights.log",
    benchmark:
        f"<benchmarks>/{config['model']}/weights.jsonl"
    conda:
        "../../envs/plm-embed.yaml"
    threads: 1
    resources:
        mem_mb=host_memory_mb(config["model"]),
        runtime=240,
    params:
        model=config["model"],
        source=options("source", [config["weights"]] if config["weights"] else []),
        folder=lambda wildcards, output: Path(output.manifest).parent,
    shell:
        "python -m plm_embed weights --model {params.model} {params.source:q} --output {params.folder:q} &> {log:q}"
