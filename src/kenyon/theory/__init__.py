"""The paper's mathematics as code: forgetting of Gaussian beliefs, the best rate, its strengths, and the bounds.

See docs/theory.md, which goes from equation to function. Only numpy is needed.
"""

from kenyon.theory.best_rate import BestRate, best_rate
from kenyon.theory.bound_curves import bounds_data
from kenyon.theory.bounds import Bound, plasticity_bound, quadratic_flatness, stability_bound
from kenyon.theory.covers import (
    Cover,
    Space,
    balls,
    cover_c1,
    cover_c2,
    learners_tighten,
    log_balls,
    single_cover,
)
from kenyon.theory.divergence import h_divergence
from kenyon.theory.fig3b import fig3b_data
from kenyon.theory.forgetting import Forgotten, forget, target
from kenyon.theory.gaussian import Evidence, Gaussian
from kenyon.theory.lambdas import (
    Forgetting,
    Lambdas,
    Scales,
    forgetting_af1,
    forgetting_af2,
    lambdas_af1,
    lambdas_af2,
    learner_lambdas,
)
from kenyon.theory.norms import norm_cover, r1, r2
from kenyon.theory.objective import (
    Expanded,
    expanded_af1,
    expanded_af1_literal,
    expanded_af2,
    expanded_af2_literal,
    loss,
    minimiser,
)
from kenyon.theory.predictive import log_predictive, log_predictive_slope
from kenyon.theory.sequence import fisher_remembered, fisher_sum, learn_in_turn, memory_weights

__all__ = [
    "BestRate",
    "Bound",
    "Cover",
    "Evidence",
    "Expanded",
    "Forgetting",
    "Forgotten",
    "Gaussian",
    "Lambdas",
    "Scales",
    "Space",
    "balls",
    "best_rate",
    "bounds_data",
    "cover_c1",
    "cover_c2",
    "expanded_af1",
    "expanded_af1_literal",
    "expanded_af2",
    "expanded_af2_literal",
    "fig3b_data",
    "fisher_remembered",
    "fisher_sum",
    "forget",
    "forgetting_af1",
    "forgetting_af2",
    "h_divergence",
    "lambdas_af1",
    "lambdas_af2",
    "learn_in_turn",
    "learner_lambdas",
    "learners_tighten",
    "log_balls",
    "log_predictive",
    "log_predictive_slope",
    "loss",
    "memory_weights",
    "minimiser",
    "norm_cover",
    "plasticity_bound",
    "quadratic_flatness",
    "r1",
    "r2",
    "single_cover",
    "stability_bound",
    "target",
]
