"""A client that only knows Redis: redis-py's Lock. It says once a second what it has seen."""

import json
import os
import random
import socket
import sys
import time

import redis

url, address, names = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
host, port = address.rsplit(":", 1)
counters = socket.create_connection((host, int(port))).makefile("rw")
client = redis.Redis.from_url(url)
seen = {"locked": 0, "busy": 0, "refused": 0}


def ask(request):
    counters.write(json.dumps(request) + "\n")
    counters.flush()
    return json.loads(counters.readline())


said = time.monotonic()
while True:
    name = random.choice(names)
    began = time.monotonic()
    lock = client.lock("lock:" + name, timeout=10, sleep=0.02, blocking_timeout=0.3)
    try:
        if lock.acquire():
            waited = int((time.monotonic() - began) * 1e6)
            about = {"name": name, "pid": os.getpid()}
            value = ask({"do": "enter", "rung": "redis-py", "waited_us": waited, **about})["value"]
            time.sleep(0.002)
            ask({"do": "write", "value": value + 1, **about})
            ask({"do": "leave", **about})
            seen["locked"] += 1
            lock.release()
        else:
            seen["busy"] += 1
    except redis.exceptions.RedisError as error:
        seen["refused"] += 1
        seen["error"] = str(error)[:120]
    time.sleep(0.1)
    if time.monotonic() - said > 1:
        said = time.monotonic()
        print(json.dumps(seen), flush=True)
