// Fails if a link of the built site leads to a page or a heading that does not exist. external.js asks for addresses of other sites.
import { readFileSync, readdirSync } from "node:fs";
import path from "node:path";

const root = process.argv[2];
const files = readdirSync(root, { recursive: true }).map((file) => file.split(path.sep).join("/"));
const pages = new Map(files.filter((file) => file.endsWith(".html")).map((file) => [file, readFileSync(path.join(root, file), "utf8")]));
const anchors = new Map([...pages].map(([file, html]) => [file, new Set([...html.matchAll(/ id="([^"]+)"/g)].map((found) => found[1]))]));
const broken = [];
let checked = 0;
for (const [file, html] of pages) {
  for (const [, link] of html.matchAll(/ (?:href|src)="([^"]*)"/g)) {
    if (/^[a-z][a-z0-9+.-]*:/i.test(link)) continue;
    checked++;
    const [target, fragment] = link.split("#");
    const found = target === "" ? file : path.posix.normalize(path.posix.join(path.posix.dirname(file), decodeURIComponent(target)));
    if (!files.includes(found)) broken.push(`${file}: ${link}`);
    else if (fragment !== undefined && !anchors.get(found)?.has(decodeURIComponent(fragment))) broken.push(`${file}: ${link} has no such heading`);
  }
}
console.log(`${pages.size} pages, ${checked} links`);
if (broken.length > 0 || pages.size === 0) {
  console.error(broken.join("\n"));
  process.exit(1);
}
