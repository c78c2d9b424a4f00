"""The paper's analyses of a trained model: what lies behind an accuracy."""

from kenyon.analysis.catalog import ANALYSES, Analysis, find_analysis
from kenyon.analysis.change import Change, change
from kenyon.analysis.discrepancy import Discrepancy, DiscrepancySettings, discrepancy
from kenyon.analysis.diversity import Diversity, Expertise, diversity, learners_expertise
from kenyon.analysis.flatness import Flatness, FlatnessSettings, flatness
from kenyon.analysis.gradcam import GradCam, GradCamSettings, grad_cam
from kenyon.analysis.model import Model
from kenyon.analysis.pertask import PerTask, final_accuracy, per_task
from kenyon.analysis.store import analyse, compare

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
