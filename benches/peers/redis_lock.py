"""Contends for one lock of redis-py or pottery, which is the argument. The lines are those of Curator.java, with the
URLs of the servers, separated by commas, in place of the hosts."""

import logging
import sys
import time

import pottery
import redis

LOCKS = {
    "redis-py": lambda servers, key: servers[0].lock(key),
    "pottery": lambda servers, key: pottery.Redlock(key=key, masters=set(servers)),
}


def main():
    logging.getLogger("pottery").setLevel(logging.ERROR)
    urls, key = sys.stdin.readline().split()
    servers = [redis.Redis.from_url(url) for url in urls.split(",")]
    for server in servers:
        server.ping()
    lock = LOCKS[sys.argv[1]](servers, key)
    print("ready", flush=True)
    until, hold = map(int, sys.stdin.readline().split())
    holds = []
    while time.monotonic_ns() < until:
        called = time.monotonic_ns()
        # Without an argument both wait until they have the lock.
        lock.acquire()
        acquired = time.monotonic_ns()
        if hold:
            time.sleep(hold / 1e9)
        release_called = time.monotonic_ns()
        lock.release()
        holds.append(f"{called} {acquired} {release_called} {time.monotonic_ns()}")
    print("\n".join([*holds, "end"]), flush=True)


main()
