"""Making one model of many: Flower's strategies with guards around them, and the plain mean."""

from splitfl.aggregation.flower import SplitGrid as SplitGrid
from splitfl.aggregation.flower import to_record as to_record
from splitfl.aggregation.flower import to_tensors as to_tensors
from splitfl.aggregation.guards import guard_result as guard_result
from splitfl.aggregation.guards import guard_updates as guard_updates
from splitfl.aggregation.mean import mean as mean
from splitfl.aggregation.rounds import StrategyRounds as StrategyRounds
from splitfl.aggregation.rounds import handover as handover
from splitfl.aggregation.strategies import StrategyError as StrategyError
from splitfl.aggregation.strategies import strategy_from as strategy_from
from splitfl.aggregation.strategies import strategy_names as strategy_names
from splitfl.aggregation.values import AggregationError as AggregationError
from splitfl.aggregation.values import Assignment as Assignment
from splitfl.aggregation.values import Outcome as Outcome
from splitfl.aggregation.values import Refusal as Refusal
from splitfl.aggregation.values import Reply as Reply
from splitfl.aggregation.values import Train as Train
from splitfl.aggregation.values import Update as Update
