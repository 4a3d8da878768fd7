# plm-embed: protein sequences to ESM-2 embeddings. What each rule does: workflow/rules; settings: config/README.md.
from snakemake.utils import min_version

min_version("9.27")


# a configuration file of the user's own stands alone: the demo's settings must not leak into it
if not workflow.overwrite_configfiles:

    configfile: "config/config.yaml"


include: "workflow/rules/common.smk"


localrules:
    all,


rule all:
    """The proven result: master file, index, every record's fate, checksums, the report."""
    input:
        "<vectors>/gathered.json",
        "<vectors>/checksums.sha256",
        "<results>/report.html",


include: "workflow/rules/weights.smk"
include: "workflow/rules/sequences.smk"
include: "workflow/rules/embed.smk"
include: "workflow/rules/gather.smk"
include: "workflow/rules/report.smk"


by_cause(workflow.rules, notes_file(workflow))


if workflow.is_main_process:
    print(printable(plan_line(config)), file=sys.stderr)
