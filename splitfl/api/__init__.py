"""Jobs and the ways to run them: in one process, or as a server with clients."""

from splitfl.api.client import join as join
from splitfl.api.error import JobError as JobError
from splitfl.api.job import Job as Job
from splitfl.api.observe import observe as observe
from splitfl.api.optimizers import OptimizerSpec as OptimizerSpec
from splitfl.api.optimizers import adam as adam
from splitfl.api.optimizers import optimizer as optimizer
from splitfl.api.optimizers import sgd as sgd
from splitfl.api.result import Result as Result
from splitfl.api.server import serve as serve
from splitfl.api.simulation import simulate as simulate
