"""Results in words, figures and pages.

- `words`: a result in words, in Markdown and on a terminal
- `figures`: the figures of the reports
- `page`: the parts of a self-contained HTML page
- `experiment`: the report of an experiment
- `training`: the report of a training from an own log
"""

from tandemrank._base.lazy import modules_of

__getattr__ = modules_of(__name__)
