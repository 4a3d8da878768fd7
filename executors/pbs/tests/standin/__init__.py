"""A stand-in for PBS, for tests: qsub, qselect, qstat and qdel in front of a small server that runs
jobs here.

It answers as recorded from a real OpenPBS (see ../data); what it leaves out: the running of job
arrays, interactive jobs, `-W block`, and jobs of other users. Start one with `with
StandIn(Config()) as pbs:` and put `pbs.bin` on PATH.
"""

from .model import Config, Queue
from .server import StandIn

__all__ = ["Config", "Queue", "StandIn"]
