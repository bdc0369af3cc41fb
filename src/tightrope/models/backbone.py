"""One network body: the trunk, the output matrix over it, and the named adapters inside it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from tightrope.config.errors import TightropeError
from tightrope.models.families import Family, family_of


class Network:
    """``trunk`` works as ``trunk(input_ids=[1, n], position_ids=[1, n], layout=..., use_cache=False)``.

    ``model`` is the transformers model that owns all weights: a causal LM, or a bare trunk where nothing is generated
    (reward models, separate critics). Dropout is always off: it would make the first ratio differ from 1.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        model.eval()
        self.model = model
        self.trunk: nn.Module = model.base_model
        self.config: PretrainedConfig = model.config
        self.family: Family = family_of(self.config.to_dict(), str(self.config.name_or_path))
        self.context_length: int = self.family.context_length(self.config.to_dict())
        self.hidden_size: int = self.config.hidden_size
        self._unembedding = model.get_output_embeddings()
        self._lora_layers: list[LoraLayer] = []
        self._adapters: list[str] = []
        self._adapter: str | None = None

    @property
    def device(self) -> torch.device:
        return next(self.trunk.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.trunk.parameters()).dtype

    @property
    def unembedding_weight(self) -> Tensor:
        """[vocab, hidden]."""
        return self._require_unembedding().weight

    @property
    def unembedding_bias(self) -> Tensor | None:
        return self._require_unembedding().bias

    def _require_unembedding(self) -> nn.Linear:
        if not isinstance(self._unembedding, nn.Linear):
            raise TightropeError("this network has no output matrix, so it gives no log-probs", fix="use a causal LM")
        return self._unembedding

    @property
    def adapters(self) -> tuple[str, ...]:
        return tuple(self._adapters)

    def register_adapter(self, name: str) -> None:
        """Called once peft has put the adapter's weights into the trunk."""
        self._adapters.append(name)
        self._lora_layers = [module for module in self.trunk.modules() if isinstance(module, LoraLayer)]
        self._activate(None)

    @contextmanager
    def using(self, adapter: str | None) -> Iterator[None]:
        """Run with this adapter, None for the bare backbone.

        peft's own ``set_adapter`` also changes ``requires_grad``, so that after one pass of a frozen role the policy
        would no longer train. Here only the name that the layers look up changes.
        """
        if adapter is not None and adapter not in self._adapters:
            raise ValueError(f"no adapter {adapter!r}, there are {self._adapters}")
        before = self._adapter
        self._activate(adapter)
        try:
            yield
        finally:
            self._activate(before)

    def _activate(self, adapter: str | None) -> None:
        for layer in self._lora_layers:
            layer._disable_adapters = adapter is None
            layer._active_adapter = [] if adapter is None else [adapter]
        self._adapter = adapter

    def copy(self) -> Network:
        """The same weights in memory of their own; tied weights stay tied. Before any adapter is added."""
        assert not self._adapters
        return Network(copy.deepcopy(self.model))

    def trunk_copy(self) -> Network:
        """The same without the output matrix."""
        assert not self._adapters
        trunk = copy.deepcopy(self.trunk)
        assert isinstance(trunk, PreTrainedModel)
        return Network(trunk)
