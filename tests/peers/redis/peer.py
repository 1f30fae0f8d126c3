"""One lock of a Python client, moved by JSON lines on standard input, answered on standard output.

{"call": "acquire", "client": "pottery", "servers": [URL, ...], "name": "a", "ttl": 2000, "wait": 0}
{"call": "extend", "ttl": 2000}
{"call": "release"}
{"call": "reset"}

Times are in milliseconds; a ttl of null is none at all. The answer is {"ok": true} when the lock was taken, extended
or released, {"ok": false} when it is somebody else's, and {"error": TEXT} for anything that must not happen. The
first line is {"ok": true} when there is nothing left to load.
"""

import json
import logging
import sys
import time
from functools import cache

import pottery
import redis
import redis_lock

POLL = 0.1


class RedisPy:
    def __init__(self, servers, name, ttl):
        self.lock = servers[0].lock(name, timeout=ttl, sleep=POLL)

    def acquire(self, wait):
        return self.lock.acquire(blocking=wait > 0, blocking_timeout=wait or None)

    def extend(self, ttl):
        self.lock.extend(ttl, replace_ttl=True)

    def release(self):
        self.lock.release()


class PythonRedisLock:
    def __init__(self, servers, name, ttl):
        self.lock = redis_lock.Lock(servers[0], name, expire=ttl)

    def acquire(self, wait):
        if wait == 0:
            return self.lock.acquire(blocking=False)
        end = time.monotonic() + wait
        # It sleeps until one of its own kind pushes a signal, so it is sent to look for itself every second.
        while not self.lock.acquire(timeout=1):
            if time.monotonic() >= end:
                return False
        return True

    def extend(self, ttl):
        self.lock.extend(ttl)

    def release(self):
        self.lock.release()

    def reset(self):
        self.lock.reset()


class Pottery:
    def __init__(self, servers, name, ttl):
        self.lock = pottery.Redlock(key=name, masters=set(servers), auto_release_time=ttl)

    def acquire(self, wait):
        return self.lock.acquire(timeout=wait) if wait > 0 else self.lock.acquire(blocking=False)

    def extend(self, ttl):
        assert ttl == self.lock.auto_release_time, "pottery extends by its own time only"
        self.lock.extend()

    def release(self):
        self.lock.release()


class Setnx:
    """As the page of the command SETNX told; the value is the time at which the lock ends."""

    def __init__(self, servers, name, ttl):
        self.redis, self.name, self.ttl = servers[0], name, int(ttl * 1000)

    def acquire(self, wait):
        end = time.monotonic() + wait
        while not self.acquire_once():
            if time.monotonic() >= end:
                return False
            time.sleep(POLL)
        return True

    def acquire_once(self):
        if self.redis.setnx(self.name, self.end()):
            return True
        before = self.redis.get(self.name)
        if before is None or int(before) >= now():
            return False
        return self.redis.getset(self.name, self.end()) == before

    def end(self):
        self.ends = now() + self.ttl + 1
        return self.ends

    def release(self):
        if now() <= self.ends:
            self.redis.delete(self.name)


CLIENTS = {"redis-py": RedisPy, "python-redis-lock": PythonRedisLock, "pottery": Pottery, "setnx": Setnx}
NOT_THEIRS = (
    redis.exceptions.LockError,
    redis_lock.NotAcquired,
    pottery.ExtendUnlockedLock,
    pottery.ReleaseUnlockedLock,
)


@cache
def connect(url):
    return redis.Redis.from_url(url)


def now():
    return int(time.time() * 1000)


def seconds(milliseconds):
    return None if milliseconds is None else milliseconds / 1000


class Peer:
    lock = None

    def acquire(self, client, servers, name, ttl, wait):
        self.lock = CLIENTS[client]([connect(url) for url in servers], name, seconds(ttl))
        return bool(self.lock.acquire(seconds(wait)))

    def extend(self, ttl):
        self.lock.extend(seconds(ttl))
        return True

    def release(self):
        self.lock.release()
        return True

    def reset(self):
        self.lock.reset()
        return True


def answer(peer, request):
    call = getattr(peer, request.pop("call"))
    try:
        return {"ok": call(**request)}
    except NOT_THEIRS:
        return {"ok": False}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main():
    # A lock that somebody else has is no news here.
    logging.getLogger("redis_lock").setLevel(logging.ERROR)
    peer = Peer()
    print(json.dumps({"ok": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(peer, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
