"""The KL dial: beta, and who may move it.

Precedence: person > guardian > controller > schedule. A raise by the guardian puts a floor under beta for a
cooldown, so that the controller cannot undo it in the next step. Every move is made at a step boundary.
"""

from __future__ import annotations

import math

from tightrope.config.schedule import value_at
from tightrope.config.schema import KLSection
from tightrope.maths.controllers import expected_kl, log_space_step, smoothed_kl, ziegler_step
from tightrope.protocols import State

COOLDOWN_STEPS = 5
DEFAULT_TARGET_FLOOR = 4.0  # nats per response
DEFAULT_TARGET_PER_TOKEN = 0.1  # nats per response token


def default_target(mean_response_length: float) -> float:
    """max(4, 0.1 x length), nats per response.

    >>> default_target(20.0), default_target(100.0)
    (4.0, 10.0)
    """
    return max(DEFAULT_TARGET_FLOOR, DEFAULT_TARGET_PER_TOKEN * mean_response_length)


class BetaDial:
    def __init__(self, options: KLSection, total_steps: int) -> None:
        self._options = options
        self._total_steps = total_steps
        self.beta = value_at(options.beta, 0, total_steps)
        self.target = options.target
        self._boost = 1.0
        self._floor = 0.0
        self._floor_until = -1
        self._smooth: float | None = None  # of the KL so far; None before the first

    def value(self) -> float:
        return self.beta

    def settle_target(self, mean_response_length: float) -> None:
        """Fix the target of a run that named none, once, from the starting policy's responses."""
        if self.target is None:
            self.target = default_target(mean_response_length)

    def after_step(self, step: int, kl_seq: float, n_sequences: int, policy_trains: bool = True) -> None:
        """The controller's or the schedule's move after ``step`` (0-based) with its measured KL, nats a response.

        A KL that is not finite moves no controller: the guardian counts it and stops the run if it stays. Nor does the
        KL of a policy that is not trained yet (the critic's head start): it says nothing about beta.
        """
        options = self._options
        if options.mode == "fixed" or self.target is None:
            beta = self._boost * value_at(options.beta, step + 1, self._total_steps)
        elif not (policy_trains and math.isfinite(kl_seq)):
            beta = self.beta
        elif options.mode == "ziegler":
            beta = ziegler_step(self.beta, kl_seq, self.target, n_sequences, options.horizon)
        else:
            smooth = kl_seq if self._smooth is None else self._smooth
            ahead = expected_kl(kl_seq, smooth, options.lookahead)
            beta = log_space_step(
                self.beta, ahead, self.target, options.gain, options.max_step, options.beta_min, options.beta_max
            )
            self._smooth = smoothed_kl(kl_seq, smooth)
        self.beta = max(beta, self._floor) if step < self._floor_until else beta

    def multiply(self, factor: float, step: int) -> None:
        """The guardian's move at the end of ``step``. A raise holds against controller and schedule for the cooldown;
        a reduction ends the cooldown of an earlier raise."""
        self.beta *= factor
        self._boost *= factor
        self._floor, self._floor_until = (self.beta, step + 1 + COOLDOWN_STEPS) if factor > 1.0 else (0.0, -1)

    def state_dict(self) -> State:
        return {
            "beta": self.beta,
            "target": self.target,
            "boost": self._boost,
            "floor": self._floor,
            "floor_until": self._floor_until,
            "smooth": self._smooth,
        }

    def load_state_dict(self, state: State) -> None:
        self.beta, self.target = state["beta"], state["target"]
        self._boost, self._floor, self._floor_until = state["boost"], state["floor"], state["floor_until"]
        self._smooth = state["smooth"]
