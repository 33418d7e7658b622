"""The methods, each a short declaration; `METHODS` maps their names to the functions that make them."""

from splitfl.methods.ahead import asynchronous as asynchronous
from splitfl.methods.ahead import gas as gas
from splitfl.methods.ahead import pipe_sgd as pipe_sgd
from splitfl.methods.end_to_end import fedavg as fedavg
from splitfl.methods.end_to_end import pipar as pipar
from splitfl.methods.end_to_end import sl as sl
from splitfl.methods.end_to_end import splitfed_v1 as splitfed_v1
from splitfl.methods.end_to_end import splitfed_v2 as splitfed_v2
from splitfl.methods.end_to_end import splitfed_v3 as splitfed_v3
from splitfl.methods.end_to_end import u_shaped as u_shaped
from splitfl.methods.local_losses import ampere as ampere
from splitfl.methods.local_losses import block_local as block_local
from splitfl.methods.local_losses import cse_fsl as cse_fsl
from splitfl.methods.local_losses import ecofed as ecofed
from splitfl.methods.local_losses import fsl_sage as fsl_sage
from splitfl.methods.local_losses import local_loss as local_loss
from splitfl.methods.local_losses import pipe_bd as pipe_bd
from splitfl.methods.merged import epsl as epsl
from splitfl.methods.merged import gpsl as gpsl
from splitfl.methods.merged import mergesfl as mergesfl
from splitfl.methods.merged import parallel_sl as parallel_sl
from splitfl.methods.merged import scala as scala
from splitfl.methods.merged import vertical_sl as vertical_sl
from splitfl.methods.merging import Merging as Merging
from splitfl.methods.method import AuxiliarySource as AuxiliarySource
from splitfl.methods.method import Method as Method
from splitfl.methods.method import Phase as Phase
from splitfl.methods.method import ScheduleSource as ScheduleSource
from splitfl.methods.registry import Registry

METHODS = Registry(
    {
        "fedavg": fedavg,
        "sl": sl,
        "splitfed-v1": splitfed_v1,
        "splitfed-v2": splitfed_v2,
        "splitfed-v3": splitfed_v3,
        "pipar": pipar,
        "u-shaped": u_shaped,
        "parallel-sl": parallel_sl,
        "epsl": epsl,
        "gpsl": gpsl,
        "mergesfl": mergesfl,
        "scala": scala,
        "vertical-sl": vertical_sl,
        "async": asynchronous,
        "gas": gas,
        "pipe-sgd": pipe_sgd,
        "local-loss": local_loss,
        "cse-fsl": cse_fsl,
        "fsl-sage": fsl_sage,
        "ampere": ampere,
        "block-local": block_local,
        "pipe-bd": pipe_bd,
        "ecofed": ecofed,
    }
)
"""The built-in methods, and those of installed packages."""
