"""The names that the rules import from the package, all from here."""

from plm_embed.keys import bucket_names
from plm_embed.workflow.checks import notices, refusals
from plm_embed.workflow.config import (
    SCHEMA,
    input_paths,
    models_of,
    reading_options,
    recipe_options,
    source_of,
)
from plm_embed.workflow.resources import asks_for_gpu, misspelt, worker_mb
from plm_embed.workflow.run_note import note_end, note_start

__all__ = [
    "SCHEMA",
    "asks_for_gpu",
    "bucket_names",
    "input_paths",
    "misspelt",
    "models_of",
    "note_end",
    "note_start",
    "notices",
    "reading_options",
    "recipe_options",
    "refusals",
    "source_of",
    "worker_mb",
]
