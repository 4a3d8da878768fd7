"""Places of packed sequences, and the positions that attention knows."""

from dataclasses import dataclass

from torch import Tensor

Rotary = tuple[Tensor, Tensor]
"""Cosines and sines of the rotary angles, (T, d / 2) fp32."""


@dataclass(frozen=True)
class Packed:
    """Places of the sequences in the rows: `lengths`, and on the device `boundaries` (n + 1,)
    int32, 0 first.
    """

    lengths: tuple[int, ...]
    boundaries: Tensor
    distances: "Distances | None" = None
    rotary: Rotary | None = None
    """Angles for kernels that rotate queries and keys themselves."""


@dataclass(frozen=True)
class Distances:
    """Biases that are added to scores by the distance of key and query, alike for all sequences.

    table: (H, 2 M - 1) fp32, from distance -(M - 1) (key - query) on, for sequences of at most M.
    scale: what the scores are multiplied by before.
    """

    table: Tensor
    scale: float

    def windows(self, length: int) -> Tensor:
        """(H, L, L), a view: row w has the biases of query L - 1 - w.

        As each row is the one before moved by one, the queries in reverse need no other memory than
        the table.
        """
        middle = self.table.shape[1] // 2
        return self.table[:, middle - length + 1 : middle + length].unfold(1, length, 1)
