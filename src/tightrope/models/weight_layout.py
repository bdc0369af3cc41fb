"""How do matrices that no training changes lie in memory? Input by input: a product then reads them as they lie.

torch stores a matrix [outputs, inputs] output by output, and oneDNN copies it into another order in every call: with
few rows that copy is most of the time. The numbers, shape and file of a matrix stay the same.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from tightrope.kernels.products import WIDE_VECTORS
from tightrope.models.backbone import Network
from tightrope.models.file_pages import page_dropper


def lay_out_frozen(network: Network) -> None:
    """Matrices of the trunk that ask for no gradient. Those that are trained stay: the optimizer's step and their
    gradients run along the usual order.

    What else is frozen is copied too: the file that all were read from stays in memory while one of them lies in it.
    """
    frozen = {id(p): p for p in network.model.parameters() if suits(p) and not p.requires_grad}
    matrices = [m.weight for m in network.trunk.modules() if isinstance(m, nn.Linear) and id(m.weight) in frozen]
    if all(weight.t().is_contiguous() for weight in matrices):
        return
    drop_pages = page_dropper()
    for weight in matrices:
        read = weight.data
        weight.data = by_inputs(read)
        drop_pages(read)
        frozen.pop(id(weight), None)
    for parameter in frozen.values():
        read = parameter.data
        parameter.data = read.clone()
        drop_pages(read)


def by_inputs(weight: Tensor) -> Tensor:
    """The same [outputs, inputs], stored as [inputs, outputs]; not copied where it lies so already.

    >>> by_inputs(torch.zeros(3, 2)).stride()
    (1, 3)
    """
    return weight.t().contiguous().t()


def weight_of(layer: nn.Linear | Conv1D) -> Tensor:
    """[outputs, inputs] whatever the class; GPT-2's lies by inputs as it is."""
    return layer.weight.t() if isinstance(layer, Conv1D) else layer.weight


def suits(weight: Tensor) -> bool:
    """Only where oneDNN is the faster library: float32 on a CPU with wide vectors."""
    return WIDE_VECTORS and weight.dtype == torch.float32 and weight.device.type == "cpu"
