"""The hyper-parameters of every method on every benchmark, as data.

Supplementary Table 6, the selected values, and Supplementary Section 2.3 for CORe50, with these exceptions:

- CAF on EWC on R-CIFAR-100: the table selects lambda_SP = 5000 and the authors' scripts use 10000; measured here (5
  runs, `af1_heads=current`), 5000 gives 71.6 % and 10000 gives 74.1 %, where 73.3 % is published. The scripts' value
  is the default, with the heads of tasks to come 74.8 %.
- The table has no rows for AF-1 and AF-2 on a single learner: lambda_SP is that of the plain method, and lambda_AF
  that of the authors' scripts (AF-1 1e-6, AF-2 1). The scripts have 10000 (R-CIFAR-10/100: 20000) for EWC with and
  without AF-1. AF-2 on EWC on CIFAR: 40000, 10000 and 25000, those of AFEC, whose numbers it is held against.
- On CIFAR active forgetting has its published forms: AF-1 decays the heads of tasks to come too, on MAS in a single
  learner from the first task on, and AF-2 does not count in the validation loss.
- It has none for learners without active forgetting, together (MCL) or independent (ICL): lambda_SP is that of CAF.
  Joint training with terms has those of EWC with AF-1 and of CAF on EWC, as Supplementary Fig. 4 says.
- It has none for RWalk: the values of the authors' scripts. Their 6 on R-CIFAR-100 gives 49.6 % where 66.9 % is
  published; 100 is the best of six values that were tried on a sequence of its own (`kenyon search`).
- CPR where nothing is selected (lambda_CPR on CUB-200-2011, and of MAS on Omniglot and Tiny-ImageNet): the scripts'
  values, 0.001 and 0.001, 0.2, 0.01. lambda_SP of CPR on EWC on CUB-200-2011: that of EWC.
- Progress & Compress: that the table's values are of the size of EWC's suggests that importances are averaged over
  tasks, as by EWC. On R-CIFAR-100 that gives 68.2 % where 70.2 % is published; there they are summed (decay 1), as in
  its own paper, with the best of six points that were tried on a sequence of its own. On CUB-200 the column goes on
  from task to task (`reinit=false`): begun anew it has too few images to become good, 13.2 % instead of 39.4 %.
- AGS-CL on Omniglot: the table marks no lambda; 1000 is the scripts'. On CUB-200 the scripts have (1e-4, 1e-3, 0.5)
  instead of the table's (1e-3, 1e-2, 0.1), which is what stands here.
- CAF on large images: the scripts' lambda_AF is 1e-7 on CUB-200-2011 and, on EWC, on Tiny-ImageNet, where the table
  selects 1e-8 (1e-9 on MAS) and 1e-4, which stand here.
- Three things in the authors' code are left out, since paper and table say otherwise: AF-S of CAF on MAS has equal
  weights on CIFAR too, AF-2 on MAS counts stability protection twice in training, and rho of AGS-CL has no effect on
  large images.
- CORe50 has values for EWC, MAS and CAF only: SI has that of CUB-200, the others need theirs from `--set`.
- Replay: 20 samples a class, and in every step 64 of each task before, as in the authors' scripts. On Omniglot those
  would be 3,136 old samples beside 256 new ones in the end; there a step meets 64 of all tasks together (`mixed`).

On CUB-200 and Tiny-ImageNet the values belong to another scale of importance (see `importance`); AF-S has equal
weights everywhere but on CIFAR.
Digits: ours, chosen on seeds 100 to 109, which no reported number uses. For Progress & Compress, of eleven values
from 1e4 to 1e10; 3e8, 1e9 and 1e10 differ by about a standard error.
"""

from __future__ import annotations

from typing import Any

from kenyon.methods.method import ReplayForm

Values = dict[str, float | str]


def _family(
    *,
    ewc: float,
    mas: float,
    si: float | None,
    rwalk: float | None,
    cpr_ewc: tuple[float, float] | None,
    cpr_mas: tuple[float, float] | None,
    agscl: tuple[float, float, float] | None,
    pnc: float | None,
    pnc_reinit: bool = True,
    caf_ewc: tuple[float, float, float],
    caf_mas: tuple[float, float, float],
    icl: tuple[float, float] | None = None,
    memory: int = 20,
    replay: ReplayForm | None = None,
    fisher: str | None = None,
    omega: str | None = None,
    afs: str | None = None,
) -> dict[str, Values]:
    """All methods of a benchmark from its values: lambda_sp; (lambda_sp, lambda_cpr); (lambda_sp, lambda_af, gamma);
    AGS-CL has (lambda_sp, mu, rho).

    `icl` has lambda_sp on EWC and on MAS; left out, it is that of CAF. None elsewhere: not published, and the method
    takes its values from `--set`. `pnc_reinit`: whether its column begins every task anew. `fisher`, `omega`, `afs`:
    the forms that differ from the methods' defaults, like `replay`.
    """
    sp_ewc, af_ewc, gamma_ewc = caf_ewc
    sp_mas, af_mas, gamma_mas = caf_mas
    family: dict[str, Values] = {
        "ewc": {"lambda_sp": ewc},
        "mas": {"lambda_sp": mas},
        "ewc-af1": {"lambda_sp": ewc, "lambda_af": 1e-6},
        "ewc-af2": {"lambda_sp": ewc, "lambda_af": 1.0},
        "mas-af1": {"lambda_sp": mas, "lambda_af": 1e-6},
        "mas-af2": {"lambda_sp": mas, "lambda_af": 1.0},
        "mcl-ewc": {"lambda_sp": sp_ewc},
        "mcl-mas": {"lambda_sp": sp_mas},
        "icl-ewc": {"lambda_sp": icl[0] if icl else sp_ewc},
        "icl-mas": {"lambda_sp": icl[1] if icl else sp_mas},
        "caf-ewc": {"lambda_sp": sp_ewc, "lambda_af": af_ewc, "gamma": gamma_ewc},
        "caf-mas": {"lambda_sp": sp_mas, "lambda_af": af_mas, "gamma": gamma_mas},
        "joint-af1": {"lambda_af": 1e-6},
        "joint-caf": {"lambda_af": af_ewc, "gamma": gamma_ewc},
        "er": {"memory": memory},
        **({} if si is None else {"si": {"lambda_sp": si}}),
        **({} if rwalk is None else {"rwalk": {"lambda_sp": rwalk}}),
        **({} if cpr_ewc is None else {"cpr-ewc": {"lambda_sp": cpr_ewc[0], "lambda_cpr": cpr_ewc[1]}}),
        **({} if cpr_mas is None else {"cpr-mas": {"lambda_sp": cpr_mas[0], "lambda_cpr": cpr_mas[1]}}),
        **({} if agscl is None else {"agscl": dict(zip(("lambda_sp", "mu", "rho"), agscl, strict=True))}),
        **({} if pnc is None else {"pnc": {"lambda_sp": pnc}}),
    }
    if replay is not None:
        family["er"]["replay"] = replay
    if not pnc_reinit:
        family["pnc"]["reinit"] = False
    for method, values in family.items():
        if fisher is not None and ("ewc" in method or method == "pnc"):
            values["fisher"] = fisher
        if omega is not None and "mas" in method:
            values["omega"] = omega
            if omega == "core50":
                values["accumulate"] = "average"
        if afs is not None and "caf" in method:
            values["afs"] = afs
    return family


def _cifar(*, ewc_af2: float, pnc_decay: float | None = None, **values: Any) -> dict[str, Values]:
    """`_family`, with the published forms of active forgetting; `ewc_af2` is the lambda_sp of AF-2 on EWC. Progress &
    Compress averages importances, unless `pnc_decay` says how they are summed.
    """
    family = _family(**values)
    if pnc_decay is not None:
        family["pnc"]["decay"] = pnc_decay
    for method in ("ewc-af1", "mas-af1", "caf-ewc", "caf-mas"):
        family[method]["af1_heads"] = "open"
    family["mas-af1"]["from_first"] = True
    family["ewc-af2"] |= {"lambda_sp": ewc_af2, "af2_validated": False}
    family["mas-af2"] |= {"af2_validated": False}
    return family


HYPERPARAMETERS: dict[str, dict[str, Values]] = {
    "digits": _family(
        ewc=1e6,
        mas=10,
        si=1,
        rwalk=3,
        cpr_ewc=(1e6, 0.1),
        cpr_mas=(10, 0.5),
        agscl=(5, 1, 0.5),
        pnc=1e9,
        caf_ewc=(1e6, 1e-6, 0.02),
        caf_mas=(10, 1e-6, 0.02),
        icl=(1e6, 1),
        memory=2,
    ),
    "s-cifar-100": _cifar(
        ewc=25000,
        ewc_af2=40000,
        mas=16,
        si=10,
        rwalk=128,
        cpr_ewc=(25000, 1.5),
        cpr_mas=(16, 1.5),
        agscl=(3200, 10, 0.3),
        pnc=50000,
        caf_ewc=(10000, 1e-8, 0.01),
        caf_mas=(8, 1e-8, 0.02),
    ),
    "r-cifar-100": _cifar(
        ewc=25000,
        ewc_af2=10000,
        mas=4,
        si=10,
        rwalk=100,
        cpr_ewc=(10000, 1.5),
        cpr_mas=(4, 1.5),
        agscl=(1600, 10, 0.3),
        pnc=1000,
        pnc_decay=1.0,
        caf_ewc=(10000, 1e-8, 0.02),
        caf_mas=(4, 1e-8, 0.02),
    ),
    "r-cifar-10-100": _cifar(
        ewc=25000,
        ewc_af2=25000,
        mas=4,
        si=8,
        rwalk=40,
        cpr_ewc=(25000, 0.5),
        cpr_mas=(4, 0.2),
        agscl=(7000, 20, 0.2),
        pnc=50000,
        caf_ewc=(10000, 1e-8, 0.02),
        caf_mas=(8, 1e-8, 0.02),
    ),
    **dict.fromkeys(
        ("omniglot", "omniglot-clean"),
        _family(
            ewc=5e6,
            mas=4,
            si=10,
            rwalk=70,
            cpr_ewc=(5e6, 0.2),
            cpr_mas=(4, 0.2),
            agscl=(1000, 7, 0.5),
            pnc=1e7,
            caf_ewc=(5e6, 1e-12, 0.05),
            caf_mas=(32, 1e-12, 0.05),
            replay="mixed",
            afs="uniform",
        ),
    ),
    "cub-200": _family(
        ewc=2,
        mas=0.01,
        si=0.4,
        rwalk=25,
        cpr_ewc=(2, 0.001),
        cpr_mas=(0.01, 0.001),
        agscl=(1e-3, 1e-2, 0.1),
        pnc=10,
        pnc_reinit=False,
        caf_ewc=(5, 1e-8, 0.001),
        caf_mas=(0.05, 1e-9, 0.001),
        fisher="large",
        omega="large",
        afs="uniform",
    ),
    "tiny-imagenet": _family(
        ewc=40,
        mas=0.5,
        si=0.8,
        rwalk=5,
        cpr_ewc=(40, 0.5),
        cpr_mas=(0.5, 0.01),
        agscl=(0.1, 1e-3, 0.1),
        pnc=80,
        caf_ewc=(320, 1e-4, 0.001),
        caf_mas=(0.5, 1e-8, 0.001),
        fisher="large",
        omega="large",
        afs="uniform",
    ),
    "core50": _family(
        ewc=100,
        mas=0.01,
        si=0.4,
        rwalk=None,
        cpr_ewc=None,
        cpr_mas=None,
        agscl=None,
        pnc=None,
        caf_ewc=(100, 1e-6, 0.1),
        caf_mas=(0.01, 1e-6, 0.1),
        fisher="core50",
        omega="core50",
        afs="uniform",
    ),
}
