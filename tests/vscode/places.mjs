// A folder that cannot be written, with a file of 5,000 lines and a notebook, on a machine without a GPU.
// Arguments: folder, state folder, server program.

import { Editor, say, used } from "./editor.mjs";

const [folder, state, server] = process.argv.slice(2);
const settings = { "kernel-lsp.server": server, "kernel-lsp.consent": "always", "kernel-lsp.background": false };
const editor = await Editor.open({ folder, state, settings: { ...settings, "kernel-lsp.device": "cuda" }, readOnly: true });
const IDLE_MS = 8000;
const MOST_TICKS = 2; // hundredths of a second
const pause = (milliseconds) => editor.page.waitForTimeout(milliseconds);

try {
  await editor.file("large.py");
  await editor.lens("measure");
  const [pid] = editor.languageServer();
  await editor.goTo(2504, 1000);
  await editor.typed("  # plain words of a comment");
  process.kill(pid, "SIGSTOP");
  const frozen = await editor.typed(", typed while the server stands still");
  await editor.text("typed while the server stands still");
  frozen.push(...(await editor.shown()));
  process.kill(pid, "SIGCONT");
  say("typed", { frozen, rows: await editor.actions() });
  await editor.key("Escape");
  await editor.idle();
  await pause(3000); // the last analysis, and the pause before a background job, which is off
  let ticks = Infinity; // the least of some: a busy machine makes what wakes up now and then dearer
  for (let tries = 0; tries < 4 && ticks > MOST_TICKS; tries++) {
    const begin = used(pid);
    await pause(IDLE_MS);
    ticks = Math.min(ticks, used(pid) - begin);
  }
  say("idle", { ticks });

  await editor.file("diagonal_matmul.py");
  await editor.lens("measure");
  await editor.goTo(7, 8);
  await editor.command("kernel-lsp: Optimize the Target");
  say("no GPU", { text: await editor.message("sees no CUDA device"), messages: await editor.messages() });
  await editor.clear();
  await editor.command("kernel-lsp: Write a Workload");
  say("read-only", { text: await editor.message("cannot be written"), messages: await editor.messages() });
  await editor.clear();
  await editor.command("kernel-lsp: Open Example");
  await editor.page.locator(".tab.active", { hasText: "Untitled" }).waitFor(); // no copy can be made
  say("example", { messages: await editor.messages() });

  await editor.file("notes.ipynb");
  await editor.page.locator(".notebook-editor .view-line").first().click(); // into the cell
  await editor.command("kernel-lsp: Write a Workload");
  const text = await editor.message("in a notebook");
  say("notebook", { text, messages: await editor.messages() });
} catch (error) {
  await editor.picture(`${state}/failure.png`);
  throw error;
} finally {
  await editor.close();
}
