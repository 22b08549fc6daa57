// Programs of the workspace, in a terminal of the editor: recorded, or optimized as a whole. Which there are and with
// what line each is run, the server says (kernel_lsp/server/entries.py); it runs none, and neither does this unchosen.

import { relative } from "node:path";
import { type QuickPickItem, Uri, type WorkspaceFolder, window, workspace } from "vscode";
import type { QuietClient } from "./client.ts";

/** What is done with a program. */
export type Doing = "record" | "optimize";

const TITLES: Record<Doing, string> = {
  record: "Record a run: what it calls your modules and kernels with, and what takes its time",
  optimize: "Optimize this program: from a recorded run to the time of its own step",
};
const KINDS: Record<string, string> = { script: "script", test: "test", debug: "debug configuration" };

/** The reply of the command `kernel-lsp.entryPoints`. */
interface Programs {
  /** How a line begins. */
  record: string;
  optimize: string;
  /** The interpreter, as a shell takes it. */
  python: string;
  points: Program[];
  /** Why a debug configuration is not among them. */
  problems: string[];
  complete: boolean;
}

interface Program {
  name: string;
  kind: string;
  /** The folder that its lines are for. */
  path: string;
  record: string;
  optimize: string;
}

/** Asks which program, and runs it in a terminal, where its output and its end are seen. */
export async function inTerminal(client: QuietClient, doing: Doing): Promise<void> {
  if (!workspace.isTrusted) throw new Error("that runs a program: trust this workspace first");
  const folder = folderAtHand();
  const programs = await listed(client, folder);
  const chosen = await choose(programs, folder, doing);
  if (chosen === undefined) return;
  await workspace.saveAll(false); // what is run is what is seen
  const terminal = window.createTerminal({ name: `kernel-lsp ${doing}`, cwd: Uri.file(chosen.path) });
  terminal.show();
  terminal.sendText(chosen[doing]);
}

function folderAtHand(): WorkspaceFolder {
  const document = window.activeTextEditor?.document;
  const folder = (document && workspace.getWorkspaceFolder(document.uri)) ?? workspace.workspaceFolders?.[0];
  if (folder === undefined) throw new Error("no folder is open: open the program's first");
  return folder;
}

async function listed(client: QuietClient, folder: WorkspaceFolder): Promise<Programs> {
  const open = window.activeTextEditor?.document.uri;
  const argument = {
    folder: folder.uri.fsPath,
    // As VS Code reads them: with comments, and those of the workspace file.
    configurations: workspace.getConfiguration("launch", folder.uri).get<unknown[]>("configurations", []),
    ...(open?.scheme === "file" ? { uri: open.toString() } : {}),
  };
  const asked = { command: "kernel-lsp.entryPoints", arguments: [argument] };
  return client.sendRequest<Programs>("workspace/executeCommand", asked);
}

async function choose(
  programs: Programs,
  folder: WorkspaceFolder,
  doing: Doing,
): Promise<Program | undefined> {
  const known = programs.points.map((program) => ({
    label: program.name,
    description: described(program, folder),
    program,
  }));
  const other: QuickPickItem = {
    label: "$(terminal) Another program…",
    description: "as in a shell",
    ...(programs.problems.length > 0 ? { detail: programs.problems.join("; ") } : {}),
    alwaysShow: true,
  };
  const item = await window.showQuickPick([...known, other], {
    title: TITLES[doing],
    placeHolder: programs.complete
      ? "It runs unchanged, with your rights, in a terminal"
      : "The folder is too large to be looked through: these were found first",
    matchOnDescription: true,
  });
  if (item === undefined) return undefined;
  return "program" in item ? item.program : typed(programs, folder);
}

function described(program: Program, folder: WorkspaceFolder): string {
  const where = relative(folder.uri.fsPath, program.path);
  return `${KINDS[program.kind] ?? program.kind}${where === "" ? "" : ` in ${where}`}`;
}

async function typed(programs: Programs, folder: WorkspaceFolder): Promise<Program | undefined> {
  const command = await window.showInputBox({
    title: "The program, as in a shell",
    value: `${programs.python} train.py`,
    ignoreFocusOut: true,
  });
  if (command === undefined || command.trim() === "") return undefined;
  return {
    name: command,
    kind: "script",
    path: folder.uri.fsPath,
    record: `${programs.record} ${command}`,
    optimize: `${programs.optimize} ${command}`,
  };
}
