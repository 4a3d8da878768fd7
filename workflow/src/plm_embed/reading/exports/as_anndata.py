"""Vectors and what is known of them as an AnnData, for readers and for the export."""

from typing import TYPE_CHECKING, Any

from plm_embed.errors import extra
from plm_embed.store.hdf5 import Array

if TYPE_CHECKING:
    import anndata


def make_anndata(vectors: Array, observations: Any) -> "anndata.AnnData":
    """AnnData of vectors (n, D) and a data frame of n lines, as h5ad and zarr can hold them. Where
    the names of its index are not unique they are made so, and a column has what they were.
    """
    with extra():
        import anndata
        import pandas as pd
    observations = uniquely_named(observations)
    for column in observations.columns:
        if observations[column].dtype == "str":
            observations[column] = _writable(observations[column])
    made = anndata.AnnData(X=vectors, obs=observations)
    # pandas keeps text in Arrow's arrays, for which AnnData 0.12.6 has no writer
    made.obs_names = pd.Index(made.obs_names.tolist(), dtype=object, name=made.obs_names.name)
    made.var_names = pd.Index(made.var_names.tolist(), dtype=object)
    return made


def uniquely_named(observations: Any) -> Any:
    """The data frame with unique names of its lines; where they are made so, a column has what they
    were.
    """
    with extra():
        import anndata
    observations, names = observations.copy(), observations.index
    if not names.is_unique:
        # AnnData would only warn, and what its own remedy makes it cannot write with pandas 3
        observations[names.name] = names.to_numpy()
        observations.index = anndata.utils.make_index_unique(names).rename(None)
    return observations


def _writable(texts: Any) -> Any:
    """Text as Python's, with categories where a value is repeated or missing, as AnnData would make
    them itself when it writes."""
    import pandas as pd

    codes, found = pd.factorize(texts.astype(object))
    if len(found) == len(texts):
        return texts.astype(object)
    return pd.Categorical.from_codes(codes, categories=pd.Index(found, dtype=object))
