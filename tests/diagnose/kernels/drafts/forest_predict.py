"""Predictions of 256 boosted trees of depth 8 for a batch of 8192 samples of 64 features.

Fault: a program takes 128 samples through all trees, one after another: 64 programs for 132 multiprocessors, each a
chain of 2048 steps that wait for a node and then for the feature it names, about 0.5 us a step.
Fix: give each program 16 of the trees, 1024 programs in all, and add up what they find.
"""

import torch
import triton
import triton.language as tl

SAMPLES = 8192
FEATURES = 64
TREES = 256
DEPTH = 8
NODES = 255


@triton.jit
def forest_predict(  # planted: launch-too-small
    x_ptr,
    feature_ptr,
    threshold_ptr,
    leaf_ptr,
    out_ptr,
    FEATURES: tl.constexpr,
    TREES: tl.constexpr,
    DEPTH: tl.constexpr,
    NODES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    sample = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for tree in range(TREES):
        node = tl.zeros((BLOCK,), tl.int32)
        for _ in range(DEPTH):
            feature = tl.load(feature_ptr + tree * NODES + node)
            threshold = tl.load(threshold_ptr + tree * NODES + node)
            value = tl.load(x_ptr + sample * FEATURES + feature)
            node = 2 * node + 1 + (value > threshold).to(tl.int32)
        acc += tl.load(leaf_ptr + tree * (NODES + 1) + node - NODES)
    tl.store(out_ptr + sample, acc)


torch.manual_seed(0)
x = torch.randn(SAMPLES, FEATURES, device="cuda")
feature = torch.randint(0, FEATURES, (TREES, NODES), device="cuda", dtype=torch.int32)
threshold = torch.randn(TREES, NODES, device="cuda")
leaf = torch.randn(TREES, NODES + 1, device="cuda")
out = torch.zeros(SAMPLES, device="cuda")

forest_predict[(SAMPLES // 128,)](
    x,
    feature,
    threshold,
    leaf,
    out,
    FEATURES=FEATURES,
    TREES=TREES,
    DEPTH=DEPTH,
    NODES=NODES,
    BLOCK=128,
    num_warps=4,
)

want = torch.zeros(SAMPLES, device="cuda")
for tree in range(TREES):
    node = torch.zeros(SAMPLES, device="cuda", dtype=torch.int64)
    for _ in range(DEPTH):
        value = x.gather(1, feature[tree][node].long()[:, None])[:, 0]
        node = 2 * node + 1 + (value > threshold[tree][node])
    want += leaf[tree][node - NODES]
torch.testing.assert_close(out, want, rtol=1e-3, atol=1e-3)
