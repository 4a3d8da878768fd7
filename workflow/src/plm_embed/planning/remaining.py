"""What a campaign has to compute: the sequences that neither its store nor an earlier result in
`reuse` holds.
"""

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
from plm_embed.store.reuse import fingerprints
from plm_embed.store.store import FINGERPRINT
from plm_embed.workflow.config import Config


@dataclass(frozen=True)
class Outstanding:
    """Unique sequences in the store, those that only earlier results hold, and the number of the
    rest by length.
    """

    stored: int
    reused: int
    lengths: dict[int, int]


def outstanding(config: Config, sequences: Path) -> Outstanding | None:
    """Compare deduplicated sequences with store and `reuse`; None when nothing there fits the
    configuration.

    What depends on the device that will compute (compute_dtype auto, the engine) is open: of
    several fingerprints that fit, the one that spares most counts.
    """
    found = [_left(config, sequences, fingerprint) for fingerprint in _fingerprints(config)]
    return max(found, key=lambda one: one.stored + one.reused, default=None)


def _left(config: Config, sequences: Path, fingerprint: Fingerprint) -> Outstanding:
    stored, reused, lengths = 0, 0, Counter[int]()
    own = _Place(Path(config["store"]) / fingerprint.id / "parts")
    earlier = [
        _Place(place)
        for path in _reuse(config)
        for found, place in fingerprints(path).items()
        if found.serves(fingerprint)
    ]
    for name in bucket_names(sequences):
        table = read_table(verified(sequences, f"buckets/{name}.parquet"), ["key", "length"])
        keys = key_array(table["key"])
        mine = own.held(keys)
        theirs = np.zeros(len(keys), dtype=np.bool_)
        for place in earlier:
            theirs |= place.held(keys)
        stored += int(mine.sum())
        reused += int((theirs & ~mine).sum())
        lengths.update(table["length"].filter(pa.array(~(mine | theirs))).to_pylist())
    return Outstanding(stored, reused, dict(lengths))


class _Place:
    """A master, or a folder of parts as it is now; it need not be there. Nothing is changed in
    it.
    """

    def __init__(self, path: Path) -> None:
        self._master = [path] if path.is_file() else []
        self._parts = PartList(path)

    def held(self, keys: Keys) -> NDArray[np.bool_]:
        """Which of the keys (S64 (n,), sorted) it holds."""
        held = np.zeros(len(keys), dtype=np.bool_)
        if not len(keys):
            return held
        for path in self._master or self._parts.between(keys[0].decode(), keys[-1].decode()):
            try:
                with read_part(path) as part:
                    held |= part.locate(keys) >= 0
            except PlmEmbedError:
                continue  # damaged: its sequences will be computed again
        return held


def _reuse(config: Config) -> list[Path]:
    return [Path(path) for path in config["reuse"]]


def _fingerprints(config: Config) -> Iterator[Fingerprint]:
    """Those in the store and in `reuse` that fit the configuration, as far as that is known before
    anything runs.
    """
    asked, model = from_config(Settings, config).recipe, find_model(config["model"])
    limit = asked.pop("long_sequences")
    folder = Path(weights_folder(config))
    digest = read_manifest(folder).weights_sha256 if (folder / MANIFEST).is_file() else None
    stored = (
        list(fingerprints(Path(config["store"])))
        if any(Path(config["store"]).glob(f"*/{FINGERPRINT}"))
        else []
    )
    for found in dict.fromkeys(
        [*stored, *(one for path in _reuse(config) for one in fingerprints(path))]
    ):
        wanted = replace(
            found,
            model=model.name,
            weights_sha256=digest or found.weights_sha256,
            **asked,
        )
        if found == wanted and (found.long_sequences == limit or model.max_residues):
            yield found
