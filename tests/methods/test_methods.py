"""The built-in methods: what each is, restated from its publication in the forms that results are published in."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, Literal

import pytest
import torch

from kenyon.benchmarks.registry import find_benchmark
from kenyon.errors import ConfigError
from kenyon.methods import LEARNERS, METHODS, Method, MethodSpec, find_method, method
from kenyon.methods.active_forgetting import ExpandedNetwork
from kenyon.methods.agscl import GroupSparsity
from kenyon.methods.base import Replay
from kenyon.methods.distillation import Distillation
from kenyon.methods.importance import (
    GradientImportance,
    fisher_core50,
    fisher_exact,
    fisher_large,
    fisher_published,
    mas,
    mas_core50,
    mas_large,
    mean_cross_entropy,
    summed_output_norm,
)
from kenyon.methods.path_importance import PathImportance, WalkImportance
from kenyon.methods.penalties.weights import (
    ActiveForgetting1,
    ActiveForgetting2,
    Confidence,
    Divergence,
    Predictions,
    StabilityProtection,
    Strength,
)
from kenyon.methods.progress_compress import PROGRESS, ActiveColumn, compress
from kenyon.methods.registry import FAMILIES, colors, place
from kenyon.models import Net

# Every strength is another number, so that one in another's place is seen.
GIVEN = {"lambda_sp": 3.0, "lambda_af": 5.0, "gamma": 7.0, "lambda_cpr": 11.0, "mu": 13.0, "rho": 0.5}
PROTECT = StabilityProtection(3.0, factor=0.5)
PROTECT_WHOLE = StabilityProtection(3.0, factor=1.0)
FISHER = GradientImportance("fisher_published", mean_cross_entropy, 20, True, 20.0, True, "average")
OMEGA = GradientImportance("mas", summed_output_norm, 20, False, 1.0, True, "sum")
DECAY = ActiveForgetting1(5.0, adaptive=False, heads="current", of_learners=False)
EXPAND = ActiveForgetting2(5.0, validated=True)
FORGET = ActiveForgetting1(5.0, adaptive=True, heads="current", of_learners=False)
DIVERGE = Divergence(7.0, adaptive=True, form="published")
NETWORK = (ExpandedNetwork(FISHER, waits=False),)
EXPECTED = {
    "finetune": Method(),
    "random-init": Method(schedule="restart"),
    "joint": Method(schedule="joint"),
    "discrete": Method(schedule="discrete"),
    "ewc": Method(FISHER, (PROTECT,)),
    "mas": Method(OMEGA, (PROTECT,)),
    "si": Method(PathImportance("si", 0.01, "sum"), (PROTECT_WHOLE,)),
    "rwalk": Method(WalkImportance("rwalk", "published", 0.9, 0.01, "last"), (PROTECT_WHOLE,)),
    "cpr-ewc": Method(FISHER, (PROTECT, Confidence(11.0))),
    "cpr-mas": Method(OMEGA, (PROTECT, Confidence(11.0))),
    "agscl": Method(mechanisms=(GroupSparsity(3.0, 13.0, 0.5, 0.9),)),
    "lwf": Method(penalties=(Distillation(1.0, 2.0),)),
    "pnc": Method(FISHER, (PROTECT,), (ActiveColumn(True),), (PROGRESS, compress(1.0))),
    "er": Method(replay=Replay(20, 64, "published")),
    "ewc-af1": Method(FISHER, (PROTECT, DECAY)),
    "mas-af1": Method(OMEGA, (PROTECT, DECAY), from_first=False),
    "ewc-af2": Method(FISHER, (PROTECT, EXPAND), NETWORK),
    "mas-af2": Method(OMEGA, (PROTECT, EXPAND), NETWORK),
    "mcl-ewc": Method(FISHER, (PROTECT,), multi=True),
    "mcl-mas": Method(OMEGA, (PROTECT,), multi=True),
    "icl-ewc": Method(FISHER, (PROTECT,), multi=True, apart=True),
    "icl-mas": Method(OMEGA, (PROTECT,), multi=True, apart=True),
    "caf-ewc": Method(FISHER, (PROTECT, FORGET, DIVERGE), multi=True),
    "caf-mas": Method(OMEGA, (PROTECT, FORGET, DIVERGE), multi=True),
    "joint-af1": Method(penalties=(DECAY,), schedule="joint", from_first=True),
    "joint-mcl": Method(schedule="joint", multi=True),
    "joint-caf": Method(penalties=(FORGET, DIVERGE), schedule="joint", multi=True, from_first=True),
}


def made(name: str, **options: Any) -> Method:
    spec = find_method(name)
    return spec({strength: GIVEN[strength] for strength in spec.required} | options)


def test_there_are_no_others() -> None:
    assert {name for name, spec in METHODS.items() if spec.build.__module__.startswith("kenyon.")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_methods_in_their_published_forms(name: str) -> None:
    expected = EXPECTED[name]
    assert made(name) == expected
    spec = find_method(name)
    assert (spec.multi, spec.apart, spec.schedule) == (expected.multi, expected.apart, expected.schedule)
    assert spec.learners == made(name).learners == (LEARNERS if expected.multi else 1)
    assert spec.keeps_samples == (name == "er") and made(name).active_column == (name == "pnc")
    assert set(made(name).parameter_penalties) | set(made(name).prediction_penalties) == set(made(name).penalties)
    assert spec.summary == (spec.build.__doc__ or "").splitlines()[0] and spec.summary


@pytest.mark.parametrize("name", [n for n in EXPECTED if n.endswith("ewc") or n.startswith("ewc") or n == "pnc"])
def test_every_fisher_information_may_be_that_of_ewc(name: str) -> None:
    for variant, importance in (
        ("published", fisher_published),
        ("exact", fisher_exact),
        ("large", fisher_large),
        ("core50", fisher_core50),
    ):
        assert made(name, fisher=variant).importance == importance()
        assert made(name, fisher=variant, accumulate="last").importance == importance("last")
    with pytest.raises(ConfigError, match="fisher variant called 'small'"):
        made(name, fisher="small")


@pytest.mark.parametrize("name", [n for n in EXPECTED if n.endswith("mas") or n.startswith("mas")])
def test_every_omega_may_be_that_of_mas(name: str) -> None:
    for variant, importance in (("published", mas), ("large", mas_large), ("core50", mas_core50)):
        assert made(name, omega=variant).importance == importance("sum")
        assert made(name, omega=variant, accumulate="average").importance == importance("average")
    with pytest.raises(ConfigError, match="omega variant called 'small'"):
        made(name, omega="small")


@pytest.mark.parametrize("name", ["caf-ewc", "caf-mas", "joint-caf"])
def test_forms_of_forgetting_in_several_learners(name: str) -> None:
    base, protect = EXPECTED[name], EXPECTED[name].penalties[:-2]
    for af1, forget in (
        ("learner", replace(FORGET, of_learners=True)),
        ("uniform", replace(FORGET, adaptive=False)),
        ("adaptive", FORGET),
    ):
        assert made(name, af1=af1) == replace(base, penalties=(*protect, forget, DIVERGE))
    for options, diverge in (
        ({"afs": "uniform"}, replace(DIVERGE, adaptive=False)),
        ({"afs_form": "paper"}, replace(DIVERGE, form="paper")),
    ):
        assert made(name, **options) == replace(base, penalties=(*protect, FORGET, diverge))
    for option in ("af1", "afs", "afs_form"):
        with pytest.raises(ConfigError, match=f"{option} must be .* not 'none of these'"):
            made(name, **{option: "none of these"})


@pytest.mark.parametrize("heads", ["all", "open", "none"])
@pytest.mark.parametrize("name", ["ewc-af1", "mas-af1", "caf-ewc", "caf-mas"])
def test_heads_that_decay(name: str, heads: str) -> None:
    _, forgetting, *_ = made(name, af1_heads=heads).penalties
    assert isinstance(forgetting, ActiveForgetting1) and forgetting.heads == heads


@pytest.mark.parametrize("name", ["ewc-af2", "mas-af2"])
def test_forms_of_the_expanded_network(name: str) -> None:
    """It is measured by the Fisher information in the scale of the importance that protects, also on MAS."""
    base = EXPECTED[name]
    assert made(name, af2_validated=False).penalties == (PROTECT, replace(EXPAND, validated=False))
    assert made(name, af2_first="waits").mechanisms == (replace(NETWORK[0], waits=True),)
    option = "omega" if "mas" in name else "fisher"
    scales = {"large": fisher_large(), "core50": fisher_core50(), "published": fisher_published()}
    for scale, importance in (scales | ({} if "mas" in name else {"exact": fisher_published()})).items():
        assert made(name, **{option: scale}).mechanisms == (replace(base.mechanisms[0], importance=importance),)  # type: ignore[type-var]
    with pytest.raises(ConfigError, match="af2_first must be learned or waits, not 'later'"):
        made(name, af2_first="later")


def test_mechanisms_are_published_forms_unless_told_otherwise() -> None:
    assert ActiveColumn() == ActiveColumn(reinit=True)
    assert ExpandedNetwork() == NETWORK[0] and not ExpandedNetwork(fisher_published()).waits
    assert GroupSparsity(1.0, 2.0, 0.5) == GroupSparsity(1.0, 2.0, 0.5, eta=0.9)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ((-1, 1, 0.5), "lambda_sp must be a finite number, 0 or larger, not -1"),
        ((1, float("inf"), 0.5), "mu must be a finite number, 0 or larger"),
        ((1, 1, 1.5), "rho must be between 0 and 1, not 1.5"),
        ((1, 1, 0.5, -0.1), "eta must be between 0 and 1, not -0.1"),
        ((1, 1, float("nan")), "rho must be between 0 and 1"),
    ],
)
def test_impossible_settings_of_agscl_are_refused(settings: tuple[float, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        GroupSparsity(*settings)
    GroupSparsity(0, 0, 1, 1)


def test_forms_of_others() -> None:
    assert made("mas-af1", from_first=True) == replace(EXPECTED["mas-af1"], from_first=True)
    assert made("rwalk", rwalk_form="paper").importance == WalkImportance(form="paper")
    assert made("er", memory=3, replay_batch=5, replay="mixed") == Method(replay=Replay(3, 5, "mixed"))
    assert made("agscl", eta=0.25).mechanisms == (GroupSparsity(3.0, 13.0, 0.5, 0.25),)


def test_forms_of_progress_and_compress() -> None:
    """`decay` sums importances that are forgotten; `accumulate` takes its place."""
    assert made("pnc", reinit=False).mechanisms == (ActiveColumn(False),)
    assert made("pnc", temperature=2).stages == (PROGRESS, compress(2.0))
    assert made("pnc", decay=1).importance == fisher_published(1.0)
    assert made("pnc", decay=0.25, fisher="exact").importance == fisher_exact(0.25)
    assert made("pnc", decay=0.25, accumulate="sum").importance == fisher_published("sum")
    for temperature in (0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="temperature must be a positive number"):
            made("pnc", temperature=temperature)


@pytest.mark.parametrize(
    ("name", "batch", "square", "numerator", "dropout"),
    [
        ("fisher_published", 20, True, 20, True),
        ("fisher_large", 20, True, 64 * 64, True),
        ("fisher_core50", 32, True, 32, False),
        ("fisher_exact", 1, True, 1, False),
        ("mas", 20, False, 1, True),
        ("mas_large", 20, False, 64, True),
        ("mas_core50", 32, True, 32, False),
    ],
)
def test_definitions_of_importance(name: str, batch: int, square: bool, numerator: float, dropout: bool) -> None:
    """The table that the module begins with: of g, numerator * g^2 or |g| of batches, with or without dropout."""
    makers = (fisher_published, fisher_large, fisher_core50, fisher_exact, mas, mas_large, mas_core50)
    [found] = [maker() for maker in makers if maker().name == name]
    assert (found.batch, found.dropout, found.penalised) == (batch, dropout, name == "fisher_large")
    assert found.objective is (mean_cross_entropy if "fisher" in name else summed_output_norm)
    g = torch.tensor([-3.0, 0.5])
    assert found.reduce(g).tolist() == [numerator * (x * x if square else abs(x)) for x in (-3.0, 0.5)]


def test_values_to_begin_with() -> None:
    """The geometric mean, in about one digit, of what serves digits and R-CIFAR-100 (RWalk and P&C: of the authors'
    scripts and of the paper's table); lambda_sp on EWC and MAS lies where more data were tried.
    """
    between = {
        "si": {"lambda_sp": (1, 10)},
        "rwalk": {"lambda_sp": (3, 6)},
        "pnc": {"lambda_sp": (1e9, 20000)},
        "cpr-ewc": {"lambda_cpr": (0.1, 1.5)},
        "cpr-mas": {"lambda_cpr": (0.5, 1.5)},
        "agscl": {"lambda_sp": (5,), "mu": (1,), "rho": (0.5,)},  # those of digits
        **{name: {"lambda_af": (1e-6,)} for name in ("ewc-af1", "mas-af1")},
        **{name: {"lambda_af": (1,)} for name in ("ewc-af2", "mas-af2")},
        **{name: {"lambda_af": (1e-6, 1e-8), "gamma": (0.02, 0.02)} for name in ("caf-ewc", "caf-mas")},
    }
    protects = {name for name in EXPECTED if "ewc" in name or "mas" in name}
    defaults = {name: METHODS[name].defaults for name in EXPECTED if METHODS[name].defaults}
    assert set(defaults) == protects | {"si", "rwalk", "agscl", "pnc"}
    for name, values in defaults.items():
        expected: dict[str, tuple[float, ...]] = dict(between.get(name, {}))
        if name in protects:
            expected["lambda_sp"] = (1e4,) if "ewc" in name else (3,)
        assert set(values) == set(expected) == set(find_method(name).required)
        for setting, chosen in expected.items():
            assert values[setting] == pytest.approx(prod(chosen) ** (1 / len(chosen)), rel=0.12)
        find_method(name)(values)


def made_of(word: Literal["one", "two"], count: int, on: bool, name: str, strength: Strength, other=None):  # type: ignore[no-untyped-def]
    return Method(multi=(word, count, on, name, strength, other) == ("one", 1, False, "", 0.0, None))


def picky(strength: Strength) -> Method:
    raise ValueError("strength must be above 0")


def broken() -> Method:
    raise ValueError("always")


def test_an_example_of_a_method_is_made_of_values_that_few_refuse() -> None:
    """The first word, 1, False, an empty text and a strength of 0."""
    spec = MethodSpec("made-of", "", made_of)
    assert spec.example == Method(multi=True)
    assert spec.required == ("word", "count", "on", "name", "strength") and spec.strengths == ("strength",)
    assert spec.kinds == {"word": str, "count": int, "on": bool, "name": str, "strength": float}


def test_of_a_method_that_refuses_them_nothing_is_known() -> None:
    spec = MethodSpec("picky", "", picky)
    assert spec.example == Method(multi=True) and (spec.schedule, spec.learners) == ("sequential", LEARNERS)
    with pytest.raises(ValueError, match="always"):  # it has no values that could have been better
        _ = MethodSpec("broken", "", broken).example


def test_settings_that_a_method_does_not_have_or_lacks_are_named() -> None:
    with pytest.raises(ConfigError, match=r"no hyper-parameter of ewc called 'lambda_s'.*lambda_sp"):
        find_method("ewc")({"lambda_sp": 1.0, "lambda_s": 2.0})
    with pytest.raises(ConfigError, match="no hyper-parameter of finetune called 'rate'"):
        find_method("finetune")({"rate": 1.0})
    with pytest.raises(ConfigError, match=r"caf-ewc needs lambda_af, gamma: give --set lambda_af=VALUE --set gamma"):
        find_method("caf-ewc")({"lambda_sp": 1.0})
    name: Any
    for name in ("caf-ewx", 5, None, ["ewc"]):
        with pytest.raises(
            ConfigError, match=r"(no method called|by its name in quotes).*One of your own goes by its file"
        ):
            find_method(name)


def test_a_summary_is_the_first_line_of_the_documentation() -> None:
    def nameless() -> Method:
        return Method()

    def named_so_by_a_test() -> Method:
        """First.

        Second.
        """
        return Method()

    for build, summary in ((nameless, ""), (named_so_by_a_test, "First.")):
        assert method(build) is build and METHODS[build.__name__.replace("_", "-")].summary == summary


def test_replay_has_the_values_of_the_authors_scripts() -> None:
    assert Replay() == Replay(memory=20, batch=64, form="published")
    with pytest.raises(ConfigError, match="replay must be published or mixed, not 'all'"):
        Replay(form="all")  # type: ignore[arg-type]


def test_a_method_declares_itself() -> None:
    """A name, what it is, defaults, and definitions, in one place; `@method` alone goes on working."""

    @method(name="declared-by-a-test", family="replay", cite="Somebody 2020", defaults={"a": 2.0}, color="#123456")
    def other_name(a: Strength, form: Literal["one", "two"] = "one") -> Method:
        """First."""
        return Method()

    spec = METHODS["declared-by-a-test"]
    assert (spec.summary, spec.family, spec.cite, spec.defaults) == ("First.", "replay", "Somebody 2020", {"a": 2.0})
    assert spec.build is other_name and spec.settings == ("a", "form") and colors()[spec.name] == "#123456"
    assert place("er") < place(spec.name) < place("discrete") < place("not known yet") < place("p")
    with pytest.raises(TypeError, match="colour"):
        method(colour="red")(other_name)


@pytest.mark.parametrize("name", EXPECTED)
def test_families_and_colors(name: str) -> None:
    spec = METHODS[name]
    assert spec.family in FAMILIES and set(spec.defaults) <= set(spec.hyperparameters)
    assert list(METHODS)[: len(EXPECTED)] == sorted(EXPECTED, key=place)
    assert spec.color is None or [*colors().values()].count(spec.color) == 1


PAPER_DIVERGE = replace(DIVERGE, form="paper")
BY_LEARNER = replace(FORGET, heads="none", of_learners=True)
ON_EWC = ("ewc", "mcl-ewc", "icl-ewc", "cpr-ewc", "pnc")
DEFINED = {
    "paper": {
        **{name: replace(EXPECTED[name], importance=fisher_exact("sum")) for name in ON_EWC},
        "rwalk": replace(EXPECTED["rwalk"], importance=WalkImportance(form="paper")),
        "mas": EXPECTED["mas"],
        "ewc-af1": Method(fisher_exact("sum"), (PROTECT, replace(DECAY, heads="none"))),
        "caf-ewc": Method(fisher_exact("sum"), (PROTECT, BY_LEARNER, PAPER_DIVERGE), multi=True),
        "caf-mas": Method(OMEGA, (PROTECT, BY_LEARNER, PAPER_DIVERGE), multi=True),
        "joint-caf": replace(EXPECTED["joint-caf"], penalties=(replace(BY_LEARNER, heads="current"), PAPER_DIVERGE)),
    },
    "authors": {
        **{name: EXPECTED[name] for name in ("ewc", "mas", "rwalk", "mcl-mas", "icl-ewc", "joint-caf")},
        "mas-af1": Method(OMEGA, (PROTECT, replace(DECAY, heads="open")), from_first=True),
        "ewc-af2": Method(FISHER, (PROTECT, replace(EXPAND, validated=False)), (ExpandedNetwork(FISHER, True),)),
        "caf-ewc": Method(FISHER, (PROTECT, replace(FORGET, heads="all"), DIVERGE), multi=True),
        "caf-mas": Method(
            OMEGA, (PROTECT, replace(FORGET, heads="all"), replace(DIVERGE, adaptive=False)), multi=True
        ),
    },
}


@pytest.mark.parametrize(("definition", "name"), [(d, name) for d, some in DEFINED.items() for name in some])
def test_definitions(definition: str, name: str) -> None:
    assert made(name, definition=definition) == DEFINED[definition][name]
    assert made(name, definition="published") == made(name)


@pytest.mark.parametrize("benchmark", ["digits", "r-cifar-100", "omniglot", "cub-200", "core50"])
def test_definitions_on_benchmarks(benchmark: str) -> None:
    """What is published is the default; the others replace the forms of a benchmark and leave its strengths."""
    for name, values in find_benchmark(benchmark).hyperparameters.items():
        spec = METHODS[name]
        assert spec.resolve({"definition": "published"} if spec.definitions else {}, values) == values
        for definition, switched in spec.definitions.items():
            if isinstance(switched, str):
                with pytest.raises(ConfigError, match=f"{name} has no definition {definition}: {switched}"):
                    spec.resolve({"definition": definition}, values)
                continue
            assert set(switched) <= set(spec.hyperparameters) - set(spec.required)
            resolved = spec.resolve({"definition": definition}, values)
            assert spec(resolved) == spec({**values, **switched})
            assert "definition" not in resolved and all(resolved[n] == values[n] for n in values if n not in switched)
            for switch in switched:  # a single one wins
                assert spec.resolve({"definition": definition, switch: "mine"}, values)[switch] == "mine"


def test_definitions_that_there_are_not() -> None:
    definition: Any
    for definition, said in (("scripts", "must be published, paper, authors, not 'scripts'"), (3, "not 3")):
        with pytest.raises(ConfigError, match=said):
            made("ewc", definition=definition)
    with pytest.raises(ConfigError, match="no hyper-parameter of si called 'definition'"):
        made("si", definition="paper")


class Own:
    """A penalty on predictions in the form of version 0.1."""

    strength, validated, needs_own = 1.0, False, True

    def learned(self, net: Net) -> dict[str, tuple[int, ...]]:
        return {}

    def value(self, p: Predictions) -> torch.Tensor:
        return p.weight.sum(-1)


class Needy(Own):
    needs = frozenset({"teacher"})


class Confused(Own):
    needs = frozenset({"techer"})


def test_penalties_name_what_they_need() -> None:
    assert Method(penalties=(DIVERGE,)).needs == Method(penalties=(Own(),)).needs == {"learner_outputs"}
    assert Method(penalties=(Confidence(1.0), PROTECT)).needs == frozenset()
    assert Method(penalties=(Needy(), DIVERGE)).needs == {"teacher", "learner_outputs"}
    with pytest.raises(ConfigError, match=r"needs 'techer'\. It may need learner_outputs and teacher"):
        Method(penalties=(Confused(),))
