// Fails if an address of another site that the built site links to does not exist. A server that refuses this program, or has an error, is only
// named. Links to files of this repository are left out: the build has checked that the files are there.
import { readFileSync, readdirSync } from "node:fs";
import path from "node:path";
import { setTimeout } from "node:timers/promises";

const root = process.argv[2];
const ours = /^https:\/\/github\.com\/stack-controller\/stack-controller\/(blob|edit|tree)\/main\//;
const attempts = 3;
const pause = 1_000; // between two attempts, in milliseconds
const patience = 20_000; // for an answer, in milliseconds
const atOnce = 4;

const linked = new Map(); // the pages of each address
for (const file of readdirSync(root, { recursive: true }).filter((file) => file.endsWith(".html"))) {
  for (const [, link] of readFileSync(path.join(root, file), "utf8").matchAll(/ (?:href|src)="(https?:[^"#]*)/g)) {
    const address = link.replaceAll("&amp;", "&");
    if (!ours.test(address)) linked.set(address, (linked.get(address) ?? new Set()).add(file));
  }
}

// problemOf returns what is wrong with an address, and whether it is certain.
async function problemOf(address, attempt = 1) {
  try {
    const { status, ok, body } = await fetch(address, { signal: AbortSignal.timeout(patience) });
    await body?.cancel();
    return ok ? undefined : { text: `answers ${status}`, certain: status === 404 || status === 410 };
  } catch (error) {
    if (attempt === attempts) return { text: `does not answer: ${error.cause?.message ?? error.message}`, certain: true };
    await setTimeout(pause);
    return problemOf(address, attempt + 1);
  }
}

const waiting = [...linked.keys()].sort();
let broken = waiting.length === 0;
async function check() {
  for (let address = waiting.shift(); address !== undefined; address = waiting.shift()) {
    const problem = await problemOf(address);
    if (problem === undefined) continue;
    broken ||= problem.certain;
    console.log(`${problem.certain ? "broken" : "unknown"}: ${address} ${problem.text}, in ${[...linked.get(address)].join(", ")}`);
  }
}
await Promise.all(Array.from({ length: atOnce }, check));
console.log(`${linked.size} addresses`);
process.exit(broken ? 1 : 0);
