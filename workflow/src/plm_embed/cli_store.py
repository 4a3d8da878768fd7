"""Sub-commands about what is stored already: compare, merge, adopt."""

import json
import sys
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


@click.command()
@click.argument("first", type=EXISTING)
@click.argument("second", type=EXISTING)
@click.option("--tolerance", default=0.0, type=click.FloatRange(0), help="Numbers that differ by no more are equal.")
@click.option("--json", "as_json", is_flag=True, help="Print everything that was found as JSON.")
def diff(*, first: Path, second: Path, tolerance: float, as_json: bool) -> None:
    """Compare two masters: the same keys? the same vectors? which differ, and by how much?

    Exit code 0: the same keys, and no number differs by more than --tolerance. 1: they differ.

    \b
    Example:
      plm-embed diff old/master_esm2_embeddings.h5 new/master_esm2_embeddings.h5 --tolerance 1e-3
    """
    from plm_embed.diff import compare, in_words

    found = compare(first, second, tolerance)
    click.echo(json.dumps(found.to_json(), indent=2) if as_json else in_words(found))
    if not found.equal:
        sys.exit(1)


COMMANDS = (compact, diff)
