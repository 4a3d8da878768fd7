# The recognized site is a profile under the user's: it sets what the user did not (profiles/README.md).
import sys

from snakemake.resources import Resource, Resources

from plm_embed.workflow import Given, PlmEmbedError, instead_of_plain, layer, locked

# What is set by profiles and options; jobs get it, and what is laid under it here, by the same options.
SETTINGS = workflow.resource_settings
# What is set for `embed` holds for each module's, below what is set for it under the name that it has there.
NAMES = list(dict.fromkeys(["embed", EMBED]))


def typed():
    """The options of this call with those of its profiles, and those of them that are not as they are by themselves;
    none when it is not a command line.

    Before rules are declared, Snakemake tells a Snakefile neither its executor nor the options of that: they are
    looked up where it keeps them, in the function that called it.
    """
    frame = sys._getframe()
    while frame and not (
        frame.f_globals.get("__name__") == "snakemake.cli" and "args" in frame.f_locals
    ):
        frame = frame.f_back
    if frame is None:
        return {}, []
    call, parser = vars(frame.f_locals["args"]), frame.f_locals["parser"]
    return call, [name for name, value in call.items() if value != parser.get_default(name)]


# Options with which Snakemake runs no job.
LOOKS = (
    "dryrun unlock touch lint summary detailed_summary archive containerize export_cwl dag rulegraph filegraph d3dag"
    " list_rules list_target_rules print_compilation list_changes list_input_changes list_params_changes list_untracked"
    " list_conda_envs cleanup_metadata cleanup_shadow conda_cleanup_envs conda_create_envs_only container_cleanup_images"
    " generate_unit_tests delete_all_output delete_temp_output"
).split()


def only_looks():
    """Whether this call of Snakemake runs no job."""
    call, _ = typed()
    reports = call.get("report") and not call.get("report_after_run")
    return reports or any(call.get(name) not in (None, False) for name in LOOKS)


def is_refused():
    """Whether Snakemake is going to refuse this call for the lock of another one."""
    call, _ = typed()
    return not call.get("nolock") and locked(config["results"])


def raw(resources):
    return {name: str(value.raw).strip("'\"") for name, value in (resources or {}).items()}


def lay_under():
    """Set the resources and threads that the recognized site gives and the user did not set himself."""
    call, chosen = typed()
    said = instead_of_plain(call.get("executor"), chosen)
    if said:
        print(said, file=sys.stderr)
    resources = [SETTINGS.overwrite_resources.get(name, {}) for name in NAMES]
    threads = raw(SETTINGS.overwrite_threads)
    options = {name: value for name, value in call.items() if isinstance(value, str)}
    default = raw(SETTINGS.default_resources)
    given = Given(
        executor=options.get("executor", ""),
        site=options.get("pbs_site") or config["site"] or default.get("site", ""),
        queue=options.get("pbs_queue", ""),
        account=options.get("pbs_account", ""),
        embed={name: value for own in resources for name, value in raw(own).items()},
        default=default,
        threads=next((threads[name] for name in NAMES[::-1] if name in threads), ""),
    )
    # where another workflow has yet to make the inputs, their size is not known
    here = buckets_per_job(config, *config["model"]) if ALONE else 1
    found = layer(given, config["speed"]["buckets_per_submission"], here)
    if found.line:
        print(found.line, file=sys.stderr)
    if found.missing and not only_looks():
        raise PlmEmbedError(found.missing)
    if found.missing:
        print(f"plm-embed: before you submit: {found.missing}", file=sys.stderr)
    if given.executor == "pbs":
        os.environ.update(SNAKEMAKE_PBS_SITE=found.site)
    below = Resources.parse(
        [f"{name}={value}" for name, value in found.embed.items()], allow_expressions=True
    )
    for own in resources:
        below.update(own)
    SETTINGS.overwrite_resources = {**SETTINGS.overwrite_resources, EMBED: below}
    if found.default:
        below = Resources.parse(
            [f"{name}={value}" for name, value in found.default.items()], allow_expressions=True
        )
        below.update(SETTINGS.default_resources or Resources.default("bare"))
        SETTINGS.default_resources = below
    own_threads = SETTINGS.overwrite_threads
    if "embed" in own_threads:
        own_threads = {EMBED: own_threads["embed"], **own_threads}
    elif found.threads:
        own_threads = {EMBED: Resource("_cores", found.threads), **own_threads}
    SETTINGS.overwrite_threads = own_threads
    # what rules of another workflow, declared before this one, have made of the settings as they were
    for name in ("overwrite_resources", "default_resources", "overwrite_threads"):
        vars(SETTINGS).pop(f"_parsed_{name}", None)
