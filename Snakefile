# plm-embed: sequences to embeddings by language models. What each rule does: workflow/rules; settings: config/README.md.
from snakemake.utils import min_version

min_version("9.27")


# a configuration file of the user's own stands alone: the demo's settings must not leak into it
if not workflow.overwrite_configfiles:

    configfile: "config/config.yaml"


include: "workflow/rules/common.smk"


localrules:
    all,


rule all:
    """The proven result of each model: master file, index, every record's fate, checksums, the report."""
    input:
        expand("<results>/{model}/gathered.json", model=MODELS),
        expand("<results>/{model}/checksums.sha256", model=MODELS),
        expand("<results>/{model}/report.html", model=MODELS),


include: "workflow/rules/weights.smk"
include: "workflow/rules/sequences.smk"
include: "workflow/rules/embed.smk"
include: "workflow/rules/gather.smk"
include: "workflow/rules/report.smk"


by_cause(workflow.rules, notes_file(workflow))


if workflow.is_main_process:
    for model in MODELS.values():
        print(printable(plan_line(model)), file=sys.stderr)
