"""Reward models: what an examined (query, item) is worth, from the log alone.

- `item_rate`: click rates by item, by query and by pair
"""

from tandemrank._base.lazy import modules_of

__getattr__ = modules_of(__name__)
