"""Content of a campaign of the records of `make_records`: keys, ids and vectors."""

from collections import defaultdict

import numpy as np

from support.campaigns import EVERYTHING, vectors
from support.made_up_sequences import make_records

RECORDS = [record for record in make_records() if record["key"]]
SEQUENCES = {record["key"]: record["sequence"] for record in RECORDS}
KEYS = sorted(SEQUENCES)
KEYS_OF_ID: dict[str, set[str]] = defaultdict(set)
for _record in RECORDS:
    KEYS_OF_ID[_record["id"]].add(_record["key"])
CLEAR = sorted(id for id, keys in KEYS_OF_ID.items() if len(keys) == 1)
UNCLEAR = sorted(id for id, keys in KEYS_OF_ID.items() if len(keys) > 1)


def expected(keys: list[str], name: str = "mean_l2") -> np.ndarray:
    return np.stack([vectors(SEQUENCES[key], EVERYTHING)[name].astype(np.float16) for key in keys])
