"""Names in profiles that are nearly those of rules or resources."""

from snakemake.settings.types import ResourceSettings

from plm_embed.io.files import read_shipped
from plm_embed.workflow.call import CLONE
from plm_embed.workflow.resources import misspelt


def test_what_is_nearly_a_rule_or_a_resource_is_named() -> None:
    settings = ResourceSettings(
        overwrite_resources={"embedd": {"gpu": 1}, "embed": {"slurm_partion": "x", "mine": 1}},
        overwrite_threads={"gather": 4, "embed": 2},
        default_resources={"runtme": 5},
    )
    assert list(misspelt(settings)) == [
        "profile: set-resources: embedd is not known; did you mean embed?",
        "profile: set-threads: gather is not known; did you mean gather_esm2?",
        "profile: default-resources: runtme is not known; did you mean runtime?",
        "profile: set-resources: embed: slurm_partion is not known; did you mean slurm_partition?",
    ]


def test_shipped_profiles_have_no_such_name() -> None:
    for path in CLONE.glob("profiles/*/profile.yaml"):
        content = read_shipped(path)
        settings = ResourceSettings(
            overwrite_resources=content.get("set-resources", {}),
            default_resources=content.get("default-resources"),
        )
        assert list(misspelt(settings)) == [], path
