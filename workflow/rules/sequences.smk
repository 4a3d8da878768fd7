rule deduplicate:
    """Keep each distinct sequence once, in buckets of key space, and account for every record."""
    input:
        input_paths(config),
    output:
        records="<results>/sequences/records.parquet",
        summary="<results>/sequences/summary.json",
        # folders: with a file for each bucket, planning takes twice as long
        buckets=directory("<results>/sequences/buckets"),
        members=directory("<results>/sequences/members"),
    log:
        "<logs>/deduplicate.log",
    benchmark:
        "<benchmarks>/deduplicate.jsonl"
    conda:
        "../../envs/plm-embed.yaml"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: attempt * 2000,
    params:
        folder=lambda wildcards, output: Path(output.summary).parent,
        reading=lambda wildcards: reading_options(config),
        # the only sign of an input that was replaced by an older file
        sizes=lambda wildcards: [
            os.path.getsize(path) for path in input_paths(config) if ALONE and os.path.exists(path)
        ],
    shell:
        "python -m plm_embed deduplicate --output {params.folder:q} {params.reading:q}"
        " --memory-mb {resources.mem_mb} -- {input:q} &> {log:q}"
