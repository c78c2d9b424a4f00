"""Strengths of the methods that Supplementary Table 6 does not have, derived from those that it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kenyon.methods import find_method

Strengths = dict[str, dict[str, Any]]  # method -> setting -> value


def complete(table: Mapping[str, Mapping[str, Any]], **forms: Any) -> Strengths:
    """Return the table with the other methods, every method in the given forms.

    - AF-1 and AF-2 in a single learner have lambda_SP of the plain method and lambda_AF of the authors' scripts
      (AF-1 1e-6, AF-2 1).
    - Learners without active forgetting, with shared heads (MCL) or independent (ICL), have lambda_SP of CAF.
    - Joint training with terms has those of EWC with AF-1 and of CAF on EWC, as Supplementary Fig. 4 says.
    - Replay keeps 20 samples a class, and every step meets 64 of each earlier task, as in the authors' scripts.

    What the table has itself, it keeps. `forms`: switches to which the strengths belong, as published on this
    benchmark, for all methods that take them.
    """
    found: Strengths = {
        "joint-af1": {"lambda_af": 1e-6},
        "joint-caf": {name: table["caf-ewc"][name] for name in ("lambda_af", "gamma")},
        "er": {"memory": 20},
    }
    for base in ("ewc", "mas"):
        plain, several = table[base], {"lambda_sp": table[f"caf-{base}"]["lambda_sp"]}
        found |= {
            f"{base}-af1": {**plain, "lambda_af": 1e-6},
            f"{base}-af2": {**plain, "lambda_af": 1.0},
            f"mcl-{base}": several,
            f"icl-{base}": several,
        }
    found |= {method: dict(values) for method, values in table.items()}
    return {
        method: values | {name: form for name, form in forms.items() if name in find_method(method).hyperparameters}
        for method, values in found.items()
    }
