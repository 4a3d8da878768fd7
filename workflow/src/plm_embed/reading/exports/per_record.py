"""Exports with a dataset, a file or a tensor for each record, by name."""

import io
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from plm_embed.errors import extra
from plm_embed.fingerprint import SPANS, has_matrix, pooling_and_layer
from plm_embed.io.files import atomic_path
from plm_embed.io.progress import Meter
from plm_embed.reading.exports.new_hdf5 import new_hdf5
from plm_embed.reading.exports.records import Records, atomic_folder, without_nul


def uniprot(records: Records, output: Path, meter: Meter) -> None:
    """One dataset per name, (D,) or (L, D), as UniProt's per-protein.h5 and per-residue.h5."""
    each = records.values(output, meter, longest=1000)
    with new_hdf5(output) as (file, check), closing(each):
        file.attrs.update(records.attributes())
        for name, id, values in each:
            dataset = file.create_dataset(name, data=values, track_times=False)
            dataset.attrs["original_id"] = without_nul(id)
            check()


def pt(records: Records, output: Path, meter: Meter) -> None:
    """A folder with fair-esm's file for each name: label, and float32 tensors of all
    representations by layer.
    """
    with extra():
        import torch
    embeddings = records.embeddings
    each = records.named(output, meter, longest=200)
    with atomic_folder(output) as folder, closing(each):
        for batch, chosen in each:
            rows, ids = batch["row"], batch["id"]
            pooled = {
                name: embeddings.rows(rows, name)
                for name in embeddings.names
                if not has_matrix(name)
            }
            for place, written in chosen:
                record: dict[str, Any] = {"label": ids[place]}
                for name in embeddings.names:
                    if name == SPANS:
                        record["spans"] = torch.from_numpy(embeddings.matrix(rows[place], name))
                        continue
                    kind, layer = pooling_and_layer(name)
                    values = (
                        pooled[name][place]
                        if name in pooled
                        else embeddings.matrix(rows[place], name)
                    )
                    group = "representations" if has_matrix(name) else f"{kind}_representations"
                    record.setdefault(group, {})[layer] = torch.from_numpy(
                        values.astype(np.float32)
                    )
                saved = io.BytesIO()  # torch would print what goes wrong with a file
                torch.save(record, saved)
                (folder / f"{written}.pt").write_bytes(saved.getbuffer())


def pt_dict(records: Records, output: Path, meter: Meter) -> None:
    """One .pt file with a float32 tensor by name; all of them are held in memory."""
    with extra():
        import torch
    with atomic_path(output) as temporary:
        tensors = {
            name: torch.from_numpy(values.astype(np.float32))
            for name, _, values in records.values(output, meter, longest=1000)
        }
        with temporary.open("wb") as file:  # by a path, torch would name the inside after the file
            torch.save(tensors, file)
