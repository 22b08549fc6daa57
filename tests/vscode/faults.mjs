// What can be wrong with the server, one after the other in one window: each is one calm message with its remedy.
// Then where it comes from: the environment selected in the Python extension (a stand-in), or our own installation.
// Arguments: folder, state folder, folder with the programs that fail, a server that works, the stand-in.

import { writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { Editor, say, VSIX } from "./editor.mjs";

const [folder, state, programs, server, python] = process.argv.slice(2);
const STAND_IN_SELECTED = join(state, "selected");
const environment = { STAND_IN_SELECTED };
const editor = await Editor.open({ folder, state, environment, extensions: [VSIX, python] });

/** A setting, and the one message that follows. */
async function fault(name, values, words) {
  await editor.key("Escape");
  await editor.clear();
  editor.set(values);
  const text = await editor.message(words);
  await editor.status("off");
  await editor.page.waitForTimeout(1500); // for a second message, which must not come
  say(name, { text, messages: await editor.messages() });
}

try {
  await editor.file("diagonal_matmul.py");
  say("missing", { text: await editor.message("is not installed"), messages: await editor.messages() });
  await editor.status("off");
  await fault("wrong path", { "kernel-lsp.server": "/nowhere/kernel-lsp" }, "/nowhere/kernel-lsp");
  await fault("wrong type", { "kernel-lsp.server": ["a", "b"] }, "must be a path");
  await fault("too old", { "kernel-lsp.server": join(programs, "too_old") }, "0.0.1");
  await fault("not a server", { "kernel-lsp.server": "/bin/true" }, "/bin/true");
  await fault("crash loop", { "kernel-lsp.server": join(programs, "crashes") }, "ended 5 times");
  await editor.command("kernel-lsp: Doctor");
  say("doctor", { text: await editor.rendered("ended 5 times") });
  await editor.command("View: Close Editor");
  await editor.clear();
  editor.set({ "kernel-lsp.server": server, "kernel-lsp.threshold": "fast" });
  await editor.page.locator(`${editor.item} .codicon-warning`).waitFor();
  say("setting of a wrong type", { tooltip: await editor.tooltip("threshold"), messages: await editor.messages() });
  await editor.clear();
  editor.set({});
  await editor.message("is not installed");
  writeFileSync(STAND_IN_SELECTED, join(dirname(server), "python"));
  await editor.page.locator(`${editor.item} .codicon-zap`).waitFor();
  say("selected", { log: editor.lastStart(), tooltip: await editor.tooltip("measures with") });
  writeFileSync(STAND_IN_SELECTED, join(dirname(server), "python")); // said again, as the real one does at its start
  await editor.page.waitForTimeout(1500);
  say("selected again", { log: editor.lastStart() });
  await editor.clear();
  writeFileSync(STAND_IN_SELECTED, "");
  await editor.answer("is not installed", "Install");
  await editor.status("kernel-lsp");
  await editor.page.locator(`${editor.item} .codicon-zap`).waitFor();
  say("installed", { log: editor.lastStart() });
} catch (error) {
  await editor.picture(`${state}/failure.png`);
  throw error;
} finally {
  await editor.close();
}
