"""A master in the shapes that other tools load: streamed, in the order of the index, and whole or
absent.
"""

import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from plm_embed.errors import PlmEmbedError
from plm_embed.fingerprint import has_matrix
from plm_embed.io.progress import Meter, progress
from plm_embed.reading.exports import arrays, per_record, tables
from plm_embed.reading.exports.records import Part, Records, beside
from plm_embed.reading.master import Embeddings

Format = Literal[
    "parquet", "csv", "tsv", "npy", "zarr", "safetensors", "faiss", "uniprot-h5", "anndata", "pt",
    "pt-dict",
]  # fmt: skip


class _Exporter(NamedTuple):
    """How a format is written, what lies beside it, and whether it has a place for matrices."""

    write: Callable[[Records, Path, Meter], None]
    beside: Literal["ids", "names", ""] = ""
    matrices: bool = False


_EXPORTERS: dict[Format, _Exporter] = {
    "parquet": _Exporter(tables.parquet),
    "csv": _Exporter(tables.comma_separated),
    "tsv": _Exporter(tables.tab_separated),
    "npy": _Exporter(arrays.npy, "ids"),
    "zarr": _Exporter(arrays.zarr),
    "safetensors": _Exporter(arrays.safetensors, "ids"),
    "faiss": _Exporter(arrays.faiss, "ids"),
    "uniprot-h5": _Exporter(per_record.uniprot, "names", matrices=True),
    "anndata": _Exporter(tables.anndata, "names"),
    "pt": _Exporter(per_record.pt, "names", matrices=True),
    "pt-dict": _Exporter(per_record.pt_dict, "names", matrices=True),
}


def export(
    master: Path,
    to: Format,
    output: Path,
    representation: str = "emb",
    *,
    ids: Iterable[str] | None = None,
    where: Mapping[str, str] | None = None,
) -> tuple[int, list[Path]]:
    """Write one record after the other of a master to `output`, as the functions of the table above
    say; how many, and the files.

    ids, where: only these records, and only those whose columns of the index have these values.

    Beside an array OUTPUT.ids.tsv has the id and the cache_key of each row. Where an id cannot be a
    name, or records share it, OUTPUT.names.tsv tells which name stands for which id. PlmEmbedError
    when one of these files exists, when no record is chosen, or when the representation is not
    there or not of the kind that is needed; UnknownIdError for ids that are not there.
    """
    how = _EXPORTERS[to]
    files = [output, *([beside(output, how.beside)] if how.beside else [])]
    for path in files:
        if path.exists() or path.is_symlink():
            raise PlmEmbedError(
                f"{path}: exists", path=path, remedy="remove it, or choose another name"
            )
    if to == "pt" and representation != "emb":
        raise PlmEmbedError(
            f"{representation}: pt has all representations of a record, by layer",
            remedy="leave it out, or export pt-dict",
        )
    with Embeddings(master) as embeddings:
        name = embeddings.resolved(representation)
        if has_matrix(name) and not how.matrices:
            raise PlmEmbedError(
                f"{name} has a matrix per record, which {to} has no place for: export uniprot-h5 "
                "or pt"
            )
        embeddings.check_index()
        part = Part(None if ids is None else frozenset(ids), dict(where or {}))
        records = Records(embeddings, name, part)
        try:
            with progress("export", records.count, "records") as meter:
                how.write(records, output, meter)
        except BaseException as error:
            if isinstance(error, OSError):  # a write that fails does not always say where
                error.filename = error.filename or str(output)
            for path in files:  # one alone may be whole, and in the way of the next call
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
            raise
        return records.count, [path for path in files if path.exists()]
