import gc
import os
import re
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.path_modifier import PathModifier
from snakemake_interface_executor_plugins import utils
from snakemake_interface_executor_plugins.executors.base import AbstractExecutor
from snakemake_interface_executor_plugins.executors.real import RealExecutor

# Where this file lies. Rules that were fetched from a repository, or that a wheel brought, use the installed package.
HERE = workflow.current_basedir
ROOT = Path(HERE.join("../..").get_path_or_uri(secret_free=True))
SOURCES = ROOT / "workflow" / "src"
if SOURCES.is_dir():
    sys.path.insert(0, str(SOURCES))

gc.freeze()  # all of Snakemake, which the collector of garbage would look through while our own part loads: 0.07 s

from plm_embed.workflow import (
    PlmEmbedError,
    bucket_files,
    by_model,
    bucket_names,
    buckets_per_job,
    by_cause,
    check_folders,
    check_inputs,
    check_repeated_keys,
    check_reuse,
    check_version,
    checked,
    forget,
    freeze,
    frozen_file,
    gather_minutes,
    hand_over,
    host_memory_mb,
    input_bytes,
    input_size,
    job_memory_mb,
    job_minutes,
    master_files,
    notes_file,
    options,
    plan_line,
    printable,
    quote_words,
    reading_threads,
    records_minutes,
    reference_minutes,
    refuse_beside_another,
    spare_collector,
    submissions,
    validate_memory_mb,
    watch_failures,
    weights_folder,
    workflow_commit,
)

spare_collector()

# Every job, local or on another node, runs the package of this clone with the interpreter that runs Snakemake,
# whether or not its environment was activated. With --software-deployment-method conda the environment comes first.
FIRST = {
    "PATH": Path(sys.executable).parent,
    **({"PYTHONPATH": SOURCES} if SOURCES.is_dir() else {}),
}
for name, folder in FIRST.items():
    others = os.environ.get(name, os.defpath if name == "PATH" else "").split(os.pathsep)
    if others[0] != str(folder):  # once, however often the workflow is used as a module
        os.environ[name] = os.pathsep.join(filter(None, [str(folder), *others]))

# A module of another workflow has its own rules only, under names that the other one gives them.
ALONE = workflow.modifier.is_main_snakefile()


def own_name(rule):
    """The name of a rule in a workflow that uses it, if it does."""
    used = workflow.modifier.avail_rulename(rule) is not None
    return workflow.modifier.modify_rulename(rule) if used else rule


EMBED = own_name("embed")
# of rules that were fetched from a repository: their tag, branch or commit
COMMIT = getattr(HERE, "ref", None)


include: "site.smk"


try:
    if COMMIT:
        check_version(Path(workflow.source_path("../src/plm_embed/_version.py")).read_text())
    if workflow.is_main_process:
        check_repeated_keys([*workflow.overwrite_configfiles, *workflow.configfiles])
    config = checked(config, awaited=not ALONE)
    # A module's prefix goes before what is written and before nothing else. Some of these paths reach the rules as
    # parameters, so it is put here, once, and not by Snakemake.
    for name in ("results", "store"):
        if config[name]:
            config[name] = workflow.modifier.path_modifier.replace_prefix(
                f"{config[name]}/"
            ).rstrip("/")
    workflow.modifier.path_modifier = PathModifier(None, None, workflow)
    # named after the configuration as it is here; it is changed below
    FROZEN, NOTES = frozen_file(config), notes_file(config)
    if workflow.is_main_process:
        check_folders(FIRST.values())
        lay_under()
        quote_words(utils)
        frozen = freeze(config)
        if ALONE:
            check_inputs(config)
            hand_over(workflow, frozen)
        watch_failures(AbstractExecutor, RealExecutor)
    # the settings of each model; what differs between them is a function of wildcards in the rules
    MODELS = by_model(config)
    if workflow.is_main_process:
        looking = only_looks()
        if not looking:
            refuse_beside_another(Path(config["results"]))
        for settings in MODELS.values():
            check_reuse(settings)
            for line in forget(settings, looking or is_refused()):
                print(printable(line), file=sys.stderr)
except PlmEmbedError as error:
    raise WorkflowError(printable(str(error)))

config["speed"]["buckets_per_submission"] = int(SETTINGS.overwrite_resources[EMBED]["buckets"].raw)
asked = raw(SETTINGS.overwrite_resources[EMBED])
LONGEST_MINUTES = int(asked.get("longest_minutes", 10**6))
# A job that a scheduler runs has the GPUs that it asks for, by whatever name, or it fails. On this machine, `gpu: 1` of
# the rule means a GPU if there is one.
requests = {"gpu": "1", **asked}
if workflow.remote_exec and (
    "gpu" in requests.get("gres", "")
    or any(requests.get(name, "0") != "0" for name in ("gpu", "gpus", "nvidia_gpu", "request_gpus"))
):
    os.environ.update(PLM_EMBED_GPU_REQUIRED="1")
WORKERS = int(asked["gpu"]) if asked.get("gpu", "").isdecimal() else 1  # on each node
BUCKETS = bucket_names(config["buckets"])
SUBMISSIONS = submissions(BUCKETS, config["speed"]["buckets_per_submission"])
# rules that a user names together
TOGETHER = {"validate": ["reference", "validate"]}
if config["deduplicate"] == "by_input":
    TOGETHER["deduplicate"] = ["scan", "split", "collect"]
# A wildcard only where there are several: with one model, jobs are called what they are about.
MODEL = "{model}" if len(MODELS) > 1 else next(iter(MODELS))
VECTORS = f"{config['results']}/{MODEL}"


def of(wildcards):
    """The settings of a job's model."""
    return MODELS[wildcards.get("model", MODEL)]


for name in config["speed"]["local_rules"]:
    workflow.localrules(*map(own_name, TOGETHER.get(name, [name])))


pathvars:
    results=config["results"],
    sequences=f"{config['results']}/sequences",
    vectors=VECTORS,
    logs=f"{config['results']}/logs",
    benchmarks=f"{config['results']}/benchmarks",


wildcard_constraints:
    submission=r"[0-9]+",
    model="|".join(map(re.escape, MODELS)),
