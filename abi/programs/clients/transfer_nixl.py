"""NIXL with the UCX backend: the server registers memory; the client reads it, writes to it and notifies the server.

transfer_nixl.py server ADDRESS FILE
transfer_nixl.py client ADDRESS FILE
"""

import os
import pickle
import sys
import time

import numpy as np
from nixl_cu12._api import nixl_agent, nixl_agent_config

role, _address, file = sys.argv[1:4]
BYTES = 8 << 20

agent = nixl_agent(role, nixl_agent_config(backends=["UCX"]))
memory = np.full(BYTES, 7 if role == "server" else 9, np.uint8)
agent.register_memory([(memory.ctypes.data, BYTES, 0, "")], "DRAM")
own = agent.get_xfer_descs([(memory.ctypes.data, BYTES, 0)], "DRAM")

if role == "server":
    with open(file + ".part", "wb") as meeting:
        pickle.dump((agent.get_agent_metadata(), agent.get_serialized_descs(own)), meeting)
    os.rename(file + ".part", file)
    while not agent.check_remote_xfer_done("client", b"written"):
        time.sleep(0.001)
    assert (memory == 9).all(), "other bytes were written"
else:
    while not os.path.exists(file):
        time.sleep(0.01)
    with open(file, "rb") as meeting:
        metadata, descriptors = pickle.load(meeting)
    peer = agent.add_remote_agent(metadata)
    there = agent.deserialize_descs(descriptors)
    for operation in ("READ", "WRITE"):
        handle = agent.initialize_xfer(operation, own, there, peer, b"written" if operation == "WRITE" else b"")
        state = agent.transfer(handle)
        while state not in ("DONE", "ERR"):
            state = agent.check_xfer_state(handle)
        assert state == "DONE", operation
        if operation == "READ":
            assert (memory == 7).all(), "other bytes were read"
            memory[:] = 9
        agent.release_xfer_handle(handle)
print(f"{role}: done", flush=True)
