// What a target is called with, in .kernel-lsp/workloads.toml: an entry ready to be filled in. The format and its
// check are the server's (kernel_lsp/workloads/); a run that is recorded needs none (programs.ts).

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
