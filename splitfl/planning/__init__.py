"""Planning: what a schedule costs before it runs, and which cut and micro-batch count are best."""

from splitfl.planning.catalogue import DEVICES as DEVICES
from splitfl.planning.catalogue import LINKS as LINKS
from splitfl.planning.catalogue import Connection as Connection
from splitfl.planning.catalogue import Device as Device
from splitfl.planning.catalogue import device as device
from splitfl.planning.catalogue import link as link
from splitfl.planning.cost import FREE as FREE
from splitfl.planning.cost import Costs as Costs
from splitfl.planning.cost import Link as Link
from splitfl.planning.cost import StageCost as StageCost
from splitfl.planning.cost import stage_costs as stage_costs
from splitfl.planning.search import Choice as Choice
from splitfl.planning.search import Cut as Cut
from splitfl.planning.search import Setting as Setting
from splitfl.planning.search import StageFigures as StageFigures
from splitfl.planning.search import choose as choose
from splitfl.planning.search import evaluate as evaluate
from splitfl.planning.simulate import Prepared as Prepared
from splitfl.planning.simulate import play as play
from splitfl.planning.simulate import prepare as prepare
from splitfl.planning.simulate import simulate as simulate
from splitfl.planning.timeline import Event as Event
from splitfl.planning.timeline import Timeline as Timeline
