# What a run says on the screen at its start and its end, and its note in the results folder, <results>/run.json.
import shlex

from plm_embed.workflow import (
    REASONS,
    end_unfinished,
    inputs_changed,
    known_settings,
    note_end,
    note_start,
    other_sequences,
    refuse_unwritable,
    remove_scans,
    said_of_success,
)

RESULTS = Path(config["results"])


def tell(*lines):
    print("", *map(printable, lines), sep="\n", file=sys.stderr)


def spare_last_second():
    """On this machine the cores limit how many jobs begin. Snakemake also looks every second whether its own limit, 100
    a second, lets another one begin, and would wait for the last look before it ends.
    """
    limit = getattr(workflow.scheduler, "job_rate_limiter", None)
    if workflow.local_exec and limit and (limit.max_jobs, limit.timespan) == (100, 1):
        workflow.scheduler.job_rate_limiter = None


onstart:
    try:
        refuse_unwritable(RESULTS)
        note_start(RESULTS, list(MODELS))
    except PlmEmbedError as error:
        raise WorkflowError(printable(str(error)))
    spare_last_second()
    tell(f"plm-embed: to follow this run: plm-embed watch {shlex.quote(str(RESULTS))}")


onsuccess:
    first = next(iter(MODELS.values()))
    if other := other_sequences(first):
        said = f"{RESULTS}/sequences has {other} now: a job of an earlier call has written them"
        note_end(RESULTS, "failed", said)
        raise WorkflowError(f"{said}\nrun the same command again: what is finished stays")
    if not workflow.storage_settings.notemp:
        remove_scans(first)
    note_end(RESULTS, "complete")
    known = {name: known_settings(settings) for name, settings in MODELS.items()}
    other = inputs_changed(RESULTS)
    tell(*said_of_success(RESULTS, list(MODELS), known, inputs_changed=other))


onerror:
    stores = {name: Path(settings["store"]) for name, settings in MODELS.items()}
    tell(*end_unfinished(RESULTS, stores, map(Path, log), REASONS))
