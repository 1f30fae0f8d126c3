// One lock of a JavaScript client, moved by JSON lines on standard input, answered on standard output.
// The lines are those of peer.py. The packages are looked for in the working directory.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const require = createRequire(`${process.cwd()}/`);
const { default: Redis } = require("ioredis");
const { default: Redlock, ExecutionError, ResourceLockedError } = require("redlock");

const POLL = 200;
const ONCE = { retryCount: 0 };

class NodeRedlock {
  constructor(servers, name, ttl) {
    this.redlock = new Redlock(servers);
    [this.name, this.ttl] = [name, ttl];
  }

  async acquire(wait) {
    const end = Date.now() + wait;
    // A retry of its own keeps the minority of the masters that it got before, and is kept out by it.
    for (;;) {
      if (await this.isDone(this.once())) return true;
      if (Date.now() >= end) return false;
      await sleep(Math.random() * POLL);
    }
  }

  async once() {
    this.lock = await this.redlock.acquire([this.name], this.ttl, ONCE);
  }

  async extend(ttl) {
    const extend = async () => {
      this.lock = await this.redlock.extend(this.lock, ttl, ONCE);
    };
    return this.isDone(extend());
  }

  async release() {
    return this.isDone(this.redlock.release(this.lock, ONCE));
  }

  // Whether it was done; false only if that is because the lock is somebody else's.
  async isDone(operation) {
    try {
      await operation;
      return true;
    } catch (error) {
      if (!(error instanceof ExecutionError)) throw error;
      for (const { votesAgainst } of await Promise.all(error.attempts)) {
        for (const reason of votesAgainst.values()) {
          if (!(reason instanceof ResourceLockedError)) throw reason;
        }
      }
      return false;
    }
  }
}

const CLIENTS = { "node-redlock": NodeRedlock };
const connections = new Map();

function connect(url) {
  if (!connections.has(url)) connections.set(url, new Redis(url));
  return connections.get(url);
}

let lock;

const CALLS = {
  acquire({ client, servers, name, ttl, wait }) {
    lock = new CLIENTS[client](servers.map(connect), name, ttl);
    return lock.acquire(wait);
  },
  extend: ({ ttl }) => lock.extend(ttl),
  release: () => lock.release(),
};

async function answer({ call, ...request }) {
  try {
    return { ok: await CALLS[call](request) };
  } catch (error) {
    return { error: String(error) };
  }
}

console.log(JSON.stringify({ ok: true }));
for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await answer(JSON.parse(line))));
}
process.exit();
