"""Mooncake's transfer engine over RDMA: the server registers memory; the client writes to it and reads it back.

transfer_mooncake.py server ADDRESS FILE
transfer_mooncake.py client ADDRESS FILE
"""

import os
import sys
import time

import numpy as np
from mooncake.engine import TransferEngine

role, address, file = sys.argv[1:4]
BYTES = 8 << 20
SIZES = (1, 4096, 65536, 1 << 20, 4 << 20)

engine = TransferEngine()
assert engine.initialize(address, "P2PHANDSHAKE", "rdma", "") == 0, "initialize"
memory = np.zeros(BYTES, np.uint8)
assert engine.register_memory(memory.ctypes.data, BYTES) == 0, "register"

if role == "server":
    memory[:] = 7
    with open(file + ".part", "w") as meeting:
        print(f"{address}:{engine.get_rpc_port()} {memory.ctypes.data}", file=meeting)
    os.rename(file + ".part", file)
    while memory[-1] != 99:
        time.sleep(0.01)
else:
    while not os.path.exists(file):
        time.sleep(0.01)
    with open(file) as meeting:
        peer, there = meeting.read().split()
    here, there = memory.ctypes.data, int(there)
    for turn in range(1, 4):
        for size in SIZES:
            memory[:] = turn
            assert engine.transfer_sync_write(peer, here, there, size) == 0, f"write {size}"
            memory[:] = 50
            assert engine.transfer_sync_read(peer, here, there, size) == 0, f"read {size}"
            assert (memory[:size] == turn).all(), f"read {size}: other bytes"
            assert (memory[size:] == 50).all(), f"read {size}: too many bytes"
    memory[0] = 99
    assert engine.transfer_sync_write(peer, here, there + BYTES - 1, 1) == 0, "write the end"
print(f"{role}: done", flush=True)
