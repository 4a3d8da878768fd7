"""The steps of the tiny campaign: where its files lie, the command lines of its rules and what they
leave.
"""

MODEL = "esm2_t3_untrained"
VECTORS = f"results/{MODEL}"
WEIGHTS = f"resources/weights/{MODEL}"
MASTER = f"{VECTORS}/master_esm2_embeddings.h5"
INDEX = f"{VECTORS}/master_esm2_embeddings.parquet"
RECORDS = f"{VECTORS}/records.parquet"
PROOF = f"{VECTORS}/checksums.sha256"
BUCKETS = ("0000", "0001", "0002")
INPUTS = tuple(
    f"inputs/{name}"
    for name in ("a.fasta.gz", "b.fasta.bz2", "c.fasta.xz", "d.fasta.zst", "e.parquet")
)

STEPS = ("weights", "deduplicate", "embed", "gather", "validate", "report")
OUTPUTS = {
    "weights": [f"{VECTORS}/weights.json", WEIGHTS],  # which a job makes by the record, too
    "deduplicate": [
        f"results/sequences/{name}"
        for name in ("records.parquet", "summary.json", "buckets", "members")
    ],
    "embed": [f"{VECTORS}/embedded/{name}.json" for name in BUCKETS],
    "gather": [MASTER, INDEX, RECORDS],
    "validate": [PROOF, f"{VECTORS}/validation.json"],
    "report": [
        f"{VECTORS}/{name}" for name in ("report.html", "skipped.tsv", "ro-crate-metadata.json")
    ],
}
"""Files that Snakemake deletes before it runs a rule, and what makes it run the rule when it is
missing.
"""


def commands(step: str) -> list[list[str]]:
    """The command lines of a rule's jobs, relative to the campaign's folder."""
    sequences, embedded, store = "results/sequences", f"{VECTORS}/embedded", f"{VECTORS}/store"
    places = ["--sequences", sequences, "--embedded", embedded, "--store", store]
    places += ["--master", MASTER, "--index", INDEX, "--records", RECORDS]
    adopted = ["--output", WEIGHTS, "--record", f"{VECTORS}/weights.json"]
    count = ["--buckets", str(len(BUCKETS))]
    found: dict[str, list[list[str]]] = {
        "weights": [["weights", "--model", MODEL, "--source", "model.pt", *adopted]],
        "deduplicate": [["deduplicate", *INPUTS, "--output", sequences, *count]],
        "embed": [embed_command(bucket) for bucket in BUCKETS],
        "gather": [["gather", *places]],
        "validate": [["validate", VECTORS, "--spot-checks", "2"]],
        "report": [
            ["report", VECTORS, "--output", f"{VECTORS}/report.html"],
            ["summary", "results"],
        ],
    }
    return found[step]


def embed_command(bucket: str) -> list[str]:
    """The command line of the job of one bucket."""
    places = ["--weights", WEIGHTS, "--store", f"{VECTORS}/store"]
    places += ["--record", f"{VECTORS}/embedded/{bucket}.json"]
    speed = ["--device", "cpu", "--scratch", "", "--flush-minutes", "0.00001"]
    file = f"results/sequences/buckets/{bucket}.parquet"
    return ["embed", file, *places, *speed, "--toks-per-batch", "256"]
