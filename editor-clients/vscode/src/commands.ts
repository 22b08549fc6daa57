// The palette: each command asks the server for what it offers at the cursor and runs that, or opens
// something to read. Ids start with kernel-lsp.client, because the client registers the server's own.

import { commands, EventEmitter, type ExtensionContext, env, Uri, window, workspace } from "vscode";
import { report } from "./doctor.ts";
import { install } from "./install.ts";
import { inTerminal } from "./programs.ts";
import type { Session } from "./session.ts";
import { MENU } from "./status.ts";
import { record } from "./workloads.ts";

const DOCTOR = Uri.parse("kernel-lsp-doctor:kernel-lsp-doctor.md");
const ID = "kernel-lsp.client.";
const IN_NOTEBOOK = "in a notebook a comment above the target says it: # kernel-lsp: workload x=f32[8,4096]";

export function register(context: ExtensionContext, session: Session): void {
  const table: Record<string, () => unknown> = {
    restart: () => session.restart(),
    showLog: () => session.log.show(),
    optimize: () => atCursor(session, "kernel-lsp.optimize"),
    searchDeeper: () => atCursor(session, "kernel-lsp.searchDeeper"),
    showEvidence: () => atCursor(session, "kernel-lsp.showEvidence"),
    showStatus: () => send(session, "kernel-lsp.showStatus", folderOfEditor()),
    cancel: () => send(session, "kernel-lsp.cancel", {}),
    recordWorkload: () => recordWorkload(session),
    recordProgram: () => inTerminal(session.running, "record"),
    optimizeProgram: () => inTerminal(session.running, "optimize"),
    allow: () => allow(session),
    install: () => installServer(context, session),
    openExample: () => openExample(context),
    openSettings: () =>
      commands.executeCommand("workbench.action.openSettings", "@ext:kernel-lsp.kernel-lsp"),
    doctor: doctorOf(context, session),
  };
  for (const [name, run] of Object.entries(table)) {
    context.subscriptions.push(commands.registerCommand(ID + name, () => calmly(run)));
  }
  context.subscriptions.push(commands.registerCommand(MENU, () => menu(session)));
}

/** A command that somebody started and that cannot be done says so, once. */
async function calmly(run: () => unknown): Promise<void> {
  try {
    await run();
  } catch (error) {
    void window.showWarningMessage(`kernel-lsp: ${(error as Error).message}`);
  }
}

function send(session: Session, command: string, argument: object): Promise<unknown> {
  return session.running.sendRequest("workspace/executeCommand", { command, arguments: [argument] });
}

/** Runs the server's own action with this command for the target at the cursor. */
async function atCursor(session: Session, command: string): Promise<void> {
  const offered = await session.running.actionsAtCursor();
  const action = offered.find((item) => item.command?.command === command);
  if (action?.command === undefined) {
    throw new Error(
      `nothing at the cursor for that: put it into a module's class or a function that PyTorch runs`,
    );
  }
  await send(session, command, (action.command.arguments?.[0] as object | undefined) ?? {});
}

function folderOfEditor(): { folder?: string } {
  const uri = window.activeTextEditor?.document.uri;
  const folder = uri && workspace.getWorkspaceFolder(uri);
  return folder ? { folder: folder.uri.fsPath } : {};
}

async function recordWorkload(session: Session): Promise<void> {
  if (window.activeNotebookEditor !== undefined) throw new Error(IN_NOTEBOOK);
  const document = window.activeTextEditor?.document;
  if (document?.languageId !== "python") throw new Error("open the Python file of the target first");
  const rows = (await send(session, "kernel-lsp.listKernels", { uri: document.uri.toString() })) as {
    qualname: string;
  }[];
  const names = rows.map((row) => row.qualname);
  if (names.length === 0) throw new Error("this file has nothing that kernel-lsp could measure");
  const target = names.length === 1 ? names[0] : await window.showQuickPick(names, { title: "Workload of" });
  if (target !== undefined) await record(document, target);
}

async function allow(session: Session): Promise<void> {
  const folders = workspace.workspaceFolders ?? [];
  const named = folders.map((folder) => ({ label: folder.name, description: folder.uri.fsPath }));
  const chosen =
    named.length > 1 ? await window.showQuickPick(named, { title: "May run, to be measured" }) : named[0];
  if (chosen === undefined) return;
  await send(session, "kernel-lsp.trust", { folder: chosen.description, answer: "allow" });
  await session.status.refresh();
}

async function installServer(context: ExtensionContext, session: Session): Promise<void> {
  await session.stop();
  await install(session.ownFolder, context.asAbsolutePath("bundled"), session.mayRun(session.interpreter));
  await session.restart();
}

/** A copy, so that nobody edits the extension. */
async function openExample(context: ExtensionContext): Promise<void> {
  const bytes = await workspace.fs.readFile(Uri.file(context.asAbsolutePath("media/example.py")));
  const content = new TextDecoder().decode(bytes);
  const folder = workspace.workspaceFolders?.[0];
  if (folder === undefined) {
    await window.showTextDocument(await workspace.openTextDocument({ language: "python", content }));
    return;
  }
  const file = Uri.joinPath(folder.uri, "kernel_lsp_example.py");
  const there = await workspace.fs.stat(file).then(
    () => true,
    () =>
      workspace.fs.writeFile(file, bytes).then(
        () => true,
        () => false, // a folder that cannot be written
      ),
  );
  await window.showTextDocument(
    there
      ? await workspace.openTextDocument(file)
      : await workspace.openTextDocument({ language: "python", content }),
  );
}

function doctorOf(context: ExtensionContext, session: Session): () => Promise<void> {
  let text = "";
  const changed = new EventEmitter<Uri>();
  const provider = { onDidChange: changed.event, provideTextDocumentContent: () => text };
  context.subscriptions.push(changed, workspace.registerTextDocumentContentProvider(DOCTOR.scheme, provider));
  return async () => {
    text = await report({
      extension: `${context.extension.packageJSON.version} in ${env.appName}${env.remoteName ? ` (${env.remoteName})` : ""}`,
      located: session.located ?? { problem: "not looked for yet", remedy: "restart kernel-lsp" },
      interpreter: session.interpreter,
      folder: workspace.workspaceFolders?.[0]?.uri.fsPath,
      trusted: workspace.isTrusted,
      problem: session.problem,
      environment: process.env,
    });
    changed.fire(DOCTOR);
    await commands.executeCommand("markdown.showPreview", DOCTOR);
  };
}

async function menu(session: Session): Promise<void> {
  const entries = [
    ["$(record) Record a run", "recordProgram"],
    ["$(rocket) Optimize this program", "optimizeProgram"],
    ["$(search) Search deeper at the cursor", "searchDeeper"],
    ["$(graph) Show status and this week's gains", "showStatus"],
    ["$(debug-stop) Cancel everything that runs", "cancel"],
    ["$(check) Allow running code of this folder", "allow"],
    ["$(refresh) Restart", "restart"],
    ["$(pulse) Doctor", "doctor"],
    ["$(output) Show log", "showLog"],
    ["$(settings-gear) Settings", "openSettings"],
  ].map(([label, id]) => ({ label: label ?? "", id: id ?? "" }));
  const first =
    session.problem === undefined
      ? []
      : [{ label: "$(cloud-download) Install the server for this editor", id: "install" }];
  const title = session.problem ?? "kernel-lsp";
  const chosen = await window.showQuickPick([...first, ...entries], { title });
  if (chosen !== undefined) await commands.executeCommand(ID + chosen.id);
}
