"""A policy that is live: answers with known propensities, and a log that the next round learns from.

Without a network:
- `engine`: `Server`, which answers queries
- `records`: who answers, questions, answers, impressions, events, outcomes as values
- `live_policy`: a policy as it answers: scores one query at a time, ids, its digest
- `exploration`: how lists are drawn, and the exposure that follows from it
- `exploration_cost`: what exploration costs and buys
- `interleaving`: two policies in one list, and its exposure
- `journal`: an append-only file that survives `kill -9`
- `recorder`: impressions and events go to a journal
- `log_files`: the files of a log, what journals have in them, copies of segments in a bucket
- `sealing`: journals become segments of a click log
- `propensities`: those of the segments, of the mixture of policies
- `replay`: every list drawn again from its key, and compared
- `verdict`: what became of recent answers, and new minus old while both are live
- `explain`: what each live policy makes of a query

With one (the extra `serve`):
- `service`: policies that come and go, the folder they are loaded from, the verdict, the log, in one process
- `messages`: what goes over the wire, and its description
- `access`: what a stranger may ask for
- `requests`: lists and clicks over HTTP; around every handler: access, and failures as answers
- `metrics`: for monitoring
- `app`: the HTTP interface, and the page for people (`static/`)
- `run`: listens on one address, within limits; several processes on a Ray cluster
- `client`: calls it
"""

from tandemrank._base.lazy import modules_of

__getattr__ = modules_of(__name__)
