"""splitfl: train a model that is split between many devices and a server, and averaged federatedly.

import splitfl
job = splitfl.Job(model=..., example_input=..., cut="auto", method=splitfl.methods.pipar(), ...)
result = splitfl.simulate(job, clients=splitfl.dirichlet(train, 8, alpha=0.5), test=test, rounds=20)
result.report("report.html")
"""

import os

# gRPC reads it when it is imported, by whoever comes first; our own errors say what went wrong.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from splitfl import methods as methods
from splitfl.api import Job as Job
from splitfl.api import JobError as JobError
from splitfl.api import Result as Result
from splitfl.api import adam as adam
from splitfl.api import join as join
from splitfl.api import observe as observe
from splitfl.api import optimizer as optimizer
from splitfl.api import serve as serve
from splitfl.api import sgd as sgd
from splitfl.api import simulate as simulate
from splitfl.codecs import codec as codec
from splitfl.data import Holding as Holding
from splitfl.data import by_user as by_user
from splitfl.data import dirichlet as dirichlet
from splitfl.data import iid as iid
from splitfl.data import load as load
from splitfl.data import shards as shards
from splitfl.data import vertical as vertical
from splitfl.errors import SplitflError as SplitflError
from splitfl.model import partition as partition
from splitfl.model import possible_cuts as possible_cuts
from splitfl.run.access import Access as Access
from splitfl.run.blueprint import Deadlines as Deadlines
from splitfl.run.stragglers import Stragglers as Stragglers
from splitfl.transport import ClientTLS as ClientTLS
from splitfl.transport import ServerTLS as ServerTLS
from splitfl.version import __version__ as __version__
