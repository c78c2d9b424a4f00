"""Who hears what is told while data are read and runs are kept."""

from __future__ import annotations


class Listener:
    """Keeps the notices; progress is not of interest."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def progress(self, what: str, done: int, total: int) -> None:
        pass

    def notice(self, text: str) -> None:
        self.notices.append(text)
