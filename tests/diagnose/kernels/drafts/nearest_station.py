"""Squared sine of half the angle to the nearest of 4096 stations, for each of 65536 points on the sphere.

Fault: the haversine formula is evaluated for each pair: two sines of some 25 instructions each, with their range
reduction, for each of 268 M pairs, about 700 us. What orders the stations is no more than their distance in space.
Fix: turn points and stations into unit vectors, once each; a pair then takes three differences and three products.
"""

import torch
import triton
import triton.language as tl

QUERIES = 65536
STATIONS = 4096
EARTH_KM = 6371.0


@triton.jit
def nearest_station(
    lat_ptr, lon_ptr, station_lat_ptr, station_lon_ptr, out_ptr, stations, BLOCK_Q: tl.constexpr, BLOCK_S: tl.constexpr
):
    q = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    lat = tl.load(lat_ptr + q)
    lon = tl.load(lon_ptr + q)
    cos_lat = tl.cos(lat)
    best = tl.full((BLOCK_Q, BLOCK_S), 1.0, tl.float32)
    for start in range(0, stations, BLOCK_S):
        s = start + tl.arange(0, BLOCK_S)
        station_lat = tl.load(station_lat_ptr + s)
        station_lon = tl.load(station_lon_ptr + s)
        a = tl.sin((lat[:, None] - station_lat[None, :]) * 0.5)  # planted: slow-math
        b = tl.sin((lon[:, None] - station_lon[None, :]) * 0.5)
        best = tl.minimum(best, a * a + (cos_lat[:, None] * tl.cos(station_lat)[None, :]) * (b * b))
    tl.store(out_ptr + q, tl.min(best, axis=1))


torch.manual_seed(0)
lat = torch.asin(torch.rand(QUERIES, device="cuda") * 2 - 1)
lon = (torch.rand(QUERIES, device="cuda") * 2 - 1) * 3.1415927
station_lat = torch.asin(torch.rand(STATIONS, device="cuda") * 2 - 1)
station_lon = (torch.rand(STATIONS, device="cuda") * 2 - 1) * 3.1415927
nearest = torch.empty(QUERIES, device="cuda")

nearest_station[(QUERIES // 128,)](
    lat, lon, station_lat, station_lon, nearest, STATIONS, BLOCK_Q=128, BLOCK_S=64, num_warps=8
)

distance = 2 * EARTH_KM * torch.asin(nearest.sqrt())
for part in range(0, QUERIES, 8192):
    a, b = lat[part : part + 8192, None], lon[part : part + 8192, None]
    want = torch.sin((a - station_lat) / 2) ** 2
    want += torch.cos(a) * torch.cos(station_lat) * torch.sin((b - station_lon) / 2) ** 2
    want = 2 * EARTH_KM * torch.asin(want.min(1).values.sqrt())
    torch.testing.assert_close(distance[part : part + 8192], want, rtol=1e-3, atol=2e-2)
