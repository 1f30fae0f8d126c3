// Contends for one lock of node-redlock. The lines are those of redis_lock.py. The packages are looked for in the working
// directory.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const require = createRequire(`${process.cwd()}/`);
const { default: Redis } = require("ioredis");
const { default: Redlock, ExecutionError } = require("redlock");

// It has no default; this is that of its documentation.
const TTL = 5000;

const now = () => process.hrtime.bigint();

async function contend(redlock, key, until, hold) {
  const holds = [];
  while (now() < until) {
    const called = now();
    const lock = await acquire(redlock, key, until);
    if (!lock) break;
    const acquired = now();
    if (hold > 0n) await sleep(Number(hold) / 1e6);
    const releaseCalled = now();
    await lock.release();
    holds.push(`${called} ${acquired} ${releaseCalled} ${now()}`);
  }
  return holds;
}

// It gives up after ten attempts: again, until the end.
async function acquire(redlock, key, until) {
  for (;;) {
    try {
      return await redlock.acquire([key], TTL);
    } catch (error) {
      if (!(error instanceof ExecutionError)) throw error;
      if (now() >= until) return undefined;
    }
  }
}

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const line = async () => (await lines.next()).value.split(" ");

const [urls, key] = await line();
const servers = urls.split(",").map((url) => new Redis(url));
await Promise.all(servers.map((server) => server.ping()));
const redlock = new Redlock(servers);
console.log("ready");
const [until, hold] = (await line()).map(BigInt);
const holds = await contend(redlock, key, until, hold);
// A pipe is written in the background: exits once it is.
process.stdout.write([...holds, "end\n"].join("\n"), () => process.exit());
