# The entry for calls from a clone; the workflow lies where Snakemake's catalog and snakedeploy look for it.
# Not `include:`, which would leave the workflow's first rule without its right to be the default target.
workflow.include("workflow/Snakefile", overwrite_default_target=True)
