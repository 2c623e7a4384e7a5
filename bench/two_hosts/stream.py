#!/usr/bin/env python3
"""What a plain TCP connection carries both ways at once, as a JSON object.

    tools/two-hosts --per-host 1 bench/two_hosts/stream.py --address 10.77.0.1

Both sides send and receive as many bytes; the slower one's time counts.
"""

import argparse
import json
import os
import socket
import statistics
import struct
import threading
import time

PORT = 29501
SIZE = 25 << 20  # bytes, each way


def connect(options, rank):
    if rank == 0:
        with socket.create_server((options.address, PORT)) as server:
            return server.accept()[0]
    end = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection((options.address, PORT))
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


def receive(connection, view):
    while view:
        got = connection.recv_into(view)
        if got == 0:
            raise ConnectionError("stream: the other side has closed the connection")
        view = view[got:]


def meet(connection):
    connection.sendall(b"x")
    receive(connection, memoryview(bytearray(1)))


def turn(connection, data, room):
    """Seconds of this side, from when both are ready."""
    meet(connection)
    begin = time.perf_counter()
    sender = threading.Thread(target=connection.sendall, args=(data,))
    sender.start()
    receive(connection, memoryview(room))
    sender.join()
    return time.perf_counter() - begin


def slower(connection, seconds):
    connection.sendall(struct.pack("d", seconds))
    other = bytearray(8)
    receive(connection, memoryview(other))
    return max(seconds, struct.unpack("d", other)[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", required=True, help="of rank 0")
    options = parser.parse_args()
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    data, room = bytes(SIZE), bytearray(SIZE)
    with connect(options, rank) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        times = [slower(connection, turn(connection, data, room)) for _ in range(5)]
    if rank == 0:
        print(json.dumps({"bytes": SIZE, "time_us": 1e6 * statistics.median(times)}))


if __name__ == "__main__":
    main()
