"""Node-wise group sparsity: AGS-CL (Jung et al., NeurIPS 2020).

A hidden node is important once it was active for a task. Its importance Omega is its mean activation, accumulated
over tasks as Omega <- eta Omega + mean activation. With the learning rate a and a node's group w (incoming weights
and bias):

    after an epoch   unimportant nodes   prox of a mu |w|                          towards exactly zero
                     important nodes     prox of a lambda Omega |w - w_before|     exactly frozen
    after a step     weights from unimportant into important nodes are set to zero
    after a task     weights from unimportant nodes are set to zero, those of the head too: no earlier task depends on
                     them. A share rho of these nodes is initialized for later tasks.

Both proximal steps are one, towards `home`: the group of an important node as the previous task left it, and zero for
other nodes. They act on weights directly: the loss and the validation loss are the cross-entropy alone, and the best
weights of a task are weights after a proximal step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kenyon.errors import ConfigError
from kenyon.methods.base import Method
from kenyon.methods.importance import GradientImportance
from kenyon.methods.mechanism import Attached, Context
from kenyon.methods.penalties import Strength
from kenyon.methods.registry import method
from kenyon.models.nodes import Nodes, join_layers
from kenyon.random import Purpose, key, random_words

COUNTING = 1e-3  # counts this little above a whole number are that number: 0.3 has no exact float32


@dataclass(frozen=True)
class GroupSparsity:
    """The settings of AGS-CL. `eta`, the share of importance that remains per task, is 0.9 in all published runs."""

    lambda_sp: Strength
    mu: Strength
    rho: Strength
    eta: Strength = 0.9

    def __post_init__(self) -> None:
        for name, most in (("lambda_sp", torch.inf), ("mu", torch.inf), ("rho", 1.0), ("eta", 1.0)):
            values = torch.as_tensor(getattr(self, name), dtype=torch.float32)
            if not bool((torch.isfinite(values) & (values >= 0) & (values <= most)).all()):
                fitting = "a finite number, 0 or larger" if most > 1 else "between 0 and 1"
                raise ConfigError(f"{name} must be {fitting}, not {getattr(self, name)}.")

    @property
    def measures(self) -> tuple[GradientImportance, ...]:
        return ()

    def attach(self, context: Context) -> Attached:
        return _Sparsity(context, self)


def shrunk(groups: Tensor, home: Tensor, distance: Tensor) -> Tensor:
    """Return the proximal operator argmin_w |w - group|^2 / 2 + distance * |w - home| of every group.

    Groups (..., n, G) move by `distance` (..., n) towards home, and stay there once they arrive.
    """
    away = (groups - home).square().sum(-1).sqrt()
    left = torch.where(away > distance, 1 - distance / away, 0.0)
    return torch.lerp(home, groups, left.unsqueeze(-1))  # exact at both ends


class _Sparsity(Attached):
    def __init__(self, work: Context, settings: GroupSparsity) -> None:
        if work.net.shared:
            raise ConfigError(
                "AGS-CL cuts a task's head off from nodes that the task does not need, and these tasks share a head. "
                "Choose another method."
            )
        self.context, self.nodes = work, Nodes(work.net)
        R, theta = len(work.theta), work.theta
        self.importance = theta.new_zeros(R, self.nodes.count)  # (R, N) Omega
        self.home = theta.new_zeros(R, work.net.layout.protected)  # (R, Pp)
        self.free = self.mask = torch.ones_like(theta, dtype=torch.bool)  # (R, P) False: held at zero

        def per_run(strength: Strength) -> Tensor:
            return torch.as_tensor(strength).to(theta).expand(R).view(R, 1, 1)

        self.lambda_sp, self.mu = per_run(settings.lambda_sp), per_run(settings.mu)
        self.rho, self.eta = per_run(settings.rho), per_run(settings.eta)

    def tensors(self) -> dict[str, Tensor]:
        return {"node_importance": self.importance, "home": self.home, "free": self.free}

    def after_epoch(self) -> None:
        rate = self.context.rate.view(-1, 1, 1)
        for layer, omega in zip(self.nodes.layers, self.nodes.per_layer(self.importance), strict=True):
            groups, home = (self.nodes.groups(rows, layer) for rows in (self.context.theta, self.home))
            pull = torch.where(omega > 0, self.lambda_sp * omega, self.mu)  # (R, K, n)
            self.nodes.put(self.context.theta, layer, shrunk(groups, home, rate * pull))

    def finish_task(self) -> None:
        work, nodes = self.context, self.nodes
        self.importance.mul_(self.eta.squeeze(2)).add_(work.activations(nodes))
        # The head sees the sum of the learners: a feature is important for all of them or for none.
        features = nodes.per_layer(self.importance)[-1]
        features.copy_(features.mean(1, keepdim=True).expand_as(features))
        important = nodes.per_layer(self.importance > 0)
        renewed, fresh = nodes.per_layer(self._renewed(important)), self._fresh()
        before: Tensor | None = None  # important nodes of the previous layer
        for layer, now, new in zip(nodes.layers, important, renewed, strict=True):
            inputs = nodes.input_mask(layer, before)
            groups = nodes.groups(work.theta, layer) * inputs
            groups = torch.where(new.unsqueeze(3), nodes.groups(fresh, layer), groups)
            nodes.put(work.theta, layer, groups)
            nodes.put(self.home, layer, groups * now.unsqueeze(3))
            nodes.put(self.free, layer, inputs | ~now.unsqueeze(3))
            before = now
        assert before is not None
        seen = before[:, 0].repeat_interleave(work.net.features // before.shape[2], dim=1).unsqueeze(1)  # (R, 1, F)
        for rows in (work.theta, self.free):
            work.net.layout.view(rows, "head.weight")[:, work.task].mul_(seen)

    def _renewed(self, important: list[Tensor]) -> Tensor:
        """Return the nodes to initialize, (R, N): a random share rho, rounded up, of the unimportant nodes of every
        layer and learner.
        """
        device = self.importance.device
        task = self.context.task
        keys = torch.tensor([key(seed, Purpose.NODES, task) for seed in self.context.seeds], device=device)
        words = random_words(keys, torch.zeros(1, dtype=torch.long, device=device), self.nodes.count).long()
        chosen = []
        for now, lots in zip(important, self.nodes.per_layer(words), strict=True):
            idle = (~now).sum(2, keepdim=True)
            count = torch.ceil(idle * self.rho - COUNTING)
            order = lots.masked_fill(now, torch.iinfo(torch.int32).max + 1).argsort(dim=2, stable=True)
            place = order.argsort(dim=2)
            chosen.append((place < count) & ~now)
        return join_layers(chosen)

    def _fresh(self) -> Tensor:
        """Return initial weights of the backbone, drawn for this task: (R, P)."""
        net, rows = self.context.net, torch.zeros(self.context.theta.shape)
        for row, seed in zip(rows, self.context.seeds, strict=True):
            for k in range(net.learners):
                for name, value in net.fresh_learner(key(seed, Purpose.NODES, self.context.task, k)).items():
                    net.layout.view(row, name)[k] = value
        return rows.to(self.context.theta)


@method(
    family="sparsity",
    cite="Jung et al., NeurIPS 2020",
    defaults={"lambda_sp": 5.0, "mu": 1.0, "rho": 0.5},  # those of digits
    color="#4fa3a5",
)
def agscl(lambda_sp: Strength, mu: Strength, rho: Strength, eta: Strength = 0.9) -> Method:
    """AGS-CL: freeze nodes that were active, keep the others sparse, and renew a share of them after every task."""
    return Method(mechanisms=(GroupSparsity(lambda_sp, mu, rho, eta),))
