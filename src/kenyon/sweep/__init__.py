"""Many runs on many machines: plans of fleets, leases, places to train them, and what they will cost."""

from kenyon.sweep.driver import Place, Unfinished, carry_out, collect
from kenyon.sweep.plan import Sweep, plan_sweep
from kenyon.sweep.storage import Space, open_space

__all__ = ["Place", "Space", "Sweep", "Unfinished", "carry_out", "collect", "open_space", "plan_sweep"]
