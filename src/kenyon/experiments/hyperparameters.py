"""The hyper-parameters of every method on every benchmark, as data.

CIFAR family: Supplementary Table 6, the selected values, with one exception. For CAF on EWC on R-CIFAR-100 the table
selects lambda_SP = 5000 and the authors' scripts use 10000; measured here (5 runs), 5000 gives 71.6 % and 10000 gives
74.5 %, where 73.3 % is published. The scripts' value is the default. The table has no rows for AF-1 and AF-2 on a
single learner and for MCL without AF: there lambda_SP is that of the plain method (for MCL, that of CAF), and
lambda_AF is the value of the authors' scripts (AF-1 1e-6, AF-2 1). Progress & Compress: that the table's values are
of the size of EWC's suggests that importances are averaged over tasks, as by EWC.
Other benchmarks: the table's values, and for CORe50 those of the text beside it. On CUB-200 and Tiny-ImageNet they
belong to another scale of importance (see `importance`); AF-S has equal weights everywhere but on CIFAR.
AGS-CL: the table's values too. On Omniglot it marks no lambda: 1000 is the scripts'. For CORe50 there are none.
On CUB-200 the scripts have (1e-4, 1e-3, 0.5) instead of the table's (1e-3, 1e-2, 0.1), which is what stands here.
Digits: ours, chosen on seeds 100 to 109, which no reported number uses. For Progress & Compress, of eleven values
from 1e4 to 1e10; 3e8, 1e9 and 1e10 differ by about a standard error.
"""

from __future__ import annotations

Values = dict[str, float | str]


def _family(
    ewc: float,
    mas: float,
    si: float,
    caf_ewc: tuple[float, float, float],
    caf_mas: tuple[float, float, float],
    fisher: str | None = None,
    omega: str | None = None,
    afs: str | None = None,
) -> dict[str, Values]:
    """All methods of a benchmark from its row of values; CAF rows are (lambda_sp, lambda_af, gamma).

    `fisher`, `omega`, `afs`: the forms that differ from the methods' defaults.
    """
    caf = ("lambda_sp", "lambda_af", "gamma")
    family: dict[str, Values] = {
        "finetune": {},
        "joint": {},
        "random-init": {},
        "ewc": {"lambda_sp": ewc},
        "mas": {"lambda_sp": mas},
        "si": {"lambda_sp": si},
        "ewc-af1": {"lambda_sp": ewc, "lambda_af": 1e-6},
        "ewc-af2": {"lambda_sp": ewc, "lambda_af": 1.0},
        "mas-af1": {"lambda_sp": mas, "lambda_af": 1e-6},
        "mas-af2": {"lambda_sp": mas, "lambda_af": 1.0},
        "mcl-ewc": {"lambda_sp": caf_ewc[0]},
        "mcl-mas": {"lambda_sp": caf_mas[0]},
        "caf-ewc": dict(zip(caf, caf_ewc, strict=True)),
        "caf-mas": dict(zip(caf, caf_mas, strict=True)),
    }
    for method, values in family.items():
        if fisher is not None and "ewc" in method:
            values["fisher"] = fisher
        if omega is not None and "mas" in method:
            values["omega"] = omega
        if afs is not None and method.startswith("caf"):
            values["afs"] = afs
    return family


def _agscl(lambda_sp: float, mu: float, rho: float) -> dict[str, Values]:
    return {"agscl": {"lambda_sp": lambda_sp, "mu": mu, "rho": rho}}


HYPERPARAMETERS: dict[str, dict[str, Values]] = {
    "digits": _family(1e6, 10, 1, (1e6, 1e-6, 0.02), (10, 1e-6, 0.02)) | _agscl(5, 1, 0.5),
    "s-cifar-100": _family(25000, 16, 10, (10000, 1e-8, 0.01), (8, 1e-8, 0.02)) | _agscl(3200, 10, 0.3),
    "r-cifar-100": _family(25000, 4, 10, (10000, 1e-8, 0.02), (4, 1e-8, 0.02)) | _agscl(1600, 10, 0.3),
    "r-cifar-10-100": _family(25000, 4, 8, (10000, 1e-8, 0.02), (8, 1e-8, 0.02)) | _agscl(7000, 20, 0.2),
    **dict.fromkeys(
        ("omniglot", "omniglot-clean"),
        _family(5e6, 4, 10, (5e6, 1e-12, 0.05), (32, 1e-12, 0.05), afs="uniform") | _agscl(1000, 7, 0.5),
    ),
    "cub-200": _family(2, 0.01, 0.4, (5, 1e-8, 1e-3), (0.05, 1e-9, 1e-3), "large", "large", "uniform")
    | _agscl(1e-3, 1e-2, 0.1),
    "tiny-imagenet": _family(40, 0.5, 0.8, (320, 1e-4, 1e-3), (0.5, 1e-8, 1e-3), "large", "large", "uniform")
    | _agscl(0.1, 1e-3, 0.1),
    "core50": _family(100, 0.01, 0.4, (100, 1e-6, 0.1), (0.01, 1e-6, 0.1), "core50", None, "uniform"),
}

PROGRESS_AND_COMPRESS = {  # lambda_sp
    "digits": 1e9,
    "s-cifar-100": 50000,
    "r-cifar-100": 20000,
    "r-cifar-10-100": 50000,
    "omniglot": 1e7,
    "cub-200": 10,
    "tiny-imagenet": 80,
}
for _benchmark, _lambda in PROGRESS_AND_COMPRESS.items():
    HYPERPARAMETERS.setdefault(_benchmark, {})["pnc"] = {"lambda_sp": _lambda}
