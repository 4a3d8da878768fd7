import pytest
import torch
from torch import Tensor

from plm_embed.kernels import elementwise


def turned(qkv: Tensor, angle: Tensor) -> Tensor:
    """q and k as complex numbers, the halves of each head their parts, times e^(i angle)."""
    exact = qkv.clone()
    halves = qkv[:, :2].float().chunk(2, dim=-1)
    rotated = torch.complex(*halves) * torch.polar(torch.ones_like(angle), angle)[:, None, None]
    exact[:, :2] = torch.cat((rotated.real, rotated.imag), -1).to(qkv.dtype)
    return exact


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 0.02)])
@pytest.mark.parametrize("block", [1, 1000, 1 << 16])
def test_rotation_by_blocks_of_rows(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, bound: float, block: int
) -> None:
    random = torch.Generator().manual_seed(4)
    room = torch.randn((50, 3, 4, 24), generator=random).to(dtype)
    angle = 6 * torch.rand((37, 12), generator=random)
    before, found = room.clone(), room.clone()
    elementwise.PLAIN.query_key(found[5:42], None, (angle.cos(), angle.sin()))
    monkeypatch.setattr(elementwise, "ROTATED", block)
    elementwise.PLAIN.query_key(room[5:42], None, (angle.cos(), angle.sin()))
    assert torch.equal(room, found)
    assert (room[5:42].float() - turned(before[5:42], angle).float()).abs().max() < bound
    assert torch.equal(room[:, 2], before[:, 2])
    assert torch.equal(room[:5], before[:5])
    assert torch.equal(room[42:], before[42:])
