"""Vectors and what is known of them as an AnnData, for readers and for the export."""

from typing import TYPE_CHECKING, Any

from plm_embed.errors import extra
from plm_embed.store.hdf5 import Array

if TYPE_CHECKING:
    import anndata


def make_anndata(vectors: Array, observations: Any) -> "anndata.AnnData":
    """AnnData of vectors (n, D) and a data frame of n lines, whose text columns h5ad can hold."""
    with extra():
        import anndata
    texts = [column for column in observations.columns if observations[column].dtype == "str"]
    observations = observations.astype(dict.fromkeys(texts, object))
    observations.index = observations.index.astype(object)
    return anndata.AnnData(X=vectors, obs=observations)
