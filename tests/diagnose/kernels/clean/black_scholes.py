"""Black-Scholes prices of European calls and puts on many contracts, with one rate and one volatility."""

import torch
import triton
import triton.language as tl

CONTRACTS = 33554432
RATE = 0.03
VOLATILITY = 0.2


@triton.jit
def normal_cdf(x):
    return 0.5 + 0.5 * tl.erf(x * 0.7071067811865476)


@triton.jit
def black_scholes(
    spot_ptr,
    strike_ptr,
    years_ptr,
    call_ptr,
    put_ptr,
    RATE: tl.constexpr,
    VOLATILITY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    spot = tl.load(spot_ptr + i)
    strike = tl.load(strike_ptr + i)
    years = tl.load(years_ptr + i)
    width = VOLATILITY * tl.sqrt(years)
    d1 = (tl.log(spot / strike) + (RATE + 0.5 * VOLATILITY * VOLATILITY) * years) / width
    present = strike * tl.exp(-RATE * years)
    call = spot * normal_cdf(d1) - present * normal_cdf(d1 - width)
    tl.store(call_ptr + i, call)
    tl.store(put_ptr + i, call - spot + present)


torch.manual_seed(0)
spot = 50 + 100 * torch.rand(CONTRACTS, device="cuda")
strike = 50 + 100 * torch.rand(CONTRACTS, device="cuda")
years = 0.1 + 2 * torch.rand(CONTRACTS, device="cuda")
call = torch.empty(CONTRACTS, device="cuda")
put = torch.empty(CONTRACTS, device="cuda")

black_scholes[(CONTRACTS // 512,)](
    spot, strike, years, call, put, RATE=RATE, VOLATILITY=VOLATILITY, BLOCK=512, num_warps=4
)

width = VOLATILITY * years.sqrt()
d1 = ((spot / strike).log() + (RATE + 0.5 * VOLATILITY**2) * years) / width
present = strike * (-RATE * years).exp()
want = spot * torch.special.ndtr(d1) - present * torch.special.ndtr(d1 - width)
torch.testing.assert_close(call, want, atol=1e-3, rtol=1e-4)
torch.testing.assert_close(put, want - spot + present, atol=1e-3, rtol=1e-4)
