// Builds a site from docs, as it is: a page of Markdown becomes a page of HTML, README.md becomes index.html, and links to other files of
// the repository lead to the repository. Run by "make site", in the root of the repository.
import { existsSync, readFileSync, statSync } from "node:fs";
import path from "node:path";
import anchor from "markdown-it-anchor";

const docs = "docs";
const repository = "https://github.com/stack-controller/stack-controller";

// The parts of the menu: the folder of their pages, below docs, and their title.
const parts = [
  { folder: "guides", title: "Guides" },
  { folder: "spec/v1", title: "Specification" },
  { folder: "", title: "Reference" },
  { folder: "api/v1", title: "API" },
  { folder: "compatibility", title: "Compatibility" },
  { folder: "examples", title: "Examples" },
];

// slug returns the anchor of a heading, as the repository's server makes it.
const slug = (text) => text.trim().toLowerCase().replace(/[^\p{L}\p{N}\p{M}\s_-]/gu, "").replace(/\s/g, "-");

// address returns the path of the page of a file below docs.
const address = (file) => file.replace(/(^|\/)README\.md$/, "$1index.html").replace(/\.md$/, ".html");

// titleOf returns the first heading of a page.
const titleOf = (file) => readFileSync(file, "utf8").match(/^# (.+)$/m)?.[1] ?? path.basename(file);

// resolve returns where a link of a page leads. Links that lead nowhere are an error.
function resolve(link, page) {
  if (/^[a-z][a-z0-9+.-]*:/i.test(link) || link.startsWith("#")) return link;
  const [target, fragment] = link.split("#");
  const file = path.posix.normalize(path.posix.join(path.posix.dirname(page), decodeURIComponent(target)));
  if (file.startsWith("..") || !existsSync(file)) throw new Error(`${page} links to ${link}, which does not exist`);
  const inside = path.posix.relative(docs, file);
  const hash = fragment === undefined ? "" : `#${fragment}`;
  if (!inside.startsWith("..") && /\.(md|svg)$/.test(file)) {
    return path.posix.relative(path.posix.dirname(address(path.posix.relative(docs, page))), address(inside)) + hash;
  }
  return `${repository}/${statSync(file).isDirectory() ? "tree" : "blob"}/main/${file}${hash}`;
}

export default function (config) {
  config.setTemplateFormats(["md"]);
  config.setUseGitIgnore(false);
  config.addPassthroughCopy(`${docs}/**/*.svg`);
  config.amendLibrary("md", (md) => {
    md.set({ html: true });
    md.use(anchor, { slugify: slug, tabIndex: false });
    // A long row of a table scrolls by itself.
    md.renderer.rules.table_open = () => '<div class="table"><table>';
    md.renderer.rules.table_close = () => "</table></div>";
  });
  config.addGlobalData("layout", "page.njk");
  config.addGlobalData("repository", repository);
  config.addGlobalData("eleventyComputed", {
    file: (data) => data.page.inputPath.replace(/^\.\//, ""),
    permalink: (data) => address(path.posix.relative(docs, data.page.inputPath.replace(/^\.\//, ""))),
    title: (data) => titleOf(data.page.inputPath),
    root: (data) => path.posix.relative(path.posix.dirname(path.posix.relative(docs, data.page.inputPath.replace(/^\.\//, ""))), "") || ".",
  });
  config.addCollection("menu", (collections) =>
    parts.map(({ folder, title }) => ({
      title,
      pages: collections
        .getAll()
        .filter((item) => {
          const file = path.posix.relative(docs, item.inputPath.replace(/^\.\//, ""));
          if (folder === "examples") return file.startsWith("examples/");
          return path.posix.dirname(file) === (folder || ".") && file !== "README.md";
        })
        .map((item) => ({ path: address(path.posix.relative(docs, item.inputPath.replace(/^\.\//, ""))), title: titleOf(item.inputPath) }))
        .sort((a, b) => a.title.localeCompare(b.title)),
    })),
  );
  config.addTransform("links", function (content) {
    const page = this.page.inputPath.replace(/^\.\//, "");
    const body = content.indexOf("<main");
    return (
      content.slice(0, body) +
      content.slice(body).replace(/ (href|src)="([^"]*)"/g, (_, name, link) => ` ${name}="${resolve(link.replaceAll("&amp;", "&"), page)}"`)
    );
  });
  return { dir: { input: docs, includes: "../.ci/site", output: "dist/site" }, markdownTemplateEngine: false };
}
