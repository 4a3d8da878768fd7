# REQUIRED INPUTS  the files of `inputs` in the config: FASTA, CSV, TSV or Parquet, plain or compressed
# OUTPUTS          <sequences>/records.parquet, summary.json, and per bucket buckets/*.parquet and members/*.parquet


rule deduplicate:
    """Normalise all records, keep each distinct sequence once, split the key space into buckets."""
    input:
        config["inputs"],
    output:
        records="<sequences>/records.parquet",
        summary="<sequences>/summary.json",
        # a folder each: with a file per bucket, the time to plan would grow with the square of the number of buckets
        buckets=directory("<sequences>/buckets"),
        members=directory("<sequences>/members"),
    log:
        "<logs>/deduplicate.log",
    benchmark:
        "<benchmarks>/deduplicate.jsonl"
    conda:
        "../../envs/plm-embed.yaml"
    threads: 2
    resources:
        mem_mb=lambda wildcards, attempt: attempt * config["memory_mb"],
        runtime=lambda wildcards, attempt: attempt * 120,
    params:
        folder=lambda wildcards, output: Path(output.summary).parent,
        buckets=config["buckets"],
        table=[
            f"--id-column={config['table']['id']}",
            f"--sequence-column={config['table']['sequence']}",
            *options("keep", config["table"]["keep"]),
        ],
        unknown=config["residues"]["unknown"],
        gaps=config["residues"]["gaps"],
    shell:
        "python -m plm_embed deduplicate {input:q} --output {params.folder:q} --buckets {params.buckets}"
        " {params.table:q} --unknown-residues {params.unknown} --gaps {params.gaps}"
        " --memory-mb {resources.mem_mb} &> {log:q}"
