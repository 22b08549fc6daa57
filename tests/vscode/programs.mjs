// A target that nobody has called: its lens offers the folder's programs, one is run in a terminal, and the lens has a
// share. Arguments: folder, state folder, server program.

import { Editor, say } from "./editor.mjs";

const [folder, state, server] = process.argv.slice(2);
const settings = { "kernel-lsp.server": server, "kernel-lsp.consent": "never" };
const editor = await Editor.open({ folder, state, settings });
const rows = editor.page.locator(".quick-input-list .monaco-list-row");
const row = (words) => rows.filter({ hasText: words }).first();

try {
  await editor.file("train.py");
  const asked = await editor.lens("record a run to measure");
  await editor.page.locator(".codelens-decoration a", { hasText: "record a run" }).first().click();
  await row("Another program").waitFor();
  say("offered", { asked, rows: await rows.allInnerTexts() });
  await row("train.py").click();
  say("recorded", { lens: await editor.lens("of the recorded time") });
  await editor.command("kernel-lsp: Optimize This Program");
  await row("Another program").waitFor();
  say("optimize", { rows: await rows.allInnerTexts() });
  await editor.key("Escape");
  say("done", { messages: await editor.messages() });
} catch (error) {
  await editor.picture(`${state}/failure.png`);
  throw error;
} finally {
  await editor.close();
}
