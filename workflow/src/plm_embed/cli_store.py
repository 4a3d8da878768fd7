"""Sub-commands about what is stored already: compact."""

from pathlib import Path

import click

EXISTING = click.Path(exists=True, path_type=Path)


@click.command()
@click.argument("store", type=EXISTING)
@click.option("--part-mb", default=1000, type=click.IntRange(1), help="Size that merged parts should have.")
@click.option("--keep-hours", default=24.0, type=click.FloatRange(0), help="How long replaced parts stay for readers.")
def compact(*, store: Path, part_mb: int, keep_hours: float) -> None:
    """Merge the small parts of a store into large ones. Safe while others read it and jobs publish.

    Replaced parts stay for --keep-hours, so that whoever reads them can end; the first run after that removes them.
    Until then the store takes twice the space of what was merged. Nothing else has to be done: completion records stay
    true. Only a master made with `merge: virtual` reads the parts themselves: gather it again before they are removed.

    \b
    Example:
      plm-embed compact results/esm2_t33_650M_UR50D/store
    """
    from plm_embed.compact import compact as run

    done = run(store, 1_000_000 * part_mb, keep_hours)
    click.echo(
        f"{done.merged:,} parts merged into {done.published:,}; {done.removed:,} replaced parts removed "
        f"({done.freed / 1e6:,.1f} MB)"
    )


COMMANDS = (compact,)
