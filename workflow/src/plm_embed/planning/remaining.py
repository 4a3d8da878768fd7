"""What a campaign has to compute: the sequences that its store does not hold."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plm_embed.errors import PlmEmbedError
from plm_embed.fingerprint import Fingerprint
from plm_embed.inference.settings import Settings
from plm_embed.io.parquet import read_table
from plm_embed.keys import Keys, key_array
from plm_embed.models.manifest import MANIFEST, read_manifest
from plm_embed.models.registry import find_model
from plm_embed.planning.model_settings import weights_folder
from plm_embed.sequences.summary import bucket_names, verified
from plm_embed.setting import from_config
from plm_embed.store.parts import read_part
from plm_embed.store.replaced import PartList
from plm_embed.store.store import fingerprint_folders, read_fingerprint
from plm_embed.workflow.config import Config


@dataclass(frozen=True)
class Outstanding:
    """Unique sequences in the store, and the number of the rest by length."""

    stored: int
    lengths: dict[int, int]


def outstanding(config: Config, sequences: Path) -> Outstanding | None:
    """Compare deduplicated sequences with the store; None when nothing there fits the
    configuration.

    What depends on the device that will compute (compute_dtype auto, the engine) is open: of
    several fingerprints that fit, the one that spares most counts.
    """
    found = [_left(config, sequences, fingerprint) for fingerprint in _fingerprints(config)]
    return max(found, key=lambda one: one.stored, default=None)


def _left(config: Config, sequences: Path, fingerprint: Fingerprint) -> Outstanding:
    stored, lengths = 0, Counter[int]()
    own = PartList(Path(config["store"]) / fingerprint.id / "parts")
    for name in bucket_names(sequences):
        table = read_table(verified(sequences, f"buckets/{name}.parquet"), ["key", "length"])
        keys = key_array(table["key"])
        mine = _held(own, keys)
        stored += int(mine.sum())
        lengths.update(table["length"].filter(pa.array(~mine)).to_pylist())
    return Outstanding(stored, dict(lengths))


def _held(parts: PartList, keys: Keys) -> NDArray[np.bool_]:
    """Mark the keys (S64 (n,), sorted) that parts hold. Nothing is changed in their folder."""
    held = np.zeros(len(keys), dtype=np.bool_)
    if not len(keys):
        return held
    for path in parts.between(keys[0].decode(), keys[-1].decode()):
        try:
            with read_part(path) as part:
                held |= part.locate(keys) >= 0
        except PlmEmbedError:
            continue  # damaged: its sequences will be computed again
    return held


def _fingerprints(config: Config) -> Iterator[Fingerprint]:
    """Those in the store that fit the configuration, as far as that is known before anything
    runs.
    """
    asked, model = from_config(Settings, config).recipe, find_model(config["model"])
    limit = asked.pop("long_sequences")
    folder = Path(weights_folder(config))
    digest = read_manifest(folder).weights_sha256 if (folder / MANIFEST).is_file() else None
    for found in map(read_fingerprint, fingerprint_folders(Path(config["store"]))):
        wanted = replace(
            found,
            model=model.name,
            weights_sha256=digest or found.weights_sha256,
            **asked,
        )
        if found == wanted and (found.long_sequences == limit or model.max_residues):
            yield found
