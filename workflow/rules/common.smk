import os
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.resources import Resource, Resources
from snakemake_interface_executor_plugins import utils
from snakemake_interface_executor_plugins.executors.base import AbstractExecutor
from snakemake_interface_executor_plugins.executors.real import RealExecutor

ROOT = Path(workflow.basedir)
SOURCES = ROOT / "workflow" / "src"
sys.path.insert(0, str(SOURCES))

from plm_embed.buckets import bucket_names
from plm_embed.config import (
    bucket_files,
    check_reuse,
    checked,
    options,
    plan_line,
    submissions,
    workflow_commit,
)
from plm_embed.errors import UserError
from plm_embed.gathered import forget
from plm_embed.handover import check_folders, freeze, notes_file, quote_words
from plm_embed.layer import Given, layer
from plm_embed.resources import (
    gather_minutes,
    host_memory_mb,
    job_memory_mb,
    job_minutes,
    records_minutes,
    validate_minutes,
)
from plm_embed.retries import by_cause, watch_failures
from plm_embed.slurm_plugin import end_with_step, mend
from plm_embed.terminal import printable

# Every job, local or on another node, runs the package of this clone with the interpreter that runs Snakemake,
# whether or not its environment was activated. With --software-deployment-method conda the environment comes first.
os.environ.update(
    PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
    PYTHONPATH=os.pathsep.join(filter(None, [str(SOURCES), os.environ.get("PYTHONPATH")])),
)

# What is set by profiles and options; jobs get it, and what is laid under it here, by the same options.
SETTINGS = workflow.resource_settings


def typed():
    """The options of this call with those of its profiles; none when it is not a command line.

    Before rules are declared, Snakemake tells a Snakefile neither its executor nor the options of that: they are
    looked up where it keeps them, in the function that called it.
    """
    frame = sys._getframe()
    while frame and not (frame.f_globals.get("__name__") == "snakemake.cli" and "args" in frame.f_locals):
        frame = frame.f_back
    return vars(frame.f_locals["args"]) if frame else {}


def raw(resources):
    return {name: str(value.raw).strip("'\"") for name, value in (resources or {}).items()}


def lay_under():
    """Set the resources and threads that the recognised site gives and the user did not set himself."""
    call = typed()
    options = {name: value for name, value in call.items() if isinstance(value, str)}
    given = Given(
        executor=options.get("executor", ""),
        site=options.get("pbs_site") or config["site"],
        queue=options.get("pbs_queue", ""),
        account=options.get("pbs_account", ""),
        embed=raw(SETTINGS.overwrite_resources.get("embed")),
        default=raw(SETTINGS.default_resources),
        threads=raw(SETTINGS.overwrite_threads).get("embed", ""),
    )
    found = layer(given, config["speed"]["buckets_per_submission"])
    if found.line:
        print(found.line, file=sys.stderr)
    if found.missing and not any(call.get(name) for name in ("dryrun", "unlock", "touch", "lint", "report", "summary")):
        raise UserError(found.missing)
    if found.missing:
        print(f"plm-embed: before you submit: {found.missing}", file=sys.stderr)
    if given.executor == "pbs":
        os.environ.update(SNAKEMAKE_PBS_SITE=found.site)
    below = Resources.parse([f"{name}={value}" for name, value in found.embed.items()], allow_expressions=True)
    below.update(SETTINGS.overwrite_resources.get("embed", {}))
    SETTINGS.overwrite_resources = {**SETTINGS.overwrite_resources, "embed": below}
    if found.default:
        below = Resources.parse([f"{name}={value}" for name, value in found.default.items()], allow_expressions=True)
        below.update(SETTINGS.default_resources or Resources.default("bare"))
        SETTINGS.default_resources = below
    if found.threads:
        threads = {"embed": Resource("_cores", found.threads)}
        SETTINGS.overwrite_threads = {**threads, **SETTINGS.overwrite_threads}


try:
    config.update(checked(config, ROOT / "workflow" / "schemas" / "config.schema.yaml"))
    if workflow.is_main_process:
        check_folders([SOURCES, Path(sys.executable).parent])
        check_reuse(config)
        vectors = Path(config["results"], config["model"])
        forget(vectors / "gathered.json", vectors / "checksums.sha256")
        lay_under()
        quote_words(utils)
        freeze(workflow, config)
        watch_failures(AbstractExecutor, RealExecutor)
        mend(*map(sys.modules.get, ["snakemake_executor_plugin_slurm", "snakemake_executor_plugin_slurm_jobstep"]))
    else:
        end_with_step()
except UserError as error:
    raise WorkflowError(printable(str(error)))

config["speed"]["buckets_per_submission"] = int(SETTINGS.overwrite_resources["embed"]["buckets"].raw)
LONGEST_MINUTES = int(raw(SETTINGS.overwrite_resources["embed"]).get("longest_minutes", 10**6))
BUCKETS = bucket_names(config["buckets"])
SUBMISSIONS = submissions(BUCKETS, config["speed"]["buckets_per_submission"])
BY_INPUT = {"deduplicate": ["scan", "split", "collect"]} if config["deduplicate"] == "by_input" else {}
WEIGHTS = f"{config['weights_folder']}/{config['model']}"
for name in config["speed"]["local_rules"]:
    workflow.localrules(*BY_INPUT.get(name, [name]))


pathvars:
    results=config["results"],
    sequences=f"{config['results']}/sequences",
    vectors=f"{config['results']}/{config['model']}",
    logs=f"{config['results']}/logs",
    benchmarks=f"{config['results']}/benchmarks",


wildcard_constraints:
    submission=r"[0-9]+",
