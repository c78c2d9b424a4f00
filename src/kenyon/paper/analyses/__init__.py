"""The paper's analyses of trained networks.

An analysis is a value of `Analysis` in the file of what it computes; `ANALYSES` has them by name.
"""

from kenyon.errors import unknown
from kenyon.paper.analyses.analysis import Analysis, analyse, compare
from kenyon.paper.analyses.discrepancy import DISCREPANCY, Discrepancy, DiscrepancySettings, discrepancy
from kenyon.paper.analyses.flatness import FLATNESS, Flatness, FlatnessSettings, flatness
from kenyon.paper.analyses.gradcam import GRADCAM, GradCam, GradCamSettings, grad_cam
from kenyon.paper.analyses.model import Model
from kenyon.paper.analyses.outcomes import (
    CHANGE,
    DIVERSITY,
    EXPERTISE,
    PERTASK,
    Change,
    Diversity,
    Expertise,
    PerTask,
    change,
    diversity,
    final_accuracy,
    learners_expertise,
    per_task,
)

ANALYSES: dict[str, Analysis] = {
    a.name: a for a in (PERTASK, DIVERSITY, EXPERTISE, DISCREPANCY, FLATNESS, CHANGE, GRADCAM)
}


def find_analysis(name: str) -> Analysis:
    """Return the analysis of that name, or raise an error that names the nearest ones."""
    if name not in ANALYSES:
        raise unknown("analysis", name, [*ANALYSES, "all"])
    return ANALYSES[name]


__all__ = [
    "ANALYSES",
    "Analysis",
    "Change",
    "Discrepancy",
    "DiscrepancySettings",
    "Diversity",
    "Expertise",
    "Flatness",
    "FlatnessSettings",
    "GradCam",
    "GradCamSettings",
    "Model",
    "PerTask",
    "analyse",
    "change",
    "compare",
    "discrepancy",
    "diversity",
    "final_accuracy",
    "find_analysis",
    "flatness",
    "grad_cam",
    "learners_expertise",
    "per_task",
]
