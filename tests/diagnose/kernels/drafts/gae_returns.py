"""Generalised advantage estimation, backwards over 1024 steps of 8192 environments, fp32.

Fault: the loop loads the three values of a step, waits for them and only then goes on to the next, so that each of 1024
steps pays the way to memory, 0.6 us, and the whole 0.6 ms and more. With one program per 64 environments there are 128
programs of two warps each and nothing else to do meanwhile. The bytes (134 MB) are worth 40 us.
Fix: loads do not depend on the recurrence. Let the loop be pipelined (tl.range with num_stages=8), so that the loads of
seven steps are under way while one is computed.
"""

import torch
import triton
import triton.language as tl

STEPS = 1024
ENVS = 8192


@triton.jit
def gae_returns(reward_ptr, value_ptr, alive_ptr, adv_ptr, gamma, lam, STEPS, ENVS: tl.constexpr, BLOCK: tl.constexpr):
    env = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    adv = tl.zeros((BLOCK,), tl.float32)
    after = tl.load(value_ptr + STEPS * ENVS + env)
    for i in range(STEPS):
        at = (STEPS - 1 - i) * ENVS + env
        reward = tl.load(reward_ptr + at)  # planted: few-bytes-in-flight
        value = tl.load(value_ptr + at)
        alive = tl.load(alive_ptr + at)
        delta = reward + gamma * after * alive - value
        adv = delta + gamma * lam * alive * adv
        after = value
        tl.store(adv_ptr + at, adv)


torch.manual_seed(0)
reward = torch.randn(STEPS, ENVS, device="cuda")
value = torch.randn(STEPS + 1, ENVS, device="cuda")
alive = (torch.rand(STEPS, ENVS, device="cuda") > 0.01).float()
adv = torch.empty_like(reward)

gae_returns[(ENVS // 64,)](reward, value, alive, adv, 0.99, 0.95, STEPS, ENVS=ENVS, BLOCK=64, num_warps=2)

last = torch.zeros(ENVS, device="cuda")
want = torch.empty_like(adv)
for t in reversed(range(STEPS)):
    last = reward[t] + 0.99 * value[t + 1] * alive[t] - value[t] + 0.99 * 0.95 * alive[t] * last
    want[t] = last
torch.testing.assert_close(adv, want, rtol=1e-4, atol=1e-3)
