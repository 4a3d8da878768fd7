"""A stand-in for PBS, for tests: qsub, qselect, qstat and qdel in front of a small server that runs
jobs here.

It takes the options and gives the answers that the executor uses, in the words of a real OpenPBS
(test_standin.py compares them). Start one with `with StandIn(Config()) as pbs:` and put `pbs.bin`
on PATH.
"""

from .model import Config, Queue
from .server import StandIn

__all__ = ["Config", "Queue", "StandIn"]
