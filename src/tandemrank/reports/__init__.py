"""Results in words, figures and pages.

- `words`: numbers and names as a reader sees them
- `style`: the look of all figures, and a figure as SVG
- `page`: the parts of a self-contained HTML page
- `experiment`: the report of an experiment, a page
- `text`: the same as sentences, as Markdown and for a terminal
- `figures`: its figures: learning curves, and what held-out clicks predicted, too
- `decision`: ship, canary or do not: the page for the meeting
- `live_loop`: the live loop: clicks over time, and every round
- `stages`: the study of two models
- `training`: the report of a training from an own log
"""

from tandemrank._base.lazy import modules_of

__getattr__ = modules_of(__name__)
