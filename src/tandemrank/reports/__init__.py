"""Results in words, figures and pages.

- `words`: numbers, names and tables as a reader sees them
- `style`: the look of all figures, and a figure as SVG
- `page`: a report as a value, as a page (`templates/report.html`) and as Markdown
- `sections`: what several pages have: old lists and new ones with titles, weights and support, how lists are read
- `figures`: the figures of all reports
- `experiment`: the report of an experiment, and the table of the study of two models
- `decision`: ship, canary or do not: the page for the meeting
- `how_many`: value and cost against the number of candidates
- `live_loop`: the live loop: clicks over time, and every round
- `training`: the report of a training from an own log
- `results`: the figure and the page of results that have no page of their own
"""

from tandemrank._base import modules_of

__getattr__ = modules_of(__name__)
