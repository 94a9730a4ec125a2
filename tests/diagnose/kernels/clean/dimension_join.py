"""Joins a fact table to a dimension table and takes the product, revenue = quantity x price[item].

Items come in no order, so the prices are fetched from all over a table of 16 MB, which stays in L2.
"""

import torch
import triton
import triton.language as tl

FACTS = 67108864
ITEMS = 4194304


@triton.jit
def dimension_join(item_ptr, quantity_ptr, price_ptr, revenue_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    item = tl.load(item_ptr + i, eviction_policy="evict_first")
    quantity = tl.load(quantity_ptr + i, eviction_policy="evict_first").to(tl.float32)
    price = tl.load(price_ptr + item, eviction_policy="evict_last")
    tl.store(revenue_ptr + i, quantity * price)


torch.manual_seed(0)
item = torch.randint(0, ITEMS, (FACTS,), device="cuda", dtype=torch.int32)
quantity = torch.randint(1, 100, (FACTS,), device="cuda", dtype=torch.uint8)
price = torch.rand(ITEMS, device="cuda")
revenue = torch.empty(FACTS, device="cuda")

dimension_join[(FACTS // 1024,)](item, quantity, price, revenue, BLOCK=1024, num_warps=4)

torch.testing.assert_close(revenue, quantity * price[item.long()])
