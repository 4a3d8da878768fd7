"""The steps of the tiny campaign: where its files lie, the command lines of its rules and what they
leave.
"""

from collections.abc import Iterable, Sequence

MODEL = "esm2_t3_untrained"
VECTORS = f"results/{MODEL}"
WEIGHTS = f"resources/weights/{MODEL}"
MASTER = f"{VECTORS}/master_esm2_embeddings.h5"
INDEX = f"{VECTORS}/master_esm2_embeddings.parquet"
RECORDS = f"{VECTORS}/records.parquet"
GATHERED = f"{VECTORS}/gathered.json"
PROOF = f"{VECTORS}/checksums.sha256"
REFERENCE = f"{VECTORS}/reference.npz"
BUCKETS = ("0000", "0001", "0002")
INPUTS = tuple(
    f"inputs/{name}"
    for name in ("a.fasta.gz", "b.fasta.bz2", "c.fasta.xz", "d.fasta.zst", "e.parquet")
)

ONE_JOB = ("weights", "deduplicate", "embed", "gather", "reference", "validate", "report")
BY_INPUT = ("weights", "scan", "split", "collect", *ONE_JOB[2:])
_SEQUENCES = [
    f"results/sequences/{name}"
    for name in ("records.parquet", "summary.json", "buckets", "members")
]
OUTPUTS = {
    "weights": [f"{VECTORS}/weights.json"],
    "deduplicate": _SEQUENCES,
    "scan": ["results/sequences/scans"],
    "split": ["results/sequences/splits"],
    "collect": _SEQUENCES,
    "embed": [f"{VECTORS}/embedded/{name}.json" for name in BUCKETS],
    "gather": [GATHERED],
    "reference": [REFERENCE],
    "validate": [PROOF],
    "report": [
        f"{VECTORS}/{name}" for name in ("report.html", "skipped.tsv", "ro-crate-metadata.json")
    ],
}
"""What Snakemake deletes before it runs a rule, and what makes it run the rule when it is
missing.
"""


def commands(step: str) -> list[list[str]]:
    """The command lines of a rule's jobs, relative to the campaign's folder."""
    sequences, weights, store = "results/sequences", WEIGHTS, f"{VECTORS}/store"
    scans = [f"{sequences}/scans/{number:05d}" for number in range(len(INPUTS))]
    splits = [f"{sequences}/splits/{number:02d}" for number in range(len(BUCKETS))]
    places = [
        "--sequences",
        sequences,
        "--embedded",
        f"{VECTORS}/embedded",
        "--store",
        store,
        "--master",
        MASTER,
    ]
    places += ["--index", INDEX, "--records", RECORDS]
    proofs = ["--report", f"{VECTORS}/validation.json", "--checksums", PROOF]
    compared = ["--output", REFERENCE]
    adopted = ["--output", weights, "--record", f"{VECTORS}/weights.json"]
    count = ["--buckets", str(len(BUCKETS))]
    found: dict[str, list[list[str]]] = {
        "weights": [["weights", "--model", MODEL, "--source", "model.pt", *adopted]],
        "deduplicate": [["deduplicate", *INPUTS, "--output", sequences, *count]],
        "scan": [
            ["scan", path, "--number", str(number), "--output", scans[number], *count]
            for number, path in enumerate(INPUTS)
        ],
        "split": [
            ["split", *scans, "--range", str(at), "--output", split]
            for at, split in enumerate(splits)
        ],
        "collect": [
            ["collect", *_each("scan", scans), *_each("split", splits), "--output", sequences]
        ],
        "embed": [embed_command(bucket) for bucket in BUCKETS],
        "gather": [["gather", *places, "--output", GATHERED, "--workflow-commit", "0123abc"]],
        "reference": [
            ["reference", *places[:2], "--weights", weights, "--spot-checks", "2", *compared]
        ],
        "validate": [
            ["validate", *places, "--weights", weights, "--reference", REFERENCE, *proofs]
        ],
        "report": [
            ["report", VECTORS, "--output", f"{VECTORS}/report.html"],
            ["summary", "results"],
        ],
    }
    return found[step]


def _each(option: str, values: Iterable[str]) -> list[str]:
    return [f"--{option}={value}" for value in values]


def embed_command(bucket: str) -> list[str]:
    return [
        "embed",
        f"results/sequences/buckets/{bucket}.parquet",
        *("--weights", WEIGHTS, "--store", f"{VECTORS}/store"),
        *("--record", f"{VECTORS}/embedded/{bucket}.json"),
        "--device",
        "cpu",
        "--scratch",
        "",
        "--flush-minutes",
        "0.00001",
        "--toks-per-batch",
        "256",
    ]


def steps_from(step: str, steps: Sequence[str]) -> list[str]:
    """The rules that Snakemake runs when this one has to be run, but for the report: it and those
    that need it.
    """
    later = list(steps[steps.index(step) : steps.index("report")])
    return (
        ["weights", *steps[steps.index("embed") : steps.index("report")]]
        if step == "weights"
        else later
    )
