"""Data: sets that ship with packages, ways to divide one between clients, and the mini-batches of a round."""

from splitfl.data.batches import Batches as Batches
from splitfl.data.batches import order as order
from splitfl.data.batches import plan as plan
from splitfl.data.builtin import NAMES as NAMES
from splitfl.data.builtin import Datasets as Datasets
from splitfl.data.builtin import load as load
from splitfl.data.error import DataError as DataError
from splitfl.data.linkage import Holding as Holding
from splitfl.data.sampling import global_plan as global_plan
from splitfl.data.splits import by_user as by_user
from splitfl.data.splits import dirichlet as dirichlet
from splitfl.data.splits import iid as iid
from splitfl.data.splits import shards as shards
from splitfl.data.vertical import by_columns as by_columns
from splitfl.data.vertical import columns as columns
from splitfl.data.vertical import vertical as vertical
