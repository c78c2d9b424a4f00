"""Every kernel of Kenyon: its conformance test, its file and name; what it computes, and what it relies on.

Common to all Triton kernels: bases and rows may begin at any number (Triton looks at an address before it fetches
several numbers at once); operands are contiguous in the order that the kernel names, which the function that launches
it sees to; a leading axis of runs or learners is counted in 64 bits.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

import kenyon

SOURCE = Path(kenyon.__file__).parent

TABLE = """
test_rows
    backends/triton/updates.py _adam  a step of Adam with forces; rows (R, P), at most two pulls and a decay
    backends/triton/updates.py _sgd  a step with momentum and forces of a part of the rows; likewise
    backends/triton/updates.py _add_importance  importance += share * gradient^2, or |gradient|; likewise
    backends/triton/updates.py _squares  sums of squares between bounds of a row; its numbers lie side by side
    random.py _words  random words from two keys a run; fewer than 2^31 a run
    backends/triton/factors.py _sgd_of_factors  a step by dy^T x; addresses at multiples of ALIGN numbers
    backends/cuda/packing.py _take  numbers of rows at given places; places (M,) int32 inside a row
    backends/cuda/packing.py _total  sums over what blocks of threads left; a table of pieces in int64
test_vectors
    backends/triton/losses.py _weighted_cross_entropy  value and gradient; float32, at most 2^14 classes
    backends/triton/heads.py _forward  a head applied to every learner; float32, at most 1024 features, 16 classes
    backends/triton/heads.py _backward  its gradients; likewise
    backends/triton/dropout.py _forward  ReLU and dropout of a dense layer; fewer than 2^31 numbers a run
    backends/triton/dropout.py _backward  its gradient
    backends/triton/dropout.py _pass  dropout by given bytes, each way; fewer than 2^31 numbers
    backends/triton/heads.py _chunk  chunks of a head's product; float32, 512 features or more, at most 256 classes
    backends/triton/dense.py _outer  dy^T x into its place in a row; bfloat16, at most 256 samples
    backends/triton/groups.py _add_products  importance += share * (dy^T x)^2; bfloat16, dy and x below 2^31 numbers
test_maps
    backends/triton/fused.py _relu_forward  relu(x + b) over x; channels in sixteens and last, fewer than 2^31 numbers
    backends/triton/fused.py _relu_backward  its gradients; likewise
    backends/triton/fused.py _pool_forward  bias, ReLU, 2x2 maximum and dropout; likewise, and even sides
    backends/triton/fused.py _pool_backward  its gradients; likewise
    backends/triton/fused.py _column_sums  sums of what programs left
    backends/triton/pooling.py _forward  bias, ReLU and any maximum; windows up to 15, below 2^31 numbers
    backends/triton/pooling.py _backward  its gradients; likewise
    backends/triton/windows.py _lay  windows of a convolution as rows; channels in eights and last, below 2^31 numbers
    backends/triton/windows.py _gather  its gradient; likewise
    backends/triton/windows.py _pack  weights in the order of such rows; fewer than 2^31 numbers
    backends/triton/windows.py _unpack  their gradient, perhaps in its place in a row; likewise
    backends/triton/strided.py _space_to_depth  s x s pixels as one; at most 4 channels, in any order of memory
    training/augmentation.py _cut  random windows of images; uint8, one size, channels last
    training/augmentation.py _blend  pixels between pixels; uint8 (P, C)
test_convolve
    backends/cuda/convolve.cu convolve  3x3 convolutions of all learners; addresses at 16 bytes
    backends/cuda/convolve_dense.cu convolve_dense  those of one learner; likewise, on Hopper
    backends/cuda/weigh.cu weigh  gradients of their weights; likewise
"""


@dataclass(frozen=True)
class Kernel:
    file: str
    name: str
    computes: str
    relies_on: str
    test: str


def _read(table: str) -> tuple[Kernel, ...]:
    kernels, test = [], ""
    for line in table.strip().splitlines():
        if not line.startswith(" "):
            test = line
            continue
        file, name, rest = line.split(maxsplit=2)
        computes, _, relies_on = rest.partition("; ")
        kernels.append(Kernel(file, name, computes, relies_on, test))
    return tuple(kernels)


KERNELS = _read(TABLE)


def found() -> set[tuple[str, str]]:
    """The kernels in the source, (file, name): functions for Triton that no other one calls, and those of CUDA."""
    kernels: set[tuple[str, str]] = set()
    called: set[str] = set()
    for path in sorted(SOURCE.rglob("*.py")):
        if "@jit" not in (text := path.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef):
                continue
            if any(isinstance(mark, ast.Name) and mark.id == "jit" for mark in node.decorator_list):
                kernels.add((path.relative_to(SOURCE).as_posix(), node.name))
                calls = [call.func for call in ast.walk(node) if isinstance(call, ast.Call)]
                called |= {function.id for function in calls if isinstance(function, ast.Name)}
    kernels = {(file, name) for file, name in kernels if name not in called}
    for path in sorted(SOURCE.rglob("*.cu")):
        if "__global__" in path.read_text():
            kernels.add((path.relative_to(SOURCE).as_posix(), path.stem))
    return kernels
