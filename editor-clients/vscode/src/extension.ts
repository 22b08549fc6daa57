// Entry point: wires the parts together. Activation waits for nothing; the server starts beside it.

import { commands, type ExtensionContext, window, workspace } from "vscode";
import { register } from "./commands.ts";
import { Comparisons } from "./compare.ts";
import { Session } from "./session.ts";
import { AT_START, SECTION } from "./settings.ts";

const BUTTONS: Record<string, string> = {
  "Show Log": "showLog",
  Restart: "restart",
  Install: "install",
  "Open Settings": "openSettings",
};
let session: Session | undefined;

export function activate(context: ExtensionContext): void {
  const log = window.createOutputChannel("kernel-lsp", { log: true });
  const act = (title: string) => void commands.executeCommand(`kernel-lsp.client.${BUTTONS[title]}`);
  const own = new Session(context, log, act);
  session = own;
  register(context, own);
  new Comparisons(context, () => own.running);
  context.subscriptions.push(
    log,
    workspace.onDidGrantWorkspaceTrust(() => void own.restart()),
    workspace.onDidChangeConfiguration((event) => {
      if (AT_START.some((name) => event.affectsConfiguration(`${SECTION}.${name}`))) void own.restart();
      else if (event.affectsConfiguration(SECTION)) void own.status.refresh();
    }),
  );
  void own.restart();
}

export async function deactivate(): Promise<void> {
  await session?.stop();
}
