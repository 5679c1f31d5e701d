"""How users click: click models, simulated users, and the examination curve found in a log.

- `models`: click models and examination curves
- `simulation`: the simulation of click logs
- `examination`: the examination curve, estimated from a log
"""

from tandemrank._base.lazy import modules_of

__getattr__ = modules_of(__name__)
