"""Plans of Snakemake for the shipped configuration."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from snakemake.api import SnakemakeApi
from snakemake.resources import Resources
from snakemake.settings.types import (
    ConfigSettings,
    DAGSettings,
    OutputSettings,
    Quietness,
    ResourceSettings,
)

ROOT = Path(__file__).parents[2]


class Plan:
    """Jobs that Snakemake plans, or runs with another executor, for the shipped configuration with
    four buckets and `changes`, and with what --set-resources sets for `embed`, to make
    `targets`, or all.
    """

    def __init__(
        self,
        changes: dict[str, Any] | None = None,
        executor: str = "dryrun",
        embed: Sequence[str] = (),
        targets: Sequence[str] = (),
    ) -> None:
        with SnakemakeApi(OutputSettings(quiet={Quietness.ALL})) as api:
            workflow = api.workflow(
                snakefile=ROOT / "workflow" / "Snakefile",
                workdir=Path.cwd(),
                config_settings=ConfigSettings(config={"buckets": 4} | (changes or {})),
                resource_settings=ResourceSettings(
                    cores=8,
                    overwrite_resources={"embed": Resources.parse(embed, allow_expressions=True)},
                ),
            )
            asked = DAGSettings(targets=set(targets), forceall=executor == "touch")
            workflow.dag(asked).execute_workflow(executor=executor)
            dag = workflow._workflow.dag
            self.jobs = list(dag.finished_jobs)  # a dry run "finishes" what would run
            self.total = Counter(job.rule.name for job in dag.jobs)
        self.runs = Counter(job.rule.name for job in self.jobs)

    def job(self, rule: str) -> Any:
        return next(job for job in self.jobs if job.rule.name == rule)
