"""AF-1 as a plain loss: decay towards an empty network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kenyon.errors import ConfigError
from kenyon.penalties import weighed
from kenyon.strengths import check_strength
from kenyon.tools.collaborative import Collaborative
from kenyon.tools.learned import Learned
from kenyon.tools.parameters import Chosen, Excluded, precise


class AF1(Learned):
    """strength / 2 * sum of theta^2, as in `kenyon.penalties.ActiveForgetting1`.

        forgetting = AF1(model, strength=1e-6, exclude="heads")
        loss = cross_entropy(model(x, task), y) + forgetting(model.heads[task])     # from the second task on

    adaptive: of a `Collaborative` model, every parameter tensor l weighs its K learners by K * softmax(a_l) with a_l
    learned: give `forgetting.parameters()` to the optimiser, too. All else has weight 1.
    """

    def __init__(self, model: nn.Module, *, strength: float, adaptive: bool = False, exclude: Excluded = ()) -> None:
        """`exclude`: what does not decay, usually the heads; the one in use is named in the call."""
        check_strength("strength", strength)
        chosen = Chosen(model, exclude)
        tensors = _by_learner(chosen) if adaptive else []
        super().__init__((len(tensors), len(tensors[0])) if adaptive else None)
        self.chosen, self.strength = chosen, strength
        self.tensors = tensors  # that are weighed: L lists of the K learners' names
        self.to(next(iter(chosen.named().values())).device)

    def forward(self, *heads: nn.Module) -> Tensor:
        """The decay of everything that is not excluded, and of these modules."""
        parameters = self.chosen.named()
        a, sums = self.averaged(), {name: _square_sum(p) for name, p in parameters.items()}
        there = {id(p) for p in parameters.values()}
        used = [_square_sum(p) for head in heads for p in head.parameters() if id(p) not in there]
        total = torch.stack([*sums.values(), *used]).sum() if a is None else self._adapted(sums, used, a)
        return self.strength * 0.5 * total

    def _adapted(self, sums: dict[str, Tensor], used: list[Tensor], a: Tensor) -> Tensor:
        norms = torch.stack([torch.stack([sums[name] for name in names]) for names in self.tensors])  # (L, K)
        inside = {name for names in self.tensors for name in names}
        rest = [value for name, value in sums.items() if name not in inside]
        return sum([*rest, *used], weighed(norms, a).sum())


def _by_learner(chosen: Chosen) -> list[list[str]]:
    model = next((module for module in chosen.model.modules() if isinstance(module, Collaborative)), None)
    if model is None:
        raise ConfigError(
            f"Adaptive AF-1 weighs learners against each other, and {type(chosen.model).__name__} has no "
            "Collaborative module in it. Put its learners into one, or leave adaptive=False."
        )
    names = {id(parameter): name for name, parameter in chosen.named().items()}
    learners = [dict(backbone.named_parameters()) for backbone in model.backbones]
    if any(list(learner) != list(learners[0]) for learner in learners):
        raise ConfigError("Adaptive AF-1 weighs equal tensors of learners: all backbones need the same parameters.")
    tensors = [[names.get(id(learner[own])) for learner in learners] for own in learners[0]]
    found = [[name for name in same if name is not None] for same in tensors]
    if any(0 < len(same) < len(learners) for same in found) or not any(found):
        raise ConfigError("Adaptive AF-1 weighs equal tensors of learners. Exclude a tensor of all or of none.")
    return [same for same in found if same]


def _square_sum(parameter: Tensor) -> Tensor:
    return parameter.square().sum(dtype=precise(parameter))
