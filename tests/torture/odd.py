"""Values that nobody means, for every argument of the estimator."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kenyon import ContinualLearner
from tests.estimator.small import Data, blobs, quick
from tests.torture.fuzzing import Failure, accepted

Make = Callable[[], Any]


class Hostile:
    """Nothing can be asked of it."""

    def __repr__(self) -> str:
        raise RuntimeError("no")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no")

    __hash__ = None  # type: ignore[assignment]


VALUES: dict[str, Make] = {
    "None": lambda: None,
    "{}": dict,
    "[]": list,
    "()": tuple,
    "set": set,
    "empty text": str,
    "text": lambda: "nonsense",
    "control characters": lambda: "\x1b[31m\0\n",
    "lone surrogate": lambda: "\ud800",
    "long text": lambda: "x" * 100_000,
    "bytes": lambda: b"abc",
    "-1": lambda: -1,
    "0": lambda: 0,
    "1": lambda: 1,
    "2**31": lambda: 2**31,
    "2**63": lambda: 2**63,
    "2**70": lambda: 2**70,
    "-2**70": lambda: -(2**70),
    "10**5000": lambda: 10**5000,
    "0.0": lambda: 0.0,
    "-0.5": lambda: -0.5,
    "1e-320": lambda: 1e-320,
    "1e308": lambda: 1e308,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "-inf": lambda: -float("inf"),
    "True": lambda: True,
    "complex": lambda: 1j,
    "object": object,
    "hostile": Hostile,
    "class": lambda: int,
    "function": lambda: lambda: None,
    "generator": lambda: (i for i in range(3)),
    "array": lambda: np.arange(3),
    "0-d array": lambda: np.array(0.5),
    "int64": lambda: np.int64(1),
    "float32": lambda: np.float32(0.5),
    "float16": lambda: np.float16(0.5),
    "bool_": lambda: np.bool_(True),
    "numpy str": lambda: np.str_("ewc"),
    "tensor": lambda: torch.tensor(0.5),
    "tensor of several": lambda: torch.ones(3),
    "meta tensor": lambda: torch.ones((), device="meta"),
    "path": lambda: Path("nowhere"),
    "module class": lambda: torch.nn.Linear,
    "dtype": lambda: torch.float16,
    "device": lambda: torch.device("meta"),
    "cuda:99": lambda: "cuda:99",
    "list of lists": lambda: [[1, [2]]],
    "dictionary": lambda: {"lambda_sp": "high", 3: None},
    "own key": lambda: {"nonsense": 1},
    "nan setting": lambda: {"lambda_sp": float("nan")},
}  # fmt: skip


def sparse(x: Any) -> Any:
    import scipy.sparse

    return scipy.sparse.csr_matrix(x)


def nested(x: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([x[:2], x[2:5]])


def jagged(x: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([x[:2], x[2:5]], layout=torch.jagged)


def quantized(x: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)


def recursive() -> Any:
    found: list[Any] = []
    found.append(found)
    return found


def structured(x: Any) -> Any:
    found = np.zeros(len(x), dtype=[("a", "f4"), ("b", "U3")])
    found["a"] = x[:, 0]
    return found


class Liar:
    """Says that it is an array."""

    shape, ndim, dtype = (60, 6), 2, np.dtype("f4")

    def __len__(self) -> int:
        return 60

    def __array__(self, *what: Any, **more: Any) -> Any:
        raise RuntimeError("no")


# Of good inputs X (60, 6) float32 and as many labels.
INPUTS: dict[str, Callable[[Any], Any]] = {
    **{name: (lambda x, make=make: make()) for name, make in VALUES.items()},
    "lists": lambda x: x.tolist(),
    "ragged lists": lambda x: [[1.0], *x.tolist()[1:]],
    "recursive": lambda x: recursive(),
    "float16": lambda x: x.astype(np.float16),
    "float64": lambda x: x.astype(np.float64),
    "longdouble": lambda x: x.astype(np.longdouble),
    "too large for float32": lambda x: x.astype(np.float64) * 1e300,
    "uint8": lambda x: x.astype(np.uint8),
    "uint16": lambda x: x.astype(np.int64).astype(np.uint16),
    "uint64": lambda x: x.astype(np.int64).astype(np.uint64),
    "int64 beyond float32": lambda x: x.astype(np.int64) + 2**60,
    "bools": lambda x: x > 0,
    "complex numbers": lambda x: x.astype(np.complex64),
    "objects": lambda x: x.astype(object),
    "objects, odd": lambda x: np.array([[object()] * 6] * len(x), dtype=object),
    "objects with None": lambda x: np.where(x > 0, None, x.astype(object)),
    "texts": lambda x: x.astype(str),
    "bytes texts": lambda x: x.astype("S"),
    "words": lambda x: np.full(x.shape, "word"),
    "datetimes": lambda x: x.astype("i8").astype("M8[s]"),
    "timedeltas": lambda x: x.astype("i8").astype("m8[s]"),
    "structured": structured,
    "records": lambda x: structured(x).view(np.recarray),
    "void": lambda x: np.zeros(len(x), "V8"),
    "masked": lambda x: np.ma.masked_array(x, mask=x > 1),
    "masked nothing": lambda x: np.ma.masked_array(x),
    "matrix": lambda x: np.asmatrix(x) if hasattr(np, "asmatrix") else x,
    "0-d": lambda x: np.array(1.0),
    "1-d": lambda x: x[:, 0],
    "5-d": lambda x: x[:, :, None, None, None],
    "33-d": lambda x: x.reshape(60, 6, *([1] * 31)),
    "empty": lambda x: x[:0],
    "no columns": lambda x: x[:, :0],
    "one sample": lambda x: x[:1],
    "nan": lambda x: np.where(x > 1, np.nan, x),
    "inf": lambda x: np.where(x > 1, np.inf, x),
    "broadcast": lambda x: np.broadcast_to(x[:1], (60, 6)),
    "huge strides": lambda x: np.broadcast_to(np.float32(1), (2**40, 6)),
    "negative strides": lambda x: x[::-1, ::-1],
    "big endian": lambda x: x.astype(">f4"),
    "read only": lambda x: np.frombuffer(x.tobytes(), "f4").reshape(x.shape),
    "sparse matrix": sparse,
    "liar": lambda x: Liar(),
    "tensor": torch.from_numpy,
    "requires grad": lambda x: torch.from_numpy(x).requires_grad_(),
    "of a graph": lambda x: torch.from_numpy(x).requires_grad_() * 2,
    "meta": lambda x: torch.empty(60, 6, device="meta"),
    "meta bytes": lambda x: torch.empty(60, 1, 2, 3, device="meta", dtype=torch.uint8),
    "sparse": lambda x: torch.from_numpy(x).to_sparse(),
    "sparse rows": lambda x: torch.from_numpy(x).to_sparse_csr(),
    "complex tensor": lambda x: torch.from_numpy(x).to(torch.complex64),
    "conjugate": lambda x: torch.from_numpy(x).to(torch.complex64).conj(),
    "negated": lambda x: torch.from_numpy(x).to(torch.complex64).conj().imag,
    "quantized": lambda x: quantized(torch.from_numpy(x)),
    "bfloat16": lambda x: torch.from_numpy(x).bfloat16(),
    "half": lambda x: torch.from_numpy(x).half(),
    "float8": lambda x: torch.from_numpy(x).to(torch.float8_e4m3fn),
    "uint64 tensor": lambda x: torch.from_numpy(x.astype(np.int64).astype(np.uint64)),
    "uint16 tensor": lambda x: torch.from_numpy(x.astype(np.int64).astype(np.uint16)),
    "bool tensor": lambda x: torch.from_numpy(x > 0),
    "nested": lambda x: nested(torch.from_numpy(x)),
    "jagged": lambda x: jagged(torch.from_numpy(x)),
    "parameter": lambda x: torch.nn.Parameter(torch.from_numpy(x)),
    "inference tensor": lambda x: in_inference(x),
    "vmap leftover": lambda x: torch.from_numpy(x).expand(60, 6),
    "dictionary of columns": lambda x: {str(i): x[:, i] for i in range(6)},
    "dictionary of tensors": lambda x: {"input_ids": torch.from_numpy(x)},
    "tuple of three": lambda x: (x, x, x),
    "tuple of one": lambda x: (x,),
    "pairs": lambda x: [(row, 0) for row in x],
    "folder": lambda x: "nowhere at all",
    "zero in a path": lambda x: "a\0b",
    "dataset of nothing": lambda x: torch.utils.data.TensorDataset(torch.empty(0, 6), torch.empty(0)),
    "dataset of three": lambda x: torch.utils.data.TensorDataset(*[torch.from_numpy(x)] * 3),
    "dataset of meta": lambda x: torch.utils.data.TensorDataset(torch.empty(60, 6, device="meta"), torch.zeros(60)),
    "loader": lambda x: torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.from_numpy(x))),
    "failing dataset": lambda x: Failing(),
    "failing loader": lambda x: torch.utils.data.DataLoader(Failing()),
    "endless": lambda x: iter(int, 1),
}  # fmt: skip


class Failing(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> Any:
        raise TypeError("this dataset is broken")


def in_inference(x: Any) -> Any:
    with torch.inference_mode():
        return torch.from_numpy(x) * 1


def labels_of(name: str) -> Callable[[Any], Any]:
    """The odd inputs as labels: their first column, where they have one."""

    def make(y: Any) -> Any:
        if name in VALUES:
            return VALUES[name]()
        with suppress(TypeError, IndexError, ValueError, RuntimeError, AttributeError, NotImplementedError):
            return INPUTS[name](np.repeat(y[:, None].astype(np.float32), 6, 1))[:, 0]
        return INPUTS[name](np.repeat(y[:, None].astype(np.float32), 6, 1))

    return make


PARAMETERS = [name for name in inspect.signature(ContinualLearner).parameters if name != "verbose"]
METHODS = ("ewc", "caf-ewc")


def cases() -> Iterator[tuple[str, Callable[[], object]]]:
    """Every argument with every odd value: what it is called, and what to do."""
    x, y = blobs(0)
    for parameter in PARAMETERS:
        for name, make in VALUES.items():
            yield f"{parameter} = {name}", lambda p=parameter, m=make: begin(p, m())  # type: ignore[misc]
    learner = quick(epochs=1).fit(x, y, task="a")
    for name, change in INPUTS.items():
        yield f"fit X: {name}", lambda c=change: quick(epochs=1).fit(c(x), y)  # type: ignore[misc]
        yield f"fit X alone: {name}", lambda c=change: quick(epochs=1).fit(c(x))  # type: ignore[misc]
        yield f"fit test: {name}", lambda c=change: quick(epochs=1).fit(x, y, test=(c(x), y))  # type: ignore[misc]
        yield f"fit validation: {name}", lambda c=change: quick(epochs=1).fit(x, y, validation=c(x))  # type: ignore[misc]
        yield f"predict: {name}", lambda c=change: learner.predict(c(x))  # type: ignore[misc]
        yield f"predict_proba: {name}", lambda c=change: learner.predict_proba(c(x), task="a")  # type: ignore[misc]
        yield f"score: {name}", lambda c=change: learner.score(c(x), y)  # type: ignore[misc]
        of_labels = labels_of(name)
        yield f"fit y: {name}", lambda c=of_labels: quick(epochs=1).fit(x, c(y))  # type: ignore[misc]
        yield f"fit classes: {name}", lambda c=of_labels: quick(epochs=1).fit(x, y, classes=c(y))  # type: ignore[misc]
        yield f"score y: {name}", lambda c=of_labels: learner.score(x, c(y))  # type: ignore[misc]
        yield f"weights: {name}", lambda c=of_labels: learner.score(x, y, sample_weight=c(y))  # type: ignore[misc]
    for name, make in VALUES.items():
        yield f"fit task: {name}", lambda m=make: quick(epochs=1).fit(x, y, task=m())  # type: ignore[misc]
        yield f"predict task: {name}", lambda m=make: learner.predict(x, task=m())  # type: ignore[misc]
        yield f"readings task: {name}", lambda m=make: learner.readings(x, y, task=m())  # type: ignore[misc]
        yield f"matrix: {name}", lambda m=make: learner.accuracy_matrix(m())  # type: ignore[misc]
        yield f"save: {name}", lambda m=make: learner.save(m())  # type: ignore[misc]
        yield f"load: {name}", lambda m=make: ContinualLearner.load(m())  # type: ignore[misc]


def begin(parameter: str, value: Any) -> None:
    """A learner with one odd setting, and a task."""
    x, y = blobs(0, size=20)
    for method in METHODS if parameter not in ("method", "backbone") else METHODS[:1]:
        settings = {"method": method, "epochs": 1, parameter: value}
        learner = quick(**settings)
        learner.fit(x, y)
        learner.predict(x)


def tried(case: Callable[[], object]) -> bool:
    """Whether it was taken; refused in words otherwise. An error of another kind is a Failure."""
    return accepted(lambda go: go(), case)


__all__ = ["Data", "Failure", "cases", "tried"]
