"""Named low-rank adapters inside one frozen trunk (LoRA, Hu et al. 2021): W x + alpha / rank · B A x."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tightrope.config.errors import TightropeError
from tightrope.config.schema import LoraSection
from tightrope.models.backbone import Network

PEFT_PREFIX = "base_model.model."


@dataclass(frozen=True, slots=True)
class Shape:
    rank: int
    alpha: float
    from_layer: int = 0


def add_adapter(network: Network, name: str, shape: LoraSection | Shape, seed: int) -> None:
    """Put an adapter on every matrix of the trunk, from ``from_layer`` up. B starts at 0, so the network computes what
    it did before.

    A is uniform within 1 / sqrt(inputs) (peft's start), drawn from ``seed`` on the CPU in float32: the same numbers on
    every device, and no global random number is used up.
    """
    if shape.from_layer:
        require_layers_above(network, shape.from_layer)
    config = lora_config(network, shape)
    if shape.from_layer:  # peft finds a layer's number only behind the name of a model around the trunk
        config.layers_to_transform, config.target_modules = None, paths_from(network, shape.from_layer)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Already found a `peft_config`")  # several adapters are meant
        inject_adapter_in_model(config, network.trunk, name)
    network.register_adapter(name, shape.from_layer)
    generator = torch.Generator().manual_seed(seed)
    for layer in adapter_layers(network, name).values():
        a, b = layer.lora_A[name], layer.lora_B[name]
        assert isinstance(a, nn.Linear) and isinstance(b, nn.Linear)
        draws = torch.rand(a.weight.shape, generator=generator) * 2 - 1
        # float32 also over a bfloat16 trunk: steps of 1e-5 would vanish in bfloat16's three digits.
        a.weight = nn.Parameter((draws / math.sqrt(a.in_features)).to(network.device))
        b.weight = nn.Parameter(torch.zeros(b.weight.shape, device=network.device))


def require_layers_above(network: Network, layer: int) -> None:
    if layer >= network.n_layers:
        raise TightropeError(
            f"the model has {network.n_layers} layers, so no adapter is left",
            where="model.lora.from_layer",
            expected=f"less than {network.n_layers}",
            found=str(layer),
        )


def paths_from(network: Network, layer: int) -> list[str]:
    """The matrices of this layer and above, by their name in the trunk."""
    names = {id(module): path for path, module in network.trunk.named_modules()}
    above = [module for upper in network.layers[layer:] for module in upper.modules()]
    paths = [names[id(module)] for module in above]
    return [path for path in paths if path.rsplit(".", 1)[-1] in network.linear_layers]


def lora_config(network: Network, shape: LoraSection | Shape) -> LoraConfig:
    return LoraConfig(
        r=shape.rank,
        lora_alpha=shape.alpha,  # pyright: ignore[reportArgumentType] (peft divides it; a float is as good)
        lora_dropout=0.0,
        target_modules=list(network.linear_layers),
        fan_in_fan_out=network.conv1d,
        bias="none",
        layers_to_transform=list(range(shape.from_layer, network.n_layers)) if shape.from_layer else None,
    )


def adapter_layers(network: Network, name: str) -> dict[str, LoraLayer]:
    """The layers that carry this adapter, by their name in the trunk."""
    return {
        path: module
        for path, module in network.trunk.named_modules()
        if isinstance(module, LoraLayer) and name in module.lora_A
    }


def adapter_parameters(network: Network, name: str) -> dict[str, nn.Parameter]:
    """``layers.0.self_attn.q_proj.lora_A`` and so on: the adapter's own name is left out, the role says it."""
    found: dict[str, nn.Parameter] = {}
    for path, layer in adapter_layers(network, name).items():
        for part, modules in (("lora_A", layer.lora_A), ("lora_B", layer.lora_B)):
            weight = modules[name].weight
            assert isinstance(weight, nn.Parameter)
            found[f"{path}.{part}"] = weight
    return found


def shape_of(network: Network, name: str) -> Shape:
    layer = next(iter(adapter_layers(network, name).values()))
    return Shape(int(layer.r[name]), float(layer.lora_alpha[name]), network.lowest_layer(name))


def merged_delta(layer: LoraLayer, name: str) -> Tensor:
    """What the adapter adds to the layer's stored weight."""
    return layer.get_delta_weight(name)  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]


@torch.no_grad()
def copy_adapter(network: Network, source: str, target: str) -> None:
    weights = adapter_parameters(network, source)
    for name, parameter in adapter_parameters(network, target).items():
        parameter.copy_(weights[name])


def save_adapter(network: Network, name: str, shape: Shape, folder: Path, extra: Mapping[str, Tensor]) -> None:
    """A folder that ``PeftModel.from_pretrained(base, folder)`` loads. ``extra``: the head of a reward model."""
    folder.mkdir()
    prefix = f"{PEFT_PREFIX}{network.model.base_model_prefix}."
    weights = {f"{prefix}{key}.weight": p.detach().cpu() for key, p in adapter_parameters(network, name).items()}
    weights |= {f"{PEFT_PREFIX}{key}": value.detach().cpu() for key, value in extra.items()}
    save_file({key: value.contiguous() for key, value in weights.items()}, folder / "adapter_model.safetensors")
    config = lora_config(network, shape)
    config.task_type = "SEQ_CLS" if extra else "CAUSAL_LM"
    config.modules_to_save = [key.removesuffix(".weight") for key in extra] or None
    config.inference_mode = True
    config.save_pretrained(str(folder))


def read_shape(folder: Path) -> Shape:
    fields = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    return Shape(int(fields["r"]), float(fields["lora_alpha"]), min(fields.get("layers_to_transform") or [0]))


@torch.no_grad()
def load_adapter(network: Network, name: str, folder: Path) -> None:
    """Into an adapter that was added with the folder's shape. Raises TightropeError where names or shapes differ."""
    prefix = f"{PEFT_PREFIX}{network.model.base_model_prefix}."
    weights = load_file(folder / "adapter_model.safetensors")
    for key, parameter in adapter_parameters(network, name).items():
        found = weights.get(f"{prefix}{key}.weight")
        if found is None or found.shape != parameter.shape:
            raise TightropeError(f"the adapter does not fit the model: {key}", where=str(folder))
        parameter.copy_(found)
