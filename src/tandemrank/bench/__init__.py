"""Measurements, each beside its real alternative in one run.

- `timing`: timing side by side
- `gradient`: the noise and time of the gradients
- `credit`: the credit-assigned policy gradient of a generator, a rival
- `epoch`: a training epoch over its own matrix products
- `scale`: training and retrieval against the number of items
- `logs`: reading a log beside the bare group-by of polars
- `serving`: a live pair over HTTP beside the same framework answering a constant; swaps, kills, replay
- `constant`: that framework with its constant
- `canaries`: how often a live test is wrong, and how soon it is right
- `bounds`: how often a lower bound holds, and how close it comes
- `bound_worlds`: the logs for it, in plain NumPy that shares no code with what it checks
"""
