# The recognized site is a profile under the user's: it sets what the user did not (profiles/README.md).
import sys

from snakemake.resources import Resource, Resources

from plm_embed.workflow import Given, PlmEmbedError, instead_of_plain, layer

# What is set by profiles and options; jobs get it, and what is laid under it here, by the same options.
SETTINGS = workflow.resource_settings


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


def raw(resources):
    return {name: str(value.raw).strip("'\"") for name, value in (resources or {}).items()}


def lay_under():
    """Set the resources and threads that the recognized site gives and the user did not set himself."""
    call, chosen = typed()
    said = instead_of_plain(call.get("executor"), chosen)
    if said:
        print(said, file=sys.stderr)
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
    if found.missing and not any(
        call.get(name) for name in ("dryrun", "unlock", "touch", "lint", "report", "summary")
    ):
        raise PlmEmbedError(found.missing)
    if found.missing:
        print(f"plm-embed: before you submit: {found.missing}", file=sys.stderr)
    if given.executor == "pbs":
        os.environ.update(SNAKEMAKE_PBS_SITE=found.site)
    below = Resources.parse(
        [f"{name}={value}" for name, value in found.embed.items()], allow_expressions=True
    )
    below.update(SETTINGS.overwrite_resources.get("embed", {}))
    SETTINGS.overwrite_resources = {**SETTINGS.overwrite_resources, "embed": below}
    if found.default:
        below = Resources.parse(
            [f"{name}={value}" for name, value in found.default.items()], allow_expressions=True
        )
        below.update(SETTINGS.default_resources or Resources.default("bare"))
        SETTINGS.default_resources = below
    if found.threads:
        threads = {"embed": Resource("_cores", found.threads)}
        SETTINGS.overwrite_threads = {**threads, **SETTINGS.overwrite_threads}
