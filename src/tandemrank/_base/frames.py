"""Frames of polars and pandas as one kind of table."""

from typing import Any, Protocol


class PandasFrame(Protocol):
    """What is needed of a pandas frame, which is no dependency."""

    def to_dict(self, orient: Any) -> Any:
        """The columns by name; the orientation is "list"."""
