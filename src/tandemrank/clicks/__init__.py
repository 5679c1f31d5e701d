"""How users click: click models, simulated users, and the examination curve found in a log.

- `models`: click models and examination curves, by rank and by what else clicks depend on
- `simulation`: the simulation of click logs
- `examination`: the examination curve, estimated from a log: by rank, and by what else it depends on
- `stopping`: readers who stop after a click, and how they go on
- `trust`: trust bias, estimated from a log
"""

from tandemrank._base import modules_of

__getattr__ = modules_of(__name__)
