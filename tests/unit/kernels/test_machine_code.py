"""The machine code of Triton's kernels for GPUs that are not here."""

import os
import platform
import subprocess
import sys

import pytest

COMPILE = """
import re, subprocess, tempfile
from pathlib import Path
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from plm_embed.kernels import triton_attention, triton_elementwise as fused

assembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
WIDE = {"f32": 4, "b32": 4, "b16": 2, "b64": 8}

def compile(kernel, types, constants, warps):
    # torch's tensors and their slices begin at multiples of 16 bytes, and have multiples of 16
    # numbers, which Triton sees at a launch
    names, by_16 = kernel.arg_names, [["tt.divisibility", 16]]
    whole = [name for name in types if name.endswith("_ptr") or name == "count"]
    aligned = {(names.index(name),): by_16 for name in whole}
    signature = {name: types.get(name, "constexpr") for name in names}
    fixed = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, fixed, aligned)
    target = GPUTarget("cuda", capability, 32)
    made = triton.compile(source, target=target, options={"num_warps": warps})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(made.asm["ptx"])
        chip = f"sm_{capability}" + ("a" if capability >= 90 else "")
        command = [assembler, "-v", f"--gpu-name={chip}", path, "-o", "/dev/null"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spills = re.findall(r"(\\d+) bytes spill", said)
    assert spills and not any(map(int, spills)), said
    return made, said

def check(kernel, types, constants, warps):
    made, said = compile(kernel, types, constants, warps)
    registers = int(re.search(r"Used (\\d+) registers", said)[1])
    # of 65,536 for 2,048 threads: with 64 of each thread half of them are at work, which is enough
    # to keep the memory busy
    assert registers <= 64, (kernel.__name__, constants, registers)
    moved = re.findall(r"(?:ld|st)\\.global\\.(v2|v4|)\\.?(f32|b32|b16|b64)", made.asm["ptx"])
    bytes_of = {"v4": 4, "v2": 2, "": 1}
    narrow = [each for each in moved if bytes_of[each[0]] * WIDE[each[1]] < 16]
    assert moved and not narrow, (kernel.__name__, constants, moved)

def norms(width):
    vectors = {"x_ptr": "*fp32", "weight_ptr": "*fp32", "bias_ptr": "*fp32"}
    vectors |= {"missing_ptr": "*fp32", "out_ptr": half_type}
    block = triton.next_power_of_2(width)
    for layer in (False, True):  # a layer norm with its bias, or an RMS norm
        for lacking, keep in ((False, False), (True, True)):
            kind = {"center": layer, "shift": layer, "lacking": lacking, "keep": keep}
            kind |= {"width": width, "block": block, "epsilon": 1e-5}
            check(fused._norm_kernel, vectors, kind, fused._warps(block))

def queries(heads, half):
    angles = {"qkv_ptr": half_type, "cosine_ptr": "*fp32", "sine_ptr": "*fp32"}
    angles |= {"query_weight_ptr": "*fp32", "key_weight_ptr": "*fp32"}
    block = triton.next_power_of_2(heads * half)
    for norm in (False, True):
        kind = {"pairs": heads * half, "half": half, "block": block, "epsilon": 1e-5}
        kind |= {"norm": norm, "center": True, "rotate": True}
        check(fused._query_key_kernel, angles, kind, fused._warps(block))

def with_biases(width, heads):
    types = {"qkv_ptr": half_type, "out_ptr": half_type}
    types |= {"boundaries_ptr": "*i32", "table_ptr": "*fp32"}
    types |= {"scale": "fp32", "blocks": "i32", "distances": "i32"}
    block, queries, keys, warps = triton_attention.shape(width)
    kind = {"heads": heads, "width": width, "block": block, "queries": queries, "keys": keys}
    made, _ = compile(triton_attention._attend_kernel, types, kind, warps)
    assert len(made.asm["cubin"]) > 1000
    assert "mma" in made.asm["ptx"]  # tensor cores
    assert made.metadata.shared <= (99 << 10 if capability < 90 else 227 << 10)

for capability, half_type in (70, "*fp16"), (80, "*bf16"), (90, "*bf16"):  # V100, A100, H200
    print(capability)  # the last one is what fails
    for width in (1280, 2560, 5120, 1152, 1024):  # 650M, 3B, 15B, ESM C 600M, ProtT5
        norms(width)
    for heads, half in ((20, 32), (40, 32), (40, 64), (18, 32)):
        queries(heads, half)
    flat = {"x_ptr": half_type, "by_ptr": half_type, "count": "i32"}
    for activation in ("gelu", "gelu_tanh", "silu", "relu"):
        for gated in (False, True):
            kind = {"activation": activation, "gated": gated, "block": fused.ACTIVATE_BLOCK}
            check(fused._activate_kernel, flat, kind, fused.ACTIVATE_WARPS)
    for width, heads in ((64, 12), (128, 32)) if capability >= 80 else ():  # DNABERT, ProtT5
        with_biases(width, heads)
"""


@pytest.mark.workflow
@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"),
    reason="requirements/test.txt has Triton for Linux on x86-64 only",
)
def test_machine_code_moves_16_bytes_at_a_time_and_keeps_all_in_registers() -> None:
    """Triton brings NVIDIA's assembler along."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILE]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-3000:]
