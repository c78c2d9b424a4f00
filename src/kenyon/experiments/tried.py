"""The values that were tried of every hyper-parameter, as data: Supplementary Table 6, and Section 2.3 for CORe50.

The values chosen from them are in `hyperparameters`. Methods that the table does not have (active forgetting on a
single learner, learners without it, RWalk, replay) have no grid here and take theirs from `--set`. CORe50 has one for
the strengths of EWC and MAS alone and one for what CAF adds to them. Digits: ours, a decade or two around the chosen.
Progress & Compress on R-CIFAR-100: ours, around the chosen, for importances that are summed; the table's 10000 to
100000 are for averaged ones.
"""

from __future__ import annotations

from kenyon.errors import ConfigError

Tried = dict[str, tuple[float, ...]]  # setting -> values

# Chosen values that were not among those tried: the table selects none, and the authors' scripts have these.
OUTSIDE = {
    ("cub-200", "cpr-ewc", "lambda_cpr"): 0.001,
    ("cub-200", "cpr-mas", "lambda_cpr"): 0.001,
    ("tiny-imagenet", "cpr-mas", "lambda_cpr"): 0.01,
}


def _tried(
    *,
    ewc: tuple[float, ...],
    mas: tuple[float, ...],
    si: tuple[float, ...],
    agscl: tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]],
    pnc: tuple[float, ...],
    cpr_ewc: tuple[float, ...],
    cpr_mas: tuple[float, ...],
    caf_ewc: tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]],
    caf_mas: tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]],
    with_cpr: tuple[float, ...] | None = None,
) -> dict[str, Tried]:
    """A column of the table. AGS-CL has (lambda_sp, mu, rho), CAF (lambda_sp, lambda_af, gamma); CPR has lambda_cpr,
    and lambda_sp as EWC or MAS alone, unless `with_cpr` has others for EWC.
    """
    caf = ("lambda_sp", "lambda_af", "gamma")
    return {
        "ewc": {"lambda_sp": ewc},
        "mas": {"lambda_sp": mas},
        "si": {"lambda_sp": si},
        "agscl": dict(zip(("lambda_sp", "mu", "rho"), agscl, strict=True)),
        "pnc": {"lambda_sp": pnc},
        "cpr-ewc": {"lambda_sp": with_cpr or ewc, "lambda_cpr": cpr_ewc},
        "cpr-mas": {"lambda_sp": mas, "lambda_cpr": cpr_mas},
        "caf-ewc": dict(zip(caf, caf_ewc, strict=True)),
        "caf-mas": dict(zip(caf, caf_mas, strict=True)),
    }


CIFAR_AF = (1e-6, 1e-7, 1e-8, 1e-9)
OMNIGLOT_AF = (1e-10, 1e-11, 1e-12, 1e-13)

SEARCHED: dict[str, dict[str, Tried]] = {
    "digits": _tried(
        ewc=(1e4, 1e5, 1e6, 1e7),
        mas=(0.1, 1, 10, 100),
        si=(0.1, 1, 10),
        agscl=((0.5, 5, 50), (0.1, 1, 10), (0.1, 0.3, 0.5)),
        pnc=(1e7, 1e8, 1e9, 1e10),
        cpr_ewc=(0.1, 0.5, 1),
        cpr_mas=(0.1, 0.5, 1),
        caf_ewc=((1e5, 1e6, 1e7), (1e-8, 1e-6, 1e-4), (0.002, 0.02, 0.2)),
        caf_mas=((1, 10, 100), (1e-8, 1e-6, 1e-4), (0.002, 0.02, 0.2)),
    ),
    "s-cifar-100": _tried(
        ewc=(10000, 25000, 50000, 100000),
        mas=(4, 8, 16, 32),
        si=(4, 6, 8, 10, 16),
        agscl=((800, 1600, 3200, 7000), (2, 5, 10, 20), (0.1, 0.2, 0.3, 0.5)),
        pnc=(20000, 50000, 100000, 200000),
        cpr_ewc=(0.1, 0.5, 1, 1.5, 3),
        cpr_mas=(0.1, 0.5, 1, 1.5, 3),
        caf_ewc=((10000, 25000), CIFAR_AF, (0.001, 0.01, 0.02, 0.1)),
        caf_mas=((8, 16), CIFAR_AF, (0.001, 0.01, 0.02, 0.1)),
    ),
    "r-cifar-100": _tried(
        ewc=(5000, 10000, 25000, 50000),
        mas=(2, 4, 8, 16),
        si=(4, 8, 10, 12, 16),
        agscl=((800, 1600, 3200, 7000), (2, 5, 10, 20), (0.1, 0.2, 0.3, 0.5)),
        pnc=(400, 1000, 2500, 6000),
        cpr_ewc=(0.1, 0.5, 1, 1.5, 3),
        cpr_mas=(0.1, 0.5, 1, 1.5, 3),
        caf_ewc=((5000, 10000), CIFAR_AF, (0.001, 0.01, 0.02, 0.1)),
        caf_mas=((2, 4), CIFAR_AF, (0.001, 0.01, 0.02, 0.1)),
    ),
    "r-cifar-10-100": _tried(
        ewc=(5000, 10000, 25000, 50000),
        mas=(4, 6, 8, 16),
        si=(4, 6, 8, 16),
        agscl=((1600, 3200, 7000, 10000), (5, 10, 20, 40), (0.1, 0.2, 0.3, 0.5)),
        pnc=(10000, 20000, 50000, 100000),
        cpr_ewc=(0.1, 0.2, 0.5, 1, 1.5),
        cpr_mas=(0.1, 0.2, 0.5, 1, 1.5),
        caf_ewc=((10000, 25000), CIFAR_AF, (0.001, 0.01, 0.02, 0.1)),
        caf_mas=((4, 8), CIFAR_AF, (0.0001, 0.01, 0.02, 0.1)),
    ),
    **dict.fromkeys(
        ("omniglot", "omniglot-clean"),
        _tried(
            ewc=(1e5, 1e6, 2e6, 5e6, 1e7),
            mas=(2, 4, 8, 16),
            si=(4, 6, 8, 10, 16),
            agscl=((500, 800, 1000, 1600, 3200), (2, 5, 7, 10), (0.1, 0.3, 0.5, 0.7)),
            pnc=(2e6, 5e6, 1e7, 2e7),
            cpr_ewc=(0.1, 0.2, 0.5, 1),
            cpr_mas=(0.1, 0.2, 0.5, 1),
            caf_ewc=((5e6, 1e7), OMNIGLOT_AF, (0.001, 0.02, 0.05, 0.1)),
            caf_mas=((4, 8, 16, 32), OMNIGLOT_AF, (0.05,)),
        ),
    ),
    "cub-200": _tried(
        ewc=(0.5, 1, 2, 5, 10, 20),
        mas=(0.001, 0.005, 0.01, 0.02, 0.1),
        si=(0.2, 0.4, 0.8, 1.6),
        agscl=((0.0001, 0.001, 0.01, 0.1, 1, 10, 100), (0.01,), (0.05, 0.1, 0.2, 0.5)),
        pnc=(1, 2, 4, 10, 20, 40),
        cpr_ewc=(0.1, 0.2, 0.5, 1, 2),
        cpr_mas=(0.1, 0.2, 0.5, 1),
        caf_ewc=((1, 2, 5), (1e-5, 1e-6, 1e-7, 1e-8, 1e-9), (0.0001, 0.001, 0.01, 0.1)),
        caf_mas=((0.01, 0.02, 0.05), (1e-6, 1e-7, 1e-8, 1e-9), (0.0001, 0.001, 0.01, 0.1)),
    ),
    "tiny-imagenet": _tried(
        ewc=(20, 40, 160),
        mas=(0.1, 0.2, 0.5, 1, 2),
        si=(0.4, 0.8, 1.6, 3.2),
        agscl=((0.01, 0.1, 1, 10, 100), (0.0001, 0.001, 0.01, 0.1), (0.05, 0.1, 0.2, 0.5)),
        pnc=(40, 80, 160, 320),
        cpr_ewc=(0.1, 0.2, 0.5, 1),
        cpr_mas=(0.1, 0.2, 0.5, 1, 2),
        caf_ewc=((40, 80, 160, 320), (1e-3, 1e-4, 1e-5, 1e-6), (0.0001, 0.001, 0.01, 0.1)),
        caf_mas=((0.5, 1), (1e-5, 1e-6, 1e-7, 1e-8), (0.0001, 0.001, 0.01, 0.1)),
        with_cpr=(20, 40, 80, 160),
    ),
    "core50": {
        "ewc": {"lambda_sp": (1, 10, 100, 1000)},
        "mas": {"lambda_sp": (0.001, 0.01, 0.1, 1)},
        "caf-ewc": {"lambda_af": (1e-8, 1e-7, 1e-6, 1e-5), "gamma": (0.001, 0.01, 0.1, 1)},
        "caf-mas": {"lambda_af": (1e-8, 1e-7, 1e-6, 1e-5), "gamma": (0.001, 0.01, 0.1, 1)},
    },
}


def find_grid(benchmark: str, method: str) -> Tried:
    """The published grid, in rising order."""
    methods = SEARCHED.get(benchmark, {})
    if method not in methods:
        known = f"has those of {', '.join(methods)}" if methods else "has none"
        raise ConfigError(
            f"There is no published grid of {method} on {benchmark}, which {known}. Name the values to try with "
            "--set NAME=VALUE,VALUE."
        )
    return {name: tuple(sorted(values)) for name, values in methods[method].items()}
