// Installs the server for this editor alone, when somebody asks for it: a virtual environment in the
// extension's storage, from the wheel that the extension carries. Its dependencies come from the user's
// package index: numpy is no pure-Python wheel, and all of them are ten times the size of the extension.

import { execFile } from "node:child_process";
import { mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { homedir, tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { brotliDecompress } from "node:zlib";
import { type CancellationToken, ProgressLocation, window } from "vscode";
import { pythonOf } from "./locate.ts";

const run = promisify(execFile);
const unpack = promisify(brotliDecompress);
const PACKED = ".br";
const NEEDS: readonly [number, number] = [3, 11];
const NAMES = ["python3", "python3.13", "python3.12", "python3.11", "python"];
const PROBE = "import sys, venv, ensurepip; print(*sys.version_info[:2])";

/** Make the environment `folder`. Throws an Error with cause and remedy. `interpreter`: may be run. */
export async function install(
  folder: string,
  bundled: string,
  interpreter: string | undefined,
): Promise<void> {
  const packed = (await readdir(bundled).catch(() => [])).find((name) => name.endsWith(`.whl${PACKED}`));
  if (packed === undefined)
    throw new Error("this build of the extension carries no server: pip install CLONE-OF-KERNEL-LSP");
  const python = await newEnough([...(interpreter ? [interpreter] : []), ...NAMES]);
  const options = { location: ProgressLocation.Notification, title: "kernel-lsp", cancellable: true };
  await window.withProgress(options, async (progress, token) => {
    progress.report({ message: "making an environment of its own" });
    await rm(folder, { recursive: true, force: true });
    await step(token, python, ["-I", "-m", "venv", folder]);
    progress.report({ message: "installing the server" });
    const place = await mkdtemp(join(tmpdir(), "kernel-lsp-"));
    try {
      const wheel = join(place, packed.slice(0, -PACKED.length));
      await writeFile(wheel, await unpack(await readFile(join(bundled, packed))));
      const pip = ["-I", "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel];
      await step(token, pythonOf(folder), pip);
    } finally {
      await rm(place, { recursive: true, force: true });
    }
  });
}

/** The first interpreter that can carry the server. */
async function newEnough(names: readonly string[]): Promise<string> {
  const seen: string[] = [];
  for (const name of names) {
    try {
      const { stdout } = await run(name, ["-I", "-c", PROBE], { cwd: homedir(), timeout: 20_000 });
      const [major = 0, minor = 0] = stdout.trim().split(" ").map(Number);
      if (major > NEEDS[0] || (major === NEEDS[0] && minor >= NEEDS[1])) return name;
      seen.push(`${name} is ${major}.${minor}`);
    } catch {
      // absent, or without venv: the next name may do
    }
  }
  const found = seen.length > 0 ? ` (${seen.join(", ")})` : "";
  throw new Error(
    `no Python ${NEEDS.join(".")} or newer with venv was found${found}; install one (Debian: apt install python3-venv), then try again`,
  );
}

async function step(token: CancellationToken, program: string, args: string[]): Promise<void> {
  const controller = new AbortController();
  const listening = token.onCancellationRequested(() => controller.abort());
  try {
    await run(program, args, { cwd: homedir(), signal: controller.signal });
  } catch (error) {
    if (token.isCancellationRequested) throw new Error("the installation was cancelled; nothing is kept");
    const said = String((error as { stderr?: string }).stderr ?? error)
      .trim()
      .split("\n")
      .at(-1);
    throw new Error(`${[program, ...args.slice(0, 4)].join(" ")} failed: ${said}`);
  } finally {
    listening.dispose();
  }
}
