"""Cutting a model into stages, and training one stage at a time."""

from splitfl.model.auxiliary import with_auxiliaries as with_auxiliaries
from splitfl.model.crossing import Port as Port
from splitfl.model.cuts import CutInfo as CutInfo
from splitfl.model.cuts import possible_cuts as possible_cuts
from splitfl.model.errors import CutError as CutError
from splitfl.model.errors import LossError as LossError
from splitfl.model.errors import ShapeError as ShapeError
from splitfl.model.errors import StateError as StateError
from splitfl.model.loss import decomposes as decomposes
from splitfl.model.loss import metrics as metrics
from splitfl.model.loss import reduction as reduction
from splitfl.model.micro_batches import effective as effective
from splitfl.model.micro_batches import minimum_micro_batch as minimum_micro_batch
from splitfl.model.micro_batches import sizes as sizes
from splitfl.model.micro_batches import split as split
from splitfl.model.micro_batches import weight as weight
from splitfl.model.partition import Partition as Partition
from splitfl.model.partition import Stage as Stage
from splitfl.model.partition import is_auxiliary as is_auxiliary
from splitfl.model.partition import partition as partition
from splitfl.model.profile import StageProfile as StageProfile
from splitfl.model.profile import profile as profile
from splitfl.model.stage import Replica as Replica
from splitfl.model.stage import Stash as Stash
