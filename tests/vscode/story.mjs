// The story in VS Code: hint, action, diff, apply, undo, evidence, search, cancel, dismiss, restart.
// Arguments: folder, state folder, folder for pictures, server program.

import { join } from "node:path";
import { Editor, say } from "./editor.mjs";

const [folder, state, pictures, server] = process.argv.slice(2);
const FILE = "diagonal_matmul.py";
const editor = await Editor.open({ folder, state, settings: { "kernel-lsp.server": server } });
const picture = (name) => editor.picture(join(pictures, `${name}.png`));
const hidden = (selector) => editor.page.waitForSelector(selector, { state: "hidden" });

async function toTheTarget() {
  await editor.goTo(7, 8);
}

try {
  await editor.file(FILE);
  await editor.answer("wants to run code", "Allow for this folder");
  say("asked");
  say("hint", { lens: await editor.lens("available"), status: await editor.status("kernel-lsp") });

  await toTheTarget();
  await editor.hover("Gain");
  await picture("hint");
  await editor.key("Escape");
  await toTheTarget();
  say("actions", { rows: await editor.actions() });
  await picture("actions");

  await editor.choose("Compare");
  await editor.text("Verified on");
  await editor.page.waitForTimeout(1000); // the diff is computed beside the drawing
  await picture("diff");
  await editor.page.getByRole("button", { name: "Apply Rewrite" }).first().click();
  await hidden(".monaco-diff-editor");
  await editor.text("Verified on");
  await editor.settled("accepted");
  say("compared and applied");
  await editor.undo("Verified on");
  await editor.settled("reverted");
  say("undone");

  await editor.lens("available");
  await toTheTarget();
  await editor.actions();
  await editor.choose("Rewrite Gain");
  await editor.text("Verified on");
  await editor.settled("accepted");
  await editor.undo("Verified on");
  await editor.settled("reverted");
  say("applied at once and undone");

  await editor.lens("available");
  await toTheTarget();
  await editor.command("kernel-lsp: Show Evidence");
  say("evidence", { text: await editor.rendered("Times") });
  await editor.page.waitForTimeout(1000);
  await picture("evidence");
  await editor.command("View: Close Editor");

  await toTheTarget();
  await editor.command("kernel-lsp: Search Deeper");
  await editor.status("search");
  say("searching", { messages: await editor.messages() });
  await editor.command("kernel-lsp: Cancel Everything");
  await editor.idle();
  say("cancelled");

  await toTheTarget();
  await editor.actions();
  await editor.choose("Dismiss");
  await editor.settled("dismissed");
  await editor.noLens("available");
  say("dismissed");

  await editor.command("kernel-lsp: Restart Server");
  await editor.serverStarted(2);
  await editor.idle();
  await toTheTarget();
  say("restarted", { rows: await editor.actions() });
  await editor.key("Escape");
  await editor.command("kernel-lsp: Doctor");
  say("doctor", { text: await editor.rendered("what was found") });
  await editor.command("View: Close Editor");
  say("activation", await editor.activation());
  say("done", { messages: await editor.messages() });
} catch (error) {
  await editor.picture(join(state, "failure.png"));
  throw error;
} finally {
  await editor.close();
}
