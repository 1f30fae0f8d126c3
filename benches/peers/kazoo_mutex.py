"""Contends for one lock with kazoo's Lock. The lines are those of Curator.java."""

import sys
import time

from kazoo.client import KazooClient


def main():
    hosts, path = sys.stdin.readline().split()
    client = KazooClient(hosts, timeout=10.0)
    client.start()
    lock = client.Lock(path)
    print("ready", flush=True)
    until, hold = map(int, sys.stdin.readline().split())
    holds = []
    while time.monotonic_ns() < until:
        called = time.monotonic_ns()
        lock.acquire()
        acquired = time.monotonic_ns()
        if hold:
            time.sleep(hold / 1e9)
        release_called = time.monotonic_ns()
        lock.release()
        holds.append(f"{called} {acquired} {release_called} {time.monotonic_ns()}")
    print("\n".join([*holds, "end"]), flush=True)
    client.stop()


main()
