"""What the Snakefile and its rules ask of the package: all of it can be imported from here, and
only from here.
"""

from plm_embed.errors import PlmEmbedError
from plm_embed.io.terminal import printable
from plm_embed.keys import bucket_names
from plm_embed.sites.slurm_executor import instead_of_plain
from plm_embed.startup import spare_collector
from plm_embed.workflow.by_model import by_model, weights_folder
from plm_embed.workflow.campaign import (
    bucket_files,
    check_inputs,
    check_reuse,
    known_settings,
    master_files,
    meaning_options,
    options,
    place_of,
    plan_line,
    proof_options,
    range_names,
    reading_options,
    recipe_options,
    scan_names,
    source_options,
    speed_resources,
    speed_words,
    submissions,
    workflow_commit,
)
from plm_embed.workflow.config import checked
from plm_embed.workflow.config_handover import (
    check_folders,
    check_version,
    freeze,
    frozen_file,
    hand_over,
    notes_file,
    quote_words,
)
from plm_embed.workflow.ending import end_unfinished, said_of_success
from plm_embed.workflow.forget import forget, inputs_changed, other_sequences, remove_scans
from plm_embed.workflow.repeated_keys import check_repeated_keys
from plm_embed.workflow.resources import (
    buckets_per_job,
    gather_minutes,
    host_memory_mb,
    input_bytes,
    input_size,
    job_memory_mb,
    job_minutes,
    reading_threads,
    records_minutes,
    reference_minutes,
    validate_memory_mb,
)
from plm_embed.workflow.retries import REASONS, by_cause, watch_failures
from plm_embed.workflow.run_note import (
    locked,
    note_end,
    note_start,
    refuse_beside_another,
    refuse_unwritable,
)
from plm_embed.workflow.site import Given, layer

__all__ = [
    "REASONS",
    "Given",
    "PlmEmbedError",
    "bucket_files",
    "bucket_names",
    "buckets_per_job",
    "by_cause",
    "by_model",
    "check_folders",
    "check_inputs",
    "check_repeated_keys",
    "check_reuse",
    "check_version",
    "checked",
    "end_unfinished",
    "forget",
    "freeze",
    "frozen_file",
    "gather_minutes",
    "hand_over",
    "host_memory_mb",
    "input_bytes",
    "input_size",
    "inputs_changed",
    "instead_of_plain",
    "job_memory_mb",
    "job_minutes",
    "known_settings",
    "layer",
    "locked",
    "master_files",
    "meaning_options",
    "note_end",
    "note_start",
    "notes_file",
    "options",
    "other_sequences",
    "place_of",
    "plan_line",
    "printable",
    "proof_options",
    "quote_words",
    "range_names",
    "reading_options",
    "reading_threads",
    "recipe_options",
    "records_minutes",
    "reference_minutes",
    "refuse_beside_another",
    "refuse_unwritable",
    "remove_scans",
    "said_of_success",
    "scan_names",
    "source_options",
    "spare_collector",
    "speed_resources",
    "speed_words",
    "submissions",
    "validate_memory_mb",
    "watch_failures",
    "weights_folder",
    "workflow_commit",
]
