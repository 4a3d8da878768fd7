"""A name that moved to `store`."""

from plm_embed.store.store import part_names

__all__ = ["part_names"]
