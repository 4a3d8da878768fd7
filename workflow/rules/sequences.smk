# REQUIRED INPUTS  the files of `inputs` in the config: FASTA, CSV, TSV or Parquet, plain or compressed
# OUTPUTS          <sequences>/records.parquet, summary.json, and per bucket buckets/*.parquet and members/*.parquet
#                  `deduplicate` in the config: all by one job, or by many, of which `collect` is the last

from plm_embed.workflow import place_of, range_names, reading_options, scan_names

# for the jobs of by_input
SCANS, RANGES = scan_names(config), range_names(config)
READING = reading_options(config)


wildcard_constraints:
    scan=r"[0-9]+-[0-9a-f]+",
    range=r"[0-9]+-[0-9a-f]+",


if config["deduplicate"] == "one_job":

    rule deduplicate:
        """Normalize all records, keep each distinct sequence once, split the key space into buckets."""
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
        threads: lambda wildcards: reading_threads(input_bytes(config))
        resources:
            mem_mb=lambda wildcards, attempt: attempt * config["memory_mb"],
            runtime=lambda wildcards, attempt: attempt * records_minutes(input_bytes(config)),
        params:
            folder=lambda wildcards, output: Path(output.summary).parent,
            # a file that is replaced by an older one keeps Snakemake from seeing it by its time; its size tells
            sizes=[input_size(config, path) for path in config["inputs"]] if ALONE else [],
            reading=lambda wildcards: READING,  # a function, for what it gives is not searched for wildcards
        shell:
            "python -m plm_embed deduplicate --output {params.folder:q} {params.reading:q}"
            " --memory-mb {resources.mem_mb} -- {input:q} &> {log:q}"

else:

    rule scan:
        """Account for every record of one input, and hand the accepted ones to the ranges of buckets."""
        input:
            lambda wildcards: config["inputs"][place_of(wildcards.scan)],
        output:
            temp(directory("<sequences>/scans/{scan}")),
        log:
            "<logs>/scan/{scan}.log",
        benchmark:
            "<benchmarks>/scan/{scan}.jsonl"
        conda:
            "../../envs/plm-embed.yaml"
        threads: 2
        resources:
            mem_mb=lambda wildcards, attempt: attempt * config["memory_mb"],
            runtime=lambda wildcards, attempt: attempt
            * records_minutes(input_size(config, config["inputs"][place_of(wildcards.scan)])),
        params:
            number=lambda wildcards: place_of(wildcards.scan),
            # as in deduplicate
            size=lambda wildcards: (
                input_size(config, config["inputs"][place_of(wildcards.scan)]) if ALONE else 0
            ),
            reading=lambda wildcards: READING,  # a function, for what it gives is not searched for wildcards
        shell:
            "python -m plm_embed scan --number {params.number} --output {output:q} {params.reading:q}"
            " -- {input:q} &> {log:q}"

    rule split:
        """Keep each distinct sequence of a range of buckets once."""
        input:
            scans=expand("<sequences>/scans/{scan}", scan=SCANS),
        output:
            temp(directory("<sequences>/splits/{range}")),
        log:
            "<logs>/split/{range}.log",
        benchmark:
            "<benchmarks>/split/{range}.jsonl"
        conda:
            "../../envs/plm-embed.yaml"
        threads: 2
        resources:
            mem_mb=lambda wildcards, attempt: attempt * config["memory_mb"],
            runtime=lambda wildcards, attempt: attempt
            * records_minutes(input_bytes(config) / len(RANGES)),
        params:
            number=lambda wildcards: place_of(wildcards.range),
        shell:
            "python -m plm_embed split {input.scans:q} --range {params.number} --output {output:q}"
            " --memory-mb {resources.mem_mb} &> {log:q}"

    rule collect:
        """Bring together what many jobs found, as one job would have written it."""
        input:
            scans=expand("<sequences>/scans/{scan}", scan=SCANS),
            splits=expand("<sequences>/splits/{range}", range=RANGES),
        output:
            records="<sequences>/records.parquet",
            summary="<sequences>/summary.json",
            buckets=directory("<sequences>/buckets"),
            members=directory("<sequences>/members"),
        log:
            "<logs>/collect.log",
        benchmark:
            "<benchmarks>/collect.jsonl"
        conda:
            "../../envs/plm-embed.yaml"
        threads: 2
        resources:
            mem_mb=lambda wildcards, attempt: attempt * config["memory_mb"],
            runtime=lambda wildcards, attempt: attempt * records_minutes(input_bytes(config)),
        params:
            scans=lambda wildcards, input: options("scan", input.scans),
            splits=lambda wildcards, input: options("split", input.splits),
            folder=lambda wildcards, output: Path(output.summary).parent,
        shell:
            "python -m plm_embed collect {params.scans:q} {params.splits:q} --output {params.folder:q} &> {log:q}"
