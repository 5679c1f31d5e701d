"""Measurements, each beside its real alternative in one run.

- `timing`: timing side by side
- `gradient`: the noise and time of the gradients
- `epoch`: a training epoch over its own matrix products
- `logs`: reading a log beside the bare group-by of polars
- `bounds`: how often a lower bound holds, and how close it comes
"""
