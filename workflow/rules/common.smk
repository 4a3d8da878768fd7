import os
import re
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake_interface_executor_plugins import utils
from snakemake_interface_executor_plugins.executors.base import AbstractExecutor
from snakemake_interface_executor_plugins.executors.real import RealExecutor

ROOT = Path(workflow.basedir)
SOURCES = ROOT / "workflow" / "src"
sys.path.insert(0, str(SOURCES))

from plm_embed.workflow import (
    PlmEmbedError,
    bucket_files,
    by_model,
    bucket_names,
    by_cause,
    check_folders,
    check_reuse,
    checked,
    forget,
    freeze,
    gather_minutes,
    host_memory_mb,
    job_memory_mb,
    job_minutes,
    master_files,
    notes_file,
    options,
    plan_line,
    printable,
    quote_words,
    records_minutes,
    submissions,
    validate_minutes,
    watch_failures,
    weights_folder,
    workflow_commit,
)

# Every job, local or on another node, runs the package of this clone with the interpreter that runs Snakemake,
# whether or not its environment was activated. With --software-deployment-method conda the environment comes first.
os.environ.update(
    PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
    PYTHONPATH=os.pathsep.join(filter(None, [str(SOURCES), os.environ.get("PYTHONPATH")])),
)


include: "site.smk"


try:
    config.update(checked(config))
    if workflow.is_main_process:
        check_folders([SOURCES, Path(sys.executable).parent])
        lay_under()
        quote_words(utils)
        freeze(workflow, config)
        watch_failures(AbstractExecutor, RealExecutor)
    # the settings of each model; what differs between them is a function of wildcards in the rules
    MODELS = by_model(config)
    if workflow.is_main_process:
        for name, settings in MODELS.items():
            check_reuse(settings)
            vectors = Path(config["results"], name)
            forget(vectors / "gathered.json", vectors / "checksums.sha256")
except PlmEmbedError as error:
    raise WorkflowError(printable(str(error)))

config["speed"]["buckets_per_submission"] = int(
    SETTINGS.overwrite_resources["embed"]["buckets"].raw
)
LONGEST_MINUTES = int(raw(SETTINGS.overwrite_resources["embed"]).get("longest_minutes", 10**6))
BUCKETS = bucket_names(config["buckets"])
SUBMISSIONS = submissions(BUCKETS, config["speed"]["buckets_per_submission"])
BY_INPUT = (
    {"deduplicate": ["scan", "split", "collect"]} if config["deduplicate"] == "by_input" else {}
)
# A wildcard only where there are several: with one model, jobs are called what they are about.
MODEL = "{model}" if len(MODELS) > 1 else next(iter(MODELS))
VECTORS = f"{config['results']}/{MODEL}"


def of(wildcards):
    """The settings of a job's model."""
    return MODELS[wildcards.get("model", MODEL)]


for name in config["speed"]["local_rules"]:
    workflow.localrules(*BY_INPUT.get(name, [name]))


pathvars:
    results=config["results"],
    sequences=f"{config['results']}/sequences",
    vectors=VECTORS,
    logs=f"{config['results']}/logs",
    benchmarks=f"{config['results']}/benchmarks",


wildcard_constraints:
    submission=r"[0-9]+",
    model="|".join(map(re.escape, MODELS)),
