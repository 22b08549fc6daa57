// Which program is the server: found by looking at files, so that nothing runs before it is chosen.
// Order: the setting, the selected Python environment, PATH, the private environment that "Install" makes.
// Not covered: which interpreter the project uses for measuring (python.ts says it, the server decides).

import { access, constants, stat } from "node:fs/promises";
import { delimiter, dirname, isAbsolute, join, relative } from "node:path";

const WINDOWS = process.platform === "win32";
const PROGRAM = WINDOWS ? "kernel-lsp.exe" : "kernel-lsp";

export interface Place {
  /** The executable. */
  command: string;
  args: string[];
  /** Why this one, for the status and the doctor. */
  origin: string;
}

export interface Where {
  setting: string | undefined;
  /** The selected environment's interpreter. */
  interpreter: string | undefined;
  /** PATH of the extension host. */
  path: string | undefined;
  /** Folder of the private environment. */
  own: string;
  folders: readonly string[];
  trusted: boolean;
}

export type Located = { place: Place } | { problem: string; remedy: string };

export async function locate(where: Where): Promise<Located> {
  if (where.setting !== undefined) return chosenBySetting(where.setting, where);
  for (const [command, origin] of candidates(where)) {
    if (allowed(command, where) && (await executable(command))) {
      return { place: { command, args: ["serve"], origin } };
    }
  }
  return {
    problem: "the server is not installed where this window runs",
    remedy: "install it for this editor, or set kernel-lsp.server to where it is",
  };
}

/** The program of this name beside an interpreter. */
export function besides(interpreter: string): string {
  return join(dirname(interpreter), PROGRAM);
}

/** The interpreter of an environment. */
export function pythonOf(environment: string): string {
  return WINDOWS ? join(environment, "Scripts", "python.exe") : join(environment, "bin", "python");
}

function* candidates(where: Where): Generator<[string, string]> {
  if (where.interpreter !== undefined && isAbsolute(where.interpreter)) {
    yield [besides(where.interpreter), "the selected Python environment"];
  }
  for (const folder of (where.path ?? "").split(delimiter)) {
    if (isAbsolute(folder)) yield [join(folder, PROGRAM), "PATH"];
  }
  yield [besides(pythonOf(where.own)), "installed by this extension"];
}

/** A program inside a folder that nobody trusts is not started, be it to ask for its version. */
export function allowed(command: string, where: Pick<Where, "folders" | "trusted">): boolean {
  return where.trusted || !where.folders.some((folder) => inside(folder, command));
}

function inside(folder: string, path: string): boolean {
  const way = relative(folder, path);
  return way !== "" && !way.startsWith("..") && !isAbsolute(way);
}

/** An interpreter is taken as one that has the package; everything else is the program itself. */
async function chosenBySetting(setting: string, where: Where): Promise<Located> {
  const command = isAbsolute(setting) ? setting : join(where.folders[0] ?? "", setting);
  if (!allowed(command, where)) {
    return {
      problem: `the setting kernel-lsp.server names ${command}, in a folder that you do not trust`,
      remedy: "trust the folder, or name a program outside of it",
    };
  }
  if (!(await executable(command))) {
    return {
      problem: `the setting kernel-lsp.server names ${command}, which is no program`,
      remedy: "correct it, or remove it to search again",
    };
  }
  const python = /^python[\d.]*(\.exe)?$/i.test(command.split(/[\\/]/).at(-1) ?? "");
  // -P: or a kernel_lsp/ of the folder that it is started in would be imported instead of the package.
  const args = python ? ["-P", "-m", "kernel_lsp", "serve"] : ["serve"];
  return { place: { command, args, origin: "setting kernel-lsp.server" } };
}

async function executable(path: string): Promise<boolean> {
  try {
    await access(path, constants.X_OK);
    return (await stat(path)).isFile();
  } catch {
    return false; // absent, or not ours to run
  }
}
