"""Export of `predict_proba` as a plain PyTorch module, for `torch.export` and ONNX.

In the module every learner is a copy of the backbone with its own weights: a slow definition of the predictions, to
which `predict_proba` is compared before the file is written.
"""

from __future__ import annotations

import copy
import logging
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kenyon.errors import KenyonError, ResultsError, optional_import
from kenyon.estimator.errors import SettingError, as_setting_errors, as_write_errors
from kenyon.estimator.knowledge import Knowledge, task_weights
from kenyon.models import Net
from kenyon.models.heads import GATE_SLOPE
from kenyon.utils.files import write_atomically
from kenyon.utils.threads import single_precision

TOLERANCE = 1e-4  # between probabilities ...
COARSE = 5e-2  # ... if the learner computes in bfloat16, since the program is in float32

Writer = Callable[[nn.Module, Tensor, Path], Tensor]


@dataclass(frozen=True)
class Export:
    """An exported program, and its accuracy."""

    path: Path
    difference: float  # largest difference of its probabilities to those of `predict_proba`, on the examples


class Plain(nn.Module):
    """A module from inputs of `predict_proba` (N, ...) to probabilities (N, C)."""

    mean: Tensor | None
    std: Tensor | None

    def __init__(self, known: Knowledge, backbone: nn.Module, task: int | None) -> None:
        super().__init__()
        net, form = known.net, known.form
        self.tasks = known.distinct if task is None else [task]
        self.kind, self.learners = form.kind, net.learners
        rest = (-1, *(1,) * (len(form.shape) - 1))
        for name, values in (("mean", form.mean), ("std", form.std)):
            if values:
                self.register_buffer(name, torch.tensor(values).view(rest))
            else:
                setattr(self, name, None)  # torch.export cannot follow a buffer that is None
        self.classes = len(known.classes if task is None else known.labels[task])
        self.networks, self.heads, self.gates = nn.ModuleList(), nn.ModuleList(), nn.ParameterList()
        built: dict[int, nn.ModuleList] = {}  # tasks with the same weights share them
        for place, t in enumerate(self.tasks):
            rows = known.rows(t).cpu()
            shared = "learners" not in known.tensors and not net.statistics
            if not shared or not built:
                of_task = [
                    _learner_module(backbone, net, row, k, net.head_of(t))
                    for row in rows
                    for k in range(net.learners)
                ]
                built[place] = nn.ModuleList(of_task)
            self.networks.append(built[0 if shared else place])
            self.heads.append(nn.ModuleList(_head(net, row, net.head_of(t), len(known.labels[t])) for row in rows))
            gate = torch.ones(len(rows), net.learners, 1)
            if net.gate:
                gate = torch.sigmoid(GATE_SLOPE * net.layout.view(rows, "gate")[..., net.head_of(t), :])
            self.gates.append(nn.Parameter(gate, requires_grad=False))
            columns = np.searchsorted(known.classes, known.labels[t]) if task is None else np.arange(self.classes)
            spread = torch.zeros(len(columns), self.classes)
            spread[torch.arange(len(columns)), torch.from_numpy(columns)] = 1.0
            self.register_buffer(f"spread{place}", spread)  # (C_t, C), one-hot: the place of each class among all

    def forward(self, inputs: Tensor) -> Tensor:
        x = inputs.float() / 255 if self.kind == "bytes" else inputs
        if self.mean is not None and self.std is not None:
            x = (x - self.mean) / self.std
        heads = [self._task(place, x) for place in range(len(self.tasks))]
        weights = task_weights(heads)
        parts = [weights[:, t : t + 1] * (p @ self.get_buffer(f"spread{t}")) for t, p in enumerate(heads)]
        return torch.stack(parts).sum(0)

    def _task(self, place: int, x: Tensor) -> Tensor:
        modules: Any = self.networks[place], self.heads[place]
        (networks, heads), gates, K = modules, self.gates[place], self.learners
        predictions = []
        for network, head in enumerate(heads):  # independent networks
            features = [networks[network * K + k](x) * gates[network, k] for k in range(K)]
            predictions.append(head(torch.stack(features).sum(0)).softmax(-1))
        return torch.stack(predictions).mean(0)


@single_precision()
def export_learner(path: Path, known: Knowledge, backbone: nn.Module, task: int | None, examples: Tensor) -> Export:
    """Write a program whose probabilities on the examples (N, ...) are those of `predict_proba`."""
    module, expected = Plain(known, backbone, task).eval(), _probabilities(known, task, examples)
    writers = {".pt2": _torch_export, ".onnx": _onnx}
    if path.suffix not in writers:
        raise SettingError(f"{path.name} must end in .pt2 (torch.export) or .onnx.")
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / path.name
        exported = _write(writers[path.suffix], module, examples, draft)
        difference = float((exported.double() - expected).abs().max())
        if not difference <= (TOLERANCE if known.net.dtype == torch.float32 else COARSE):
            raise ResultsError(
                f"The exported program's probabilities differ from the learner's by {difference:.2g}: {path} was not "
                "written. A backbone that computes with the batch's own numbers cannot be exported."
            )
        with as_write_errors(path):
            write_atomically(path, draft.read_bytes())
    return Export(path, difference)


def _write(writer: Writer, module: nn.Module, examples: Tensor, draft: Path) -> Tensor:
    """Write the program and return its probabilities on the examples."""
    silenced = logging.root.manager.disable
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on internals of PyTorch, and deprecations inside of it
            logging.disable(logging.WARNING)  # the same, in its logs
            return writer(module, examples, draft)
    except KenyonError:
        raise
    except Exception as error:  # PyTorch has no common class for modules that it cannot export
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise SettingError(
            f"PyTorch cannot make a program of this backbone: {reason} A backbone whose steps depend on the values "
            "in a batch (`if x.sum() > 0`) cannot be exported; `save` keeps it."
        ) from error
    finally:
        logging.disable(silenced)


def _probabilities(known: Knowledge, task: int | None, examples: Tensor) -> Tensor:
    return known.across_tasks(examples) if task is None else known.probabilities(examples, [task])[0]


def _torch_export(module: nn.Module, examples: Tensor, path: Path) -> Tensor:
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(module, (_two(examples),), dynamic_shapes=({0: batch},))
    torch.export.save(program, path)
    probabilities: Tensor = torch.export.load(path).module()(examples)
    return probabilities.detach()


def _onnx(module: nn.Module, examples: Tensor, path: Path) -> Tensor:
    with as_setting_errors(), optional_import("ONNX", "onnx", "onnx", "onnxruntime", "onnxscript"):
        import onnx  # noqa: F401 - used by the exporter, as onnxscript
        import onnxruntime
        import onnxscript  # noqa: F401
    batch: Any = torch.export.Dim("batch", min=1)
    torch.onnx.export(
        module,
        (_two(examples),),
        str(path),
        input_names=["inputs"],
        output_names=["probabilities"],
        dynamic_shapes=({0: batch},),
        dynamo=True,
        external_data=False,
        verbose=False,
    )
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"inputs": examples.numpy()})[0])


def _two(examples: Tensor) -> Tensor:
    """Return a batch of two: the exporter would specialize to a batch of one."""
    return torch.cat([examples[:1], examples[-1:]])


def _learner_module(backbone: nn.Module, net: Net, row: Tensor, learner: int, head: int) -> nn.Module:
    """Return a copy of the backbone with the weights of a learner, and its running statistics for a head."""
    module = copy.deepcopy(backbone).cpu().eval()
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    with torch.no_grad():
        for name in net.backbone_names:
            parameters[name].copy_(net.layout.view(row, name)[learner])
        for name in net.statistics.initial:
            buffers[name].copy_(net.layout.view(row, name)[head, learner])
    return module


def _head(net: Net, row: Tensor, place: int, classes: int) -> nn.Linear:
    head: nn.Linear = nn.utils.skip_init(nn.Linear, net.features, classes)
    with torch.no_grad():
        head.weight.copy_(net.layout.view(row, "head.weight")[place, :classes])
        head.bias.copy_(net.layout.view(row, "head.bias")[place, :classes])
    return head
