"""One network body: the trunk, the output matrix over it, and the named adapters inside it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from tightrope.config.errors import TightropeError
from tightrope.maths.ragged import widen
from tightrope.models.families import Family, family_of
from tightrope.models.heads import logit_rule
from tightrope.models.layers import exchange_layers
from tightrope.models.recompute import recompute_layers
from tightrope.models.work import Computed, Kind, products


class Network:
    """Packed families: ``trunk(input_ids=[1, n], position_ids=[1, n], layout=..., use_cache=False)``; the others take
    rows of their own with an attention mask, and only the arguments named in ``trunk_arguments``.

    ``model`` is the transformers model that owns all weights: a causal LM, or a bare trunk where nothing is generated
    (reward models, separate critics). Dropout is always off: it would make the first ratio differ from 1. ``family`` is
    for a model that is no architecture of transformers; absent, the config names it.
    """

    def __init__(self, model: PreTrainedModel, *, recompute: bool = False, family: Family | None = None) -> None:
        model.eval()
        exchange_layers(model)
        self.model = model
        self.trunk: nn.Module = model.base_model
        self.config: PretrainedConfig = model.config
        where = str(self.config.name_or_path)
        self.family: Family = family_of(self.config.to_dict(), where) if family is None else family
        self.context_length: int = self.family.context_length(self.config.to_dict(), where)
        # The embedding's width, not the config's: OPT-350m projects its hidden states down to it.
        embedding = model.get_input_embeddings().weight
        assert isinstance(embedding, Tensor)
        self.vocabulary, self.hidden_size = embedding.shape
        self.logit_rule = logit_rule(self.config.to_dict())
        self.linear_layers = linear_layers(self.trunk)
        self.conv1d = any(isinstance(module, Conv1D) for module in self.trunk.modules())
        self.trunk_arguments = frozenset(inspect.signature(self.trunk.forward).parameters)
        self._unembedding = model.get_output_embeddings()
        self._lora_layers: list[LoraLayer] = []
        self._adapters: list[str] = []
        self._adapter_numel: dict[str, int] = {}
        self._lowest_layer: dict[str, int] = {}
        self.layers = layer_list(self.trunk)
        self._adapter: str | None = None
        below = [matrices(layer) for layer in self.layers]
        counted = {id(weight) for layer in below for weight in layer}
        self._matrices = [*below, [weight for weight in matrices(self.trunk) if id(weight) not in counted]]
        self.computed: dict[Kind, Computed] = {"scored": Computed(), "trained": Computed()}
        self.recompute = recompute
        if recompute:
            recompute_layers(self)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype

    @property
    def unembedding_weight(self) -> Tensor:
        """[vocab, hidden]."""
        return self.unembedding.weight

    @property
    def unembedding_bias(self) -> Tensor | None:
        return self.unembedding.bias

    @property
    def gives_logits(self) -> bool:
        return self._unembedding is not None

    def logits(self, hidden: Tensor) -> Tensor:
        """[n, hidden] -> [n, vocab], float32 or wider; the same head that the trainer's log-probs come from."""
        layer = self.unembedding
        return self.logit_rule.applied(widen(layer(hidden.to(layer.weight.dtype))))

    @property
    def unembedding(self) -> nn.Linear:
        """The output matrix. Raises TightropeError where there is none."""
        if not isinstance(self._unembedding, nn.Linear):
            raise TightropeError("this network has no output matrix, so it gives no log-probs", fix="use a causal LM")
        return self._unembedding

    @property
    def adapter(self) -> str | None:
        """The one that is active now."""
        return self._adapter

    @property
    def adapters(self) -> tuple[str, ...]:
        return tuple(self._adapters)

    @property
    def n_layers(self) -> int:
        return int(self.config.num_hidden_layers)

    def lowest_layer(self, adapter: str | None) -> int:
        """The lowest with weights of this adapter; of the bare backbone, their number."""
        return self.n_layers if adapter is None else self._lowest_layer[adapter]

    def register_adapter(self, name: str, from_layer: int = 0) -> None:
        """Called once peft has put the adapter's weights into the trunk, in ``from_layer`` and above."""
        self._adapters.append(name)
        self._lowest_layer[name] = from_layer
        exchange_layers(self.trunk)
        self._lora_layers = [module for module in self.trunk.modules() if isinstance(module, LoraLayer)]
        pairs = [(layer.lora_A, layer.lora_B) for layer in self._lora_layers if name in layer.lora_A]
        self._adapter_numel[name] = sum(p.numel() for a, b in pairs for half in (a, b) for p in half[name].parameters())
        self._activate(None)

    def count(self, tokens: int, filling: int, below: int | None = None, above: int = 0) -> None:
        """A pass through the trunk, with the adapter that is active now; only through the layers ``below`` this one, or
        from layer ``above`` up."""
        backward = torch.is_grad_enabled()
        operations = tokens * self._operations_a_token(backward, below, above)
        recomputed = tokens + filling if backward and self.recompute else 0
        kind: Kind = "trained" if backward else "scored"
        self.computed[kind] += Computed(tokens, filling, recomputed, operations)

    def count_logits(self, rows: int) -> None:
        """Of so many actions; their tokens were counted."""
        backward, weight = torch.is_grad_enabled(), self.unembedding_weight
        operations = rows * products(weight.numel(), backward=backward, trained=weight.requires_grad)
        self.computed["trained" if backward else "scored"] += Computed(operations=operations)

    def sampling_operations(self, tokens: int, actions: int, adapter: str | None) -> int:
        """Of a rollout: one forward pass a token, logits for each action."""
        with self.using(adapter):
            return tokens * self._operations_a_token(False, None, 0) + actions * products(
                self.unembedding_weight.numel(), backward=False, trained=False
            )

    def _operations_a_token(self, backward: bool, below: int | None, above: int) -> int:
        passed = [weight for layer in self._matrices[above:below] for weight in layer]
        trunk = sum(weight.numel() for weight in passed)
        trained = any(weight.requires_grad for weight in passed)
        adapter = 0 if self._adapter is None else self._adapter_numel[self._adapter]
        return products(trunk, backward=backward, trained=trained) + products(adapter, backward=backward, trained=True)

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
        return Network(copy.deepcopy(self.model), recompute=self.recompute, family=self.family)

    def trunk_copy(self) -> Network:
        """The same without the output matrix."""
        assert not self._adapters
        trunk = copy.deepcopy(self.trunk)
        assert isinstance(trunk, PreTrainedModel)
        return Network(trunk, recompute=self.recompute, family=self.family)


def linear_layers(trunk: nn.Module) -> tuple[str, ...]:
    """The last names of all matrices of the trunk, in order: what adapters are put on, whatever the architecture."""
    names = {
        name.rsplit(".", 1)[-1] for name, module in trunk.named_modules() if isinstance(module, nn.Linear | Conv1D)
    }
    return tuple(sorted(names))


def matrices(part: nn.Module) -> list[Tensor]:
    return [module.weight for module in part.modules() if isinstance(module, nn.Linear | Conv1D)]


def layer_list(trunk: nn.Module) -> list[nn.Module]:
    """The layers in order; none where the architecture does not keep them in one list of its own."""
    lists = [module for module in trunk.children() if isinstance(module, nn.ModuleList)]
    return list(lists[0]) if len(lists) == 1 else []
