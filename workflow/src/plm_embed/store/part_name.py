"""Names that moved to `store`."""

from plm_embed.store.store import part_names

__all__ = ["names_bytes", "part_names"]


def names_bytes(name: str, sha256: str) -> bool:
    return name.endswith(f"-{sha256[:16]}.h5")
