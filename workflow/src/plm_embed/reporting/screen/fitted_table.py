"""A table that leaves out columns, the least important first, until it fits the terminal."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

_GAP = 2
"""Blanks between columns."""


@dataclass
class FittedTable:
    """Rows of one line each. The first column is aligned left, the others right.

    columns: their titles; expendable: those that may be left out, the first one first. Columns
    without any content are left out everywhere.
    """

    columns: Sequence[str]
    expendable: Sequence[str]
    rows: list[tuple[Sequence[str | Text], str]] = field(default_factory=list)

    def add(self, cells: Sequence[str | Text], style: str = "") -> None:
        """A row: a cell for every column."""
        self.rows.append((cells, style))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = {
            number: max(cell_len(str(cells[number])) for cells, _ in self.rows)
            for number in range(len(self.columns))
        }
        shown = [number for number, width in widths.items() if width]
        wide = {number: max(widths[number], cell_len(self.columns[number])) for number in shown}
        for title in self.expendable:
            if sum(wide[number] for number in shown) + _GAP * (len(shown) - 1) <= options.max_width:
                break
            shown = [number for number in shown if self.columns[number] != title]
        yield self._table(shown)

    def _table(self, shown: Sequence[int]) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
        for number in shown:
            title = self.columns[number]
            table.add_column(title, justify="right" if number else "left", no_wrap=True)
        for cells, style in self.rows:
            table.add_row(*(cells[number] for number in shown), style=style)
        return table
