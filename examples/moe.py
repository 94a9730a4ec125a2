"""The experts' GEMM of a mixture of experts, where one expert is hot: half of the tokens are its own.

A block computes all rows of one expert for a range of columns; where an expert has no token it returns at once.
"""

import argparse

import torch
import triton
import triton.language as tl


@triton.jit
def experts_gemm(
    x_ptr, w_ptr, order_ptr, starts_ptr, out_ptr, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    expert = tl.program_id(0).to(tl.int64)
    first = tl.load(starts_ptr + expert)
    last = tl.load(starts_ptr + expert + 1)
    if first == last:
        return
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    for start in range(first, last, BLOCK_M):
        place = start + tl.arange(0, BLOCK_M)
        token = tl.load(order_ptr + place, mask=place < last, other=0)
        x_ptrs = x_ptr + token[:, None] * K + k[None, :]
        w_ptrs = w_ptr + expert * N * K + k[:, None] * N + cols[None, :]
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for _ in range(0, K, BLOCK_K):
            x = tl.load(x_ptrs, mask=place[:, None] < last, other=0.0)
            w = tl.load(w_ptrs)
            acc = tl.dot(x, w, acc)
            x_ptrs += BLOCK_K
            w_ptrs += BLOCK_K * N
        out_ptrs = out_ptr + token[:, None] * N + cols[None, :]
        tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=place[:, None] < last)


def experts(x, w, chosen):
    """x [tokens, K], w [experts, K, N], chosen [tokens]: each token times the weights of its expert."""
    n_experts, k, n = w.shape
    out = torch.empty(len(x), n, device=x.device, dtype=x.dtype)
    order = torch.argsort(chosen, stable=True).int()
    counts = torch.bincount(chosen, minlength=n_experts)
    starts = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int()
    experts_gemm[(n_experts, n // 128)](
        x, w, order, starts, out, n, k, BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, num_warps=8, num_stages=3
    )
    return out


def hot_choice(tokens, n_experts):
    """Half of the tokens choose expert 0, the last quarter of the experts is chosen by none."""
    chosen = torch.randint(1, n_experts * 3 // 4, (tokens,))
    chosen[torch.randperm(tokens)[: tokens // 2]] = 0
    return chosen


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--size", type=int, default=2048)
    args = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(args.tokens, args.size, device=device, dtype=torch.bfloat16)
    w = torch.randn(args.experts, args.size, args.size, device=device, dtype=torch.bfloat16)
    chosen = hot_choice(args.tokens, args.experts).to(device)
    reference = torch.empty(args.tokens, args.size, device=device)
    for expert in chosen.unique():
        reference[chosen == expert] = x[chosen == expert].float() @ w[expert].float()
    error = (experts(x, w, chosen).float() - reference).norm() / reference.norm()
    assert error < 5e-3, f"relative error {error}"
    ms = triton.testing.do_bench(lambda: experts(x, w, chosen))
    print(f"{args.tokens} tokens, {args.experts} experts, half to one: error {error:.1e}, {ms:.3f} ms")
