"""What a forward pass launches: the engine run over tensors without numbers, its kernels written
down; and the same on this machine's CPU, beside a measured run.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import peers
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode

from plm_embed.kernels import attention, elementwise, triton_elementwise
from plm_embed.kernels.devices import device_name
from plm_embed.kernels.linear import Linear
from plm_embed.kernels.packed import Packed
from plm_embed.kernels.packed import pack as packed
from plm_embed.models.checkpoints import tensor_shapes
from plm_embed.models.family import ALiBi, T5RelativeBias
from plm_embed.models.packed_batch import ROWS, pack
from plm_embed.models.registry import Model
from plm_embed.planning.gpu_time import Kernel, Rates

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
PRODUCTS = (F.linear, torch.mm, torch.addmm, torch._addmm_activation)


@dataclass(frozen=True)
class Spent:
    """A kernel that was launched, with a name to sum it by."""

    name: str
    kernel: Kernel


class Empty(Mapping[str, Tensor]):
    """A model's tensors without numbers."""

    def __init__(self, model: Model) -> None:
        self._shapes = tensor_shapes(model)

    def __getitem__(self, name: str) -> Tensor:
        return torch.empty(self._shapes[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


class Recorder(TorchFunctionMode):
    """Writes down the products, and the bytes of every other operation that is no view."""

    def __init__(self) -> None:
        self.spent: list[Spent] = []

    def note(self, name: str, *tensors: Tensor, flops: float = 0, **more: Any) -> None:
        """A kernel that reads or writes each of these tensors once."""
        moved = sum(each.numel() * each.element_size() for each in tensors)
        kind = name if "attention" in name or "product" in name else "pass"
        self.spent.append(Spent(name, Kernel(name, kind, flops, moved, **more)))  # type: ignore[arg-type]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in PRODUCTS:
            return self._product(func, args, kwargs)
        if func in (torch.Tensor.copy_, torch.Tensor.to, torch.Tensor.float, torch.Tensor.cpu):
            return self._copy(func, args, kwargs)
        if func is torch.Tensor.__getitem__ and args[0].is_cuda:
            return _part(*args)
        result = func(*args, **kwargs)
        read = [each for each in args if isinstance(each, Tensor)]
        room = func.__name__.startswith("new_")  # memory that nothing is written to
        if isinstance(result, Tensor) and read and result.is_cuda and not room:
            places = {each.untyped_storage()._cdata for each in read}
            in_place = func.__name__.rstrip("_") != func.__name__ and func.__name__[:3] != "__g"
            if result.untyped_storage()._cdata not in places or in_place:
                if func is F.embedding:
                    read = [read[0], result]  # as many of its rows as it writes
                self.note("other passes", *read, result)
        return result

    def _product(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        x, weight = args[1:3] if func in (torch.addmm, torch._addmm_activation) else args[:2]
        columns, rows = weight.shape if func is not F.linear else weight.t().shape
        out = kwargs.get("out")
        out = x.new_empty((len(x), rows)) if out is None else out
        added = [out] if args[0] is out else []  # a sum reads what it writes
        self.note(
            "product", x, weight, out, *added, flops=2.0 * len(x) * columns * rows, depth=columns
        )
        return out

    def _copy(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        """Without a device, torch can do it in Python only."""
        if func is torch.Tensor.copy_:
            self.note("other passes", *args[:2])
            return args[0]
        wanted = [*args[1:], *kwargs.values()]
        device = next((each for each in wanted if isinstance(each, torch.device)), args[0].device)
        kind = next((each for each in wanted if isinstance(each, torch.dtype)), args[0].dtype)
        if func is torch.Tensor.float:
            kind = torch.float32
        if func is torch.Tensor.cpu:
            device = CPU
        if (device, kind) == (args[0].device, args[0].dtype):
            return args[0]
        made = torch.empty(args[0].shape, dtype=kind, device=device)
        if args[0].is_cuda and made.is_cuda:
            self.note("other passes", args[0], made)
        return made


def _part(x: Tensor, index: Any) -> Tensor:
    """x[index] of slices and numbers, which without a device torch cannot do in Python."""
    at = 0
    for each in index if isinstance(index, tuple) else (index,):
        if isinstance(each, slice):
            stop = x.shape[at] if each.stop is None else each.stop
            x = torch.ops.aten.slice.Tensor(x, at, each.start or 0, stop)
            at += 1
        else:
            x = torch.ops.aten.select.int(x, at, each)
    return x


@contextmanager
def written_down(model: Model) -> Iterator[Recorder]:
    """A place without numbers, where the engine believes in a GPU."""
    by_distance = isinstance(model.family.encoder.positions, T5RelativeBias | ALiBi)
    name = "biased attention" if by_distance else "attention"
    with ExitStack() as stack, FakeTensorMode(), Recorder() as recorder:

        def attend(qkv: Tensor, where: Packed) -> Tensor:
            out = qkv.new_empty((len(qkv), model.inner))
            flops = 4.0 * model.inner * sum(length**2 for length in where.lengths)
            mean = flops / 4 / model.inner / sum(where.lengths)
            recorder.note(name, qkv, out, flops=flops, length=mean)
            return out

        def norm(x: Tensor, *_: Any, dtype: torch.dtype, keep: bool, **__: Any) -> Tensor:
            out = x.new_empty(x.shape, dtype=dtype)
            recorder.note("norms", *(x,) * (1 + keep), out)
            return out

        def query_key(qkv: Tensor, _: Any, rotary: Any, **__: Any) -> None:
            parts = qkv[:, :2]
            recorder.note("norm and angles of q and k", parts, parts, *(rotary or ()))

        def activate(x: Tensor, _: str, by: Tensor | None = None) -> Tensor:
            recorder.note("activation", x, x, *(() if by is None else (by,)))
            return x

        for function in (norm, query_key, activate):
            stack.enter_context(patch.object(triton_elementwise, function.__name__, function))
        kernel, fused = attention.Kernel("", name, attend), elementwise._fused()
        stack.enter_context(patch.object(attention, "choose", lambda *_: kernel))
        stack.enter_context(patch.object(elementwise, "choose", lambda *_: fused))
        yield recorder


def forward(model: Model, length: int, tokens: int) -> list[Spent]:
    """Kernels of a pass over `tokens` tokens in sequences of `length`, in bfloat16 on CUDA."""
    with written_down(model) as recorder:
        engine = peers.engine(model, Empty(model), CUDA, "bfloat16")
        engine._bias_by_distance = lambda _: None  # type: ignore[attr-defined,method-assign]
        pieces = [np.zeros(length, np.uint8)] * (tokens // length)
        batch = pack(pieces, [(0, length)] * len(pieces), ROWS["cuda"], 0, pinned=False)
        recorder.spent.clear()
        engine.forward(batch, [model.layers])
        return recorder.spent


def on_this_cpu(model: Model, runs: int, length: int = 350, count: int = 5) -> dict[str, Any]:
    """Tokens per second of one thread in float32, reckoned from the rates of its parts and
    measured, in turns; medians.
    """
    torch.set_num_threads(1)
    engine = peers.engine(model, peers.RandomTensors(model, CPU), CPU, "float32")
    batch = engine.prepare(
        ["".join(np.random.default_rng(1).choice(list(peers.RESIDUES), length - 2))] * count
    )
    qkv = torch.randn(count * length, 3, model.heads, model.inner // model.heads)
    where = packed((length,) * count, CPU)
    x = torch.randn(ROWS["cpu"], model.hidden)
    other = torch.empty_like(x)
    linears = {
        (columns, rows): Linear(torch.randn(rows, columns), torch.randn(rows))
        for columns, rows in {
            (model.dim, 3 * model.inner), (model.inner, model.dim),
            (model.dim, model.hidden), (model.hidden, model.dim),
        }
    }  # fmt: skip
    inputs = {columns: torch.randn(ROWS["cpu"], columns) for columns, _ in linears}

    def timed(call: Callable[[], Any], times: int) -> float:
        call()
        began = time.perf_counter()
        for _ in range(times):
            call()
        return (time.perf_counter() - began) / times

    def products() -> None:
        for (columns, _), linear in linears.items():
            linear(inputs[columns])

    found: dict[str, list[float]] = {"reckoned": [], "measured": []}
    tokens = len(batch.tokens)
    with torch.inference_mode():
        flops = sum(2 * ROWS["cpu"] * columns * rows for columns, rows in linears)
        mixing = 4.0 * model.inner * count * length**2
        for _ in range(runs):
            attending = mixing / timed(lambda: engine.attention(qkv, where), 2)
            rates = Rates(
                product=flops / timed(products, 3),
                attention=attending,
                biased=attending,
                memory=2 * x.numel() * 4 / timed(lambda: other.copy_(x), 20),
                depth=0,
                keys=0,
            )
            layer = _of_a_cpu_layer(model, length)
            padded = [tokens, count * length]  # attention leaves out what fills the last slice
            seconds = model.layers * sum(
                rates.seconds(each) * padded[each.kind == "attention"] for each in layer
            )
            found["reckoned"].append(count * length / seconds)
            took = timed(lambda: engine.forward(batch, [model.layers]), 1)
            found["measured"].append(count * length / took)
    ratios = [a / b for a, b in zip(found["reckoned"], found["measured"], strict=True)]
    return {
        "machine": device_name(CPU),
        "model": model.name,
        "layers": model.layers,
        "runs": runs,
        "tokens_per_second": {
            name: round(statistics.median(each), 1) for name, each in found.items()
        },
        "reckoned_over_measured": round(statistics.median(ratios), 3),
        "all_ratios": [round(each, 3) for each in ratios],
    }


def _of_a_cpu_layer(model: Model, length: int) -> list[Kernel]:
    """Of ESM-2 in float32, by torch's own operations: sums, norms and rotary angles one by one."""
    dim, inner, hidden = model.dim, model.inner, model.hidden
    shapes = ((dim, 3 * inner), (inner, dim), (dim, hidden), (hidden, dim))
    products = [Kernel("", "product", 2 * a * b, 0, depth=a) for a, b in shapes]
    # per norm: x += term, norm, each reads and writes; GELU is in the product; rotary: 4 products,
    # 2 sums
    passes = 4 * (2 * (3 + 2) * dim + (4 * 2 + 2 * 3) * inner)
    mixing = Kernel("", "attention", 4.0 * length * inner, 0, length=length)
    return [*products, mixing, Kernel("", "pass", 0, passes)]
