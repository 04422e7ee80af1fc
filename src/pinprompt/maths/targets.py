"""What Q is regressed on, and the losses. All in units of alpha (z = Q/alpha, rewards r/alpha), all [B, L].

B sequences of L tokens; q_t = Q(z_{0:t-1}, z_t)/alpha of the taken tokens; V of state t is the value of the prefix
z_{0:t-1}. No tensor in here is as wide as the vocabulary. Targets and slow values are constants to autograd.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pinprompt.errors import PinpromptError


def monte_carlo(rewards: Tensor, length: int, gamma: float) -> Tensor:
    """The discounted return of each taken token: the target of the released PIN code.

    target_t = gamma^(L-1-t) R
    Paper: R of Eq. (5), `eq:sp_target`, at every t instead of the last alone.
    rewards [B] -> [B, L]
    """
    exponent = torch.arange(length - 1, -1, -1, device=rewards.device)
    return rewards.unsqueeze(-1) * torch.pow(gamma, exponent).to(rewards.dtype)


def bootstrapped(rewards: Tensor, v_next: Tensor, gamma: float) -> Tensor:
    """The discounted value of the state that a token leads to, and the reward after the last token.

    target_t = gamma V'(z_{0:t})  for t < L-1;  target_{L-1} = R
    Paper: Eq. (5), `eq:sp_target` (Tsallis V'), and the one below Eq. (3), `eqn:mse_loss` (Shannon V').
    rewards [B], v_next [B, L-1] (column t: the slow copy's value of state t+1) -> [B, L]
    """
    return torch.cat([gamma * v_next, rewards.unsqueeze(-1)], -1)


def monte_carlo_gains(gains: Tensor, gamma: float) -> Tensor:
    """The discounted return of each taken token where every token has a reward of its own.

    target_t = sum_{l >= t} gamma^(l-t) r_l
    Paper: not printed; with r_l = 0 but for r_{L-1} = R it is `monte_carlo`.
    gains [B, L] -> [B, L]
    """
    target = gains.clone()
    for place in range(gains.shape[1] - 2, -1, -1):
        target[:, place] += gamma * target[:, place + 1]
    return target


def bootstrapped_gains(gains: Tensor, v_next: Tensor, gamma: float) -> Tensor:
    """The reward of each token and the discounted value of the state that it leads to.

    target_t = r_t + gamma V'(z_{0:t})  for t < L-1;  target_{L-1} = r_{L-1}
    Paper: Eq. (5), `eq:sp_target`, with a reward at every t; with r_l = 0 but for r_{L-1} = R it is `bootstrapped`.
    gains [B, L], v_next [B, L-1] -> [B, L]
    """
    return gains + torch.cat([gamma * v_next, torch.zeros_like(gains[:, :1])], -1)


def squared_error(q_t: Tensor, target: Tensor) -> Tensor:
    """The squared error of Q against a fixed target; no gradient flows into the target.

    1/B sum_b sum_t (q_t - target_t)^2
    Paper: Eq. (3), `eqn:mse_loss`.
    q_t [B, L], target [B, L] -> scalar
    """
    if q_t.ndim != 2 or q_t.shape != target.shape:
        raise PinpromptError(f"Q and its target must both be [B, L]: got {[*q_t.shape]} and {[*target.shape]}.")
    return (q_t - target.detach()).square().sum(-1).mean()


def path_single(q_t: Tensor, v_t: Tensor, v_slow: Tensor, rewards: Tensor, gamma: float) -> Tensor:
    """RLPrompt's single-step path consistency: the advantage of a token is what it adds to the slow value.

    1/B sum_b sum_t (A_t - (gamma V'_{t+1} - V'_t))^2,  A_t = q_t - V_t,  R in place of gamma V'_{t+1} at t = L-1
    Paper: not printed; the loss of RLPrompt's code (`v2`), whose A_t is log pi for the Shannon policy.
    q_t, v_t, v_slow [B, L], rewards [B] -> scalar
    """
    return squared_error(q_t - v_t, bootstrapped(rewards, v_slow[:, 1:], gamma) - v_slow)


def path_multi(q_t: Tensor, v_t: Tensor, v_slow: Tensor, rewards: Tensor) -> Tensor:
    """RLPrompt's multi-step path consistency: the remaining advantages sum to R minus the slow value.

    1/B sum_b sum_t (sum_{l >= t} A_l - (R - V'_t))^2,  A_l = q_l - V_l
    Paper: not printed; the loss of RLPrompt's code (`v3`), without discount as there.
    q_t, v_t, v_slow [B, L], rewards [B] -> scalar
    """
    to_come = (q_t - v_t).flip(-1).cumsum(-1).flip(-1)
    return squared_error(to_come, rewards.unsqueeze(-1) - v_slow)


def path_mean(q_t: Tensor, v_t: Tensor, v_slow: Tensor, rewards: Tensor, gamma: float) -> Tensor:
    """RLPrompt's default loss: the mean of the single-step and the multi-step one.

    1/2 (path_single + path_multi)
    Paper: not printed; RLPrompt's `v2_v2r_v3_v3r`, in which the reversed terms are off.
    q_t, v_t, v_slow [B, L], rewards [B] -> scalar
    """
    single = path_single(q_t, v_t, v_slow, rewards, gamma)
    return (single + path_multi(q_t, v_t, v_slow, rewards)) / 2
