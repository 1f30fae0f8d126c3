"""One lock of kazoo, moved by JSON lines on standard input, answered on standard output.

{"call": "acquire", "client": "kazoo", "server": "HOST:PORT", "session": 10000, "lock": "/locks/a", "recipe": "write",
 "wait": 0, "ttl": 60000}
{"call": "release"}
{"call": "work", "client": ..., "server": ..., "session": ..., "lock": ..., "recipe": ..., "recipes": "read,write",
 "rounds": 80, "wait": 60000, "process": 1, "history": FILE}

Times are in milliseconds; a session knows no ttl. The answer is {"ok": true} when the lock was taken or released,
{"ok": false} when it is somebody else's, and {"error": TEXT} for anything that must not happen. `work` acquires and releases the lock
`rounds` times, by each recipe in turn, and appends what happened to the file: events of lock_testkit::history, where
the place in the file is the time. The first line is {"ok": true} when there is nothing left to load.
"""

import json
import logging
import os
import sys
from functools import cache
from itertools import cycle, islice

from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout
from kazoo.recipe.lock import Lock, ReadLock, WriteLock

RECIPES = {"mutex": Lock, "read": ReadLock, "write": WriteLock}
PATTERNS = {"kazoo": [], "kazoo-with-patterns": ["lock-"]}


@cache
def connect(server, session):
    client = KazooClient(hosts=server, timeout=session / 1000)
    client.start(timeout=30)
    return client


class History:
    def __init__(self, file, process, lock):
        # What is appended in one go stays in one piece.
        self.file = os.open(file, os.O_WRONLY | os.O_APPEND)
        self.event = {"process": process, "client": 0, "lock": lock, "at_ns": 0}

    def record(self, kind, **more):
        event = self.event | {"kind": kind} | more
        os.write(self.file, (json.dumps(event) + "\n").encode())


class Peer:
    lock = None

    def acquire(self, client, server, session, lock, recipe, wait, ttl=None):
        zk = connect(server, session)
        self.lock = RECIPES[recipe](zk, lock, extra_lock_patterns=PATTERNS[client])
        if wait == 0:
            return self.lock.acquire(blocking=False)
        try:
            return self.lock.acquire(timeout=wait / 1000)
        except LockTimeout:
            return False

    def release(self):
        return self.lock.release()

    def work(self, recipes, rounds, process, history, **at):
        history = History(history, process, at["lock"])
        for recipe in islice(cycle(recipes.split(",")), rounds):
            history.record("acquire_called")
            if not self.acquire(**at | {"recipe": recipe}):
                return False
            mode = "shared" if recipe == "read" else "exclusive"
            history.record("acquired", token=16 * self.czxid(), mode=mode)
            history.record("release_called")
            self.release()
            history.record("released", outcome="released")
        return True

    def czxid(self):
        return self.lock.client.exists(f"{self.lock.path}/{self.lock.node}").czxid


def answer(peer, request):
    call = getattr(peer, request.pop("call"))
    try:
        return {"ok": call(**request)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main():
    # A server that is gone is no news at the end.
    logging.getLogger("kazoo").setLevel(logging.ERROR)
    peer = Peer()
    print(json.dumps({"ok": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(peer, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
