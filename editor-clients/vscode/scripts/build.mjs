// Bundles the extension into dist/extension.js, and makes the .vsix beside it.
// Before: bundled/ holds the wheel of the server (scripts/setup-vscode puts it there).

import { copyFile, mkdir, readdir, rm } from "node:fs/promises";
import { createVSIX } from "@vscode/vsce";
import { build } from "esbuild";

await rm("dist", { recursive: true, force: true });
await build({
  entryPoints: ["src/extension.ts"],
  bundle: true,
  minify: true,
  sourcemap: false,
  platform: "node",
  format: "cjs",
  target: "node20",
  external: ["vscode"],
  outfile: "dist/extension.js",
});
await copyFile("../../LICENSE", "LICENSE");
await mkdir("media", { recursive: true });
await copyFile("../../examples/diagonal_matmul.py", "media/example.py");
const wheels = (await readdir("bundled").catch(() => [])).filter((name) => name.endsWith(".whl"));
if (wheels.length !== 1)
  throw new Error(`bundled/ holds ${wheels.length} wheels, not one: run scripts/setup-vscode`);
// Links in the README stay as they are until the repository has a public address.
await createVSIX({
  packagePath: "kernel-lsp.vsix",
  dependencies: false,
  allowMissingRepository: true,
  rewriteRelativeLinks: false,
});
