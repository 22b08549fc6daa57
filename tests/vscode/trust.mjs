// A folder that nobody trusts yet, and that would start a program of its own if it could; then it is trusted.
// Arguments: folder, state folder, server program. The folder's .vscode/settings.json and .venv are bait.

import { existsSync, rmSync } from "node:fs";
import { join } from "node:path";
import { Editor, say } from "./editor.mjs";

const [folder, state, server] = process.argv.slice(2);
const editor = await Editor.open({ folder, state, settings: { "kernel-lsp.server": server }, trust: true });
try {
  await editor.page.getByText("Restricted Mode is intended").waitFor();
  await editor.file("diagonal_matmul.py");
  await editor.page.waitForSelector(".cdr.squiggly-hint", { state: "attached" }); // a static finding
  await editor.page.waitForTimeout(4000); // longer than the server waits before it measures in the background
  say("restricted", { messages: await editor.messages(), tooltip: await editor.tooltip("Restricted") });
  await editor.goTo(7, 8);
  await editor.command("kernel-lsp: Optimize the Target");
  await editor.message("may not be run");
  const started = existsSync(join(folder, "../taken"));
  say("refused", { started, messages: await editor.messages() });
  for (const name of ["Record a Run", "Optimize This Program"]) {
    await editor.clear();
    await editor.command(`kernel-lsp: ${name}`);
    say(name, { text: await editor.message("trust this workspace first") });
  }
  for (const bait of [".vscode", ".venv"]) rmSync(join(folder, bait), { recursive: true }); // trusted, it would be taken
  await editor.command("Workspaces: Manage Workspace Trust");
  await editor.page.getByRole("button", { name: "Trust", exact: true }).first().click();
  await editor.file("diagonal_matmul.py");
  say("asked", { text: await editor.message("wants to run code") });
} catch (error) {
  await editor.picture(`${state}/failure.png`);
  throw error;
} finally {
  await editor.close();
}
