"""Whether a network was made for the tasks and the method that it meets."""

from __future__ import annotations

from collections.abc import Sequence

from kenyon.errors import ConfigError
from kenyon.methods import Method
from kenyon.nets import Net
from kenyon.streams.task import Stream


def check_fit(net: Net, streams: Sequence[Stream], method: Method) -> None:
    """Streams of one fleet are alike (`Fleet`): the first speaks for all."""
    if not streams:
        raise ConfigError("There is no stream to learn from. Give one for every run: [source.stream(seed=0)].")
    stream = streams[0]
    counts = net.class_counts * net.tasks if net.shared else net.class_counts
    if counts != stream.class_counts:
        raise ConfigError(
            f"The network was made for tasks of {_listed(counts)} classes, and those of {stream.name} have "
            f"{_listed(stream.class_counts)}. Build it with Net(..., class_counts=stream.class_counts)."
        )
    if net.shared != (stream.heads == "shared"):
        there, wanted = ("one head", "a head a task") if net.shared else ("a head a task", "one head for all")
        raise ConfigError(
            f"The network has {there}, and the tasks of {stream.name} need {wanted}. Build it with "
            "Net(..., shared_head=stream.heads == 'shared')."
        )
    if net.input_shape != stream.input_shape:
        raise ConfigError(
            f"The network was made for samples of the shape {net.input_shape}, and those of {stream.name} have "
            f"{stream.input_shape}. Build it with Net(..., input_shape=stream.input_shape)."
        )
    learned = method.learned(net)
    if learned != net.learned:
        raise ConfigError(
            f"The method learns {_named(learned)} beside the weights, and the network has room for "
            f"{_named(net.learned)}. Build it with Net(..., learned=method.learned(bare)), where bare is the same "
            "network without it."
        )
    if method.active_column != (net.columns is not None):
        there, wanted = ("has an", "needs none") if net.columns is not None else ("has no", "needs one")
        raise ConfigError(
            f"The network {there} active column, and the method {wanted}. Build it with "
            "Net(..., active_column=method.active_column)."
        )


def _listed(counts: Sequence[int]) -> str:
    return ", ".join(map(str, counts))


def _named(learned: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in learned.items()) or "nothing"
