"""The paper's analyses of a trained model: what lies behind an accuracy."""

from kenyon.paper.analyses.catalog import ANALYSES, Analysis, find_analysis
from kenyon.paper.analyses.discrepancy import Discrepancy, DiscrepancySettings, discrepancy
from kenyon.paper.analyses.flatness import Flatness, FlatnessSettings, flatness
from kenyon.paper.analyses.gradcam import GradCam, GradCamSettings, grad_cam
from kenyon.paper.analyses.model import Model
from kenyon.paper.analyses.outcomes import (
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
from kenyon.paper.analyses.store import analyse, compare

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
