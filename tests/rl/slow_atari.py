"""One Atari game, frame by frame over the single-game interface of ale-py: written slowly from the definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Grey = npt.NDArray[np.float64]


def area_weights(wide: int, narrow: int) -> Grey:
    """(narrow, wide): each new pixel is the mean of the stretch of old ones that it covers."""
    edges = np.arange(narrow + 1) * wide / narrow
    weights = np.zeros((narrow, wide))
    for new in range(narrow):
        for old in range(wide):
            weights[new, old] = max(0.0, min(edges[new + 1], old + 1) - max(edges[new], old))
    return weights / weights.sum(axis=1, keepdims=True)


DOWN, ACROSS = area_weights(210, 84), area_weights(160, 84)


class SlowAtari:
    """84 x 84, four frames, of which the newest is last; action repeated four times; max of the last two frames."""

    def __init__(self, rom: str, seed: int) -> None:
        import ale_py
        from ale_py import roms

        self.ale: Any = ale_py.ALEInterface()
        self.ale.setLoggerMode(ale_py.LoggerMode.Error)
        self.ale.setFloat("repeat_action_probability", 0.0)
        self.ale.setInt("random_seed", seed)
        self.ale.loadROM(str(roms.get_rom_path(rom)))
        self.actions = self.ale.getMinimalActionSet()
        self.fire, self.noop = ale_py.Action.FIRE, ale_py.Action.NOOP

    def begin(self, frames: int) -> Grey:
        """So many frames pass before the first action, the first of them with FIRE if the game has it."""
        self.ale.reset_game()
        for frame in range(frames):
            self.ale.act(self.fire if frame == 0 and self.fire in self.actions else self.noop)
        self.stack = [np.zeros((84, 84))] * 3 + [self._small(self._screen())]
        return np.stack(self.stack)

    def step(self, action: int) -> tuple[Grey, int, bool, int]:
        """Observation, raw reward, whether the game is over, lives. Of a game that is over nothing new is seen."""
        reward, screens = 0, []
        for _ in range(4):
            reward += self.ale.act(self.actions[action])
            if self.ale.game_over():
                return np.stack(self.stack), reward, True, int(self.ale.lives())
            screens.append(self._screen())
        self.stack = [*self.stack[1:], self._small(np.maximum(screens[-1], screens[-2]))]
        return np.stack(self.stack), reward, False, int(self.ale.lives())

    def _screen(self) -> Grey:
        return np.asarray(self.ale.getScreenGrayscale(), dtype=np.float64).reshape(210, 160)

    @staticmethod
    def _small(screen: Grey) -> Grey:
        return np.round(DOWN @ screen @ ACROSS.T)
