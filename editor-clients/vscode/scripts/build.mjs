// Bundles the extension into dist/extension.js, and makes kernel-lsp.vsix; with --publish kernel-lsp-VERSION.vsix, whose
// README shows the pictures of the public repository, as a marketplace wants it.
// Before: bundled/ holds the wheel of the server (scripts/setup-vscode puts it there).

import { copyFile, mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { brotliCompressSync, constants } from "node:zlib";
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
// One text of 6.5 MB is 1.3 MB so, and 1.8 deflated. src/install.ts unpacks it.
const window = { [constants.BROTLI_PARAM_LGWIN]: constants.BROTLI_MAX_WINDOW_BITS };
const wheel = await readFile(`bundled/${wheels[0]}`);
await writeFile(`bundled/${wheels[0]}.br`, brotliCompressSync(wheel, { params: window }));
const { version, repository } = JSON.parse(await readFile("package.json", "utf8"));
const place = (kind) => `${repository.url.replace(/\.git$/, "")}/${kind}/HEAD/${repository.directory}`;
const links = { baseImagesUrl: place("raw"), baseContentUrl: place("blob") };
const publish = process.argv.includes("--publish");
await createVSIX({
  packagePath: publish ? `kernel-lsp-${version}.vsix` : "kernel-lsp.vsix",
  dependencies: false,
  ...(publish ? links : { rewriteRelativeLinks: false }),
});
