// What targets are called with, in .kernel-lsp: recorded from a program that is run in a terminal, or an entry
// ready to be filled in. The formats and their check are the server's (kernel_lsp/workloads/).

import { relative, sep } from "node:path";
import { Selection, type TextDocument, Uri, window, workspace } from "vscode";

/** The entry for `target` of the file at `path`, relative to the folder. */
export function entry(path: string, target: string): string {
  const key = JSON.stringify(`${path.split(sep).join("/")}::${target}`);
  return `
[[workload]]
target = ${key}

[[workload.inputs]]            # one per argument, in call order
dtype = "float32"
shape = [8, 4096]
# distribution = "normal"      # or uniform, zeros, ones, index:N (whole numbers below N)

# [[workload.init]]            # one per argument of the constructor
# value = 4096
`;
}

/** Appends the entry and opens it with the cursor on the shape; where that cannot be saved, VS Code says so. */
export async function record(document: TextDocument, target: string): Promise<void> {
  const folder = workspace.getWorkspaceFolder(document.uri);
  if (folder === undefined)
    throw new Error("this file is in no folder of the workspace: open its folder first");
  const text = entry(relative(folder.uri.fsPath, document.uri.fsPath), target);
  const file = Uri.joinPath(folder.uri, ".kernel-lsp", "workloads.toml");
  const known = await workspace.fs.readFile(file).then(
    (bytes) => new TextDecoder().decode(bytes),
    () => "", // there is none yet
  );
  try {
    await workspace.fs.writeFile(file, new TextEncoder().encode(known + text));
  } catch (error) {
    const why = (error as Error).message.replace(/^Error: /, "").split(", ")[0]; // without the system call
    throw new Error(
      `${file.fsPath} cannot be written (${why}); a comment above the target does as well: # kernel-lsp: workload x=f32[8,4096]`,
    );
  }
  const opened = await workspace.openTextDocument(file);
  const editor = await window.showTextDocument(opened);
  const at = opened.getText().lastIndexOf("[8, 4096]");
  editor.selection = new Selection(opened.positionAt(at + 1), opened.positionAt(at + 8));
  editor.revealRange(editor.selection);
}

/** Runs a program in a terminal, where its output and its end are seen, under `kernel-lsp record`. */
export async function run(server: string, python: string): Promise<void> {
  const document = window.activeTextEditor?.document;
  const folder = (document && workspace.getWorkspaceFolder(document.uri)) ?? workspace.workspaceFolders?.[0];
  if (folder === undefined) throw new Error("no folder is open: open the program's first");
  const inside = document?.languageId === "python" && workspace.getWorkspaceFolder(document.uri) === folder;
  const script = inside ? quoted(relative(folder.uri.fsPath, document.uri.fsPath)) : "train.py";
  const command = await window.showInputBox({
    title: "Program to record: how it calls modules and kernels, and what takes its time",
    prompt: "As in a shell. It runs unchanged; shapes, ranges and times stay on this machine.",
    value: `${quoted(python)} ${script}`,
    ignoreFocusOut: true,
  });
  if (command === undefined || command.trim() === "") return;
  const terminal = window.createTerminal({ name: "kernel-lsp record", cwd: folder.uri });
  terminal.show();
  terminal.sendText(`${quoted(server)} record -- ${command}`);
}

/** One word for a shell. */
export function quoted(word: string): string {
  if (/^[\w@%+=:,./\\-]+$/.test(word)) return word;
  return process.platform === "win32" ? `"${word}"` : `'${word.replaceAll("'", "'\\''")}'`;
}
