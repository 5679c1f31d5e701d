"""Results in words, figures and pages.

- `words`: numbers, names and tables as a reader sees them
- `style`: the look of all figures, and a figure as SVG
- `page`: a report as a value, as a page (`report.html` is its template) and as Markdown
- `figures`: the figures of all reports
- `experiment`: the report of an experiment, and the table of the study of two models
- `decision`: ship, canary or do not: the page for the meeting
- `how_many`: value and cost against the number of candidates
- `live_loop`: the live loop: clicks over time, and every round
- `training`: the report of a training from an own log
- `results`: the figure and the page of results that have no page of their own
"""

from tandemrank._base.lazy import modules_of

__getattr__ = modules_of(__name__)
