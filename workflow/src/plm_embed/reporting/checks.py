"""What each check of a validation means, in a sentence for those who did not write it."""

MEANINGS = {
    "completion records": "Every bucket has a record of the job that finished it, and all jobs "
    "used the same settings.",
    "parts": "Every file that the jobs wrote is there, unchanged since it was written.",
    "fingerprints in the store": "All stored vectors were computed with exactly these settings.",
    "weights": "The weights are the ones that the vectors were computed with.",
    "master": "The file with all vectors can be opened and read.",
    "attributes": "What that file says of itself (settings, inputs, versions) is true.",
    "shapes and types": "Each table in it has the rows, columns and number format that it should.",
    "keys": "Each distinct sequence has one row and no other row is there; rows are in order.",
    "rows equal their parts": "Each vector is, bit for bit, the one that its job wrote.",
    "finite": "No vector holds NaN or infinity.",
    "index": "The index leads each id to the row of its own sequence.",
    "records": "Every record of the input has one outcome, and the index agrees with it.",
    "counts": "Embedded and skipped records add up to the input, file by file.",
    "spot checks": "Some vectors, drawn at random, agree with those of an independent program.",
}
