# REQUIRED INPUTS  `weights` in the config: a fair-esm .pt file or a Hugging Face folder; empty: downloaded.
# OUTPUTS          <vectors>/weights.json: the campaign's copy of the manifest in the weights folder, which has
#                  model.safetensors, manifest.json and self_test.npz. Campaigns share that folder, so it is not
#                  declared: Snakemake deletes the outputs of a job before it runs, and gives them a new time after it.


rule weights:
    """Adopt or download the model's weights, verify and convert them once, on the submitting machine."""
    input:
        source=lambda wildcards: list(filter(None, [of(wildcards)["weights"]])),
    output:
        "<vectors>/weights.json",
    log:
        f"<logs>/{MODEL}/weights.log",
    benchmark:
        f"<benchmarks>/{MODEL}/weights.jsonl"
    priority: 100  # a missing network is seen before the sequences are read, which may take hours
    localrule: True
    conda:
        "../../envs/plm-embed.yaml"
    threads: 1
    resources:
        mem_mb=lambda wildcards: host_memory_mb(of(wildcards)["model"]),
        runtime=240,
    params:
        model=MODEL,
        source=lambda wildcards: options("source", filter(None, [of(wildcards)["weights"]])),
        folder=lambda wildcards: weights_folder(of(wildcards)),
        dtype=lambda wildcards: of(wildcards)["embedding"]["compute_dtype"],
    shell:
        "python -m plm_embed weights --model {params.model} {params.source:q}"
        " --output {params.folder:q} --record {output:q} --compute-dtype {params.dtype} &> {log:q}"
