import json
import os
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.utils import validate

# Jobs run the package of this clone with the interpreter that runs Snakemake, whether or not its environment is
# activated, and import nothing from the user's folder. Rules from a repository use the installed package.
SOURCES = Path(workflow.current_basedir.join("../src").get_path_or_uri(secret_free=True))
if SOURCES.is_dir():
    sys.path.insert(0, str(SOURCES))
    folders = [str(SOURCES), *filter(None, os.getenv("PYTHONPATH", "").split(os.pathsep))]
    os.environ.update(PYTHONPATH=os.pathsep.join(dict.fromkeys(folders)))
PATH = os.getenv("PATH", os.defpath)
os.environ.setdefault("PLM_EMBED_PATH", PATH)  # messages call commands by it
os.environ.update(PATH=f"{Path(sys.executable).parent}:{PATH}", PYTHONSAFEPATH="1")

from plm_embed.keys import bucket_names
from plm_embed.workflow import checks, run_note
from plm_embed.workflow.config import (
    SCHEMA,
    input_paths,
    models_of,
    reading_options,
    source_of,
    vector_settings,
)
from plm_embed.workflow.resources import asks_for_gpu, worker_mb

ALONE = workflow.modifier.is_main_snakefile()  # else a module, whose inputs other rules may make
changes = workflow.config_settings.overwrite_config
if refused := list(checks.refusals(config, changes, workflow.storage_settings, ALONE)):
    raise WorkflowError("\n".join(refused))

validate(config, SCHEMA)

if workflow.is_main_process:
    for line in checks.notices(config, workflow.resource_settings):
        print(f"plm-embed: {line}", file=sys.stderr)

MODELS = models_of(config)
FAMILIES = {model.family.name: model.family for model in MODELS.values()}
BUCKETS = bucket_names(config["buckets"])


pathvars:
    results=config["results"],
    logs=f"{config['results']}/logs",
    benchmarks=f"{config['results']}/benchmarks",


wildcard_constraints:
    model="|".join(MODELS),
    bucket=r"\d+",


if config["container"]:

    container: config["container"]


def products():
    """Return the files that a campaign is for, and those between that a step takes with it when it fails.

    Of a missing file between steps that nobody asks for, Snakemake would say nothing, and old products would stay.
    """
    files = ["records.parquet", "validation.json", "checksums.sha256", "report.html", "skipped.tsv"]
    files += ["config.yaml", "ro-crate-metadata.json", "weights.json"]
    files += [f"embedded/{bucket}.json" for bucket in BUCKETS]
    tables = [master(name, end) for name in MODELS for end in ("h5", "parquet")]
    own = [f"<results>/{name}/{file}" for name in MODELS for file in files]
    return [*tables, *own, "<results>/sequences/summary.json"]


def master(model, end):
    """Return the path of a model's master (h5) or of its index (parquet)."""
    return f"<results>/{model}/{MODELS[model].family.master}.{end}"


def store(wildcards, output):
    """Return the store of a model. It is no output, which Snakemake would delete before every attempt."""
    folder = next(path for path in Path(output[0]).parents if path.name == wildcards.model)
    return config["store"] or f"{folder}/store"


def weights_of(wildcards):
    """Return the source of a model's weights, if the configuration names one."""
    return list(filter(None, [source_of(config, MODELS[wildcards.model])]))


def gpu_required(wildcards, input, resources):
    """Return the option by which a scheduler's job fails without the GPU that it asked for.

    On this machine `gpu: 1` of the rule means a GPU if there is one.
    """
    return ["--gpu-required"] * (asks_for_gpu(resources) and workflow.remote_exec)
