"""Squared sine of half the angle to the nearest of 4096 stations, for each of 65536 points on the sphere."""

import torch
import triton
import triton.language as tl

QUERIES = 65536
STATIONS = 4096
EARTH_KM = 6371.0


@triton.jit
def nearest_station(query_ptr, station_ptr, out_ptr, queries, stations, BLOCK_Q: tl.constexpr, BLOCK_S: tl.constexpr):
    q = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    x = tl.load(query_ptr + q)
    y = tl.load(query_ptr + queries + q)
    z = tl.load(query_ptr + 2 * queries + q)
    best = tl.full((BLOCK_Q, BLOCK_S), 4.0, tl.float32)
    for start in range(0, stations, BLOCK_S):
        s = start + tl.arange(0, BLOCK_S)
        dx = x[:, None] - tl.load(station_ptr + s)[None, :]
        dy = y[:, None] - tl.load(station_ptr + stations + s)[None, :]
        dz = z[:, None] - tl.load(station_ptr + 2 * stations + s)[None, :]
        best = tl.minimum(best, dx * dx + dy * dy + dz * dz)
    # a quarter of the squared chord is the squared sine of half the angle
    tl.store(out_ptr + q, tl.min(best, axis=1) * 0.25)


torch.manual_seed(0)
lat = torch.asin(torch.rand(QUERIES, device="cuda") * 2 - 1)
lon = (torch.rand(QUERIES, device="cuda") * 2 - 1) * 3.1415927
station_lat = torch.asin(torch.rand(STATIONS, device="cuda") * 2 - 1)
station_lon = (torch.rand(STATIONS, device="cuda") * 2 - 1) * 3.1415927
nearest = torch.empty(QUERIES, device="cuda")

query = torch.stack((lat.cos() * lon.cos(), lat.cos() * lon.sin(), lat.sin()))
station = torch.stack((station_lat.cos() * station_lon.cos(), station_lat.cos() * station_lon.sin(), station_lat.sin()))
nearest_station[(QUERIES // 128,)](query, station, nearest, QUERIES, STATIONS, BLOCK_Q=128, BLOCK_S=64, num_warps=8)

distance = 2 * EARTH_KM * torch.asin(nearest.sqrt())
for part in range(0, QUERIES, 8192):
    a, b = lat[part : part + 8192, None], lon[part : part + 8192, None]
    want = torch.sin((a - station_lat) / 2) ** 2
    want += torch.cos(a) * torch.cos(station_lat) * torch.sin((b - station_lon) / 2) ** 2
    want = 2 * EARTH_KM * torch.asin(want.min(1).values.sqrt())
    torch.testing.assert_close(distance[part : part + 8192], want, rtol=1e-3, atol=2e-2)
