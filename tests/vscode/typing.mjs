// Two windows on the same file, one of them with the extension; blocks of typing in turns, so that both have the same machine.
// Arguments: folder, state folder, server program, number of blocks. Run by benchmarks/typing_vscode.py.

import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { Editor, say, used } from "./editor.mjs";

const [folder, state, server, blocks] = process.argv.slice(2);
const settings = { "kernel-lsp.server": server, "kernel-lsp.consent": "never" };
const WORDS = " words in a comment";

async function window(name, more) {
  const place = join(state, name);
  mkdirSync(place, { recursive: true });
  const editor = await Editor.open({ folder, state: place, settings, ...more });
  await editor.file("large.py");
  return editor;
}

const windows = { without: await window("without", { extensions: [] }), with: await window("with", {}) };
try {
  await windows.with.lens("measure");
  for (const editor of Object.values(windows)) {
    await editor.goTo(2504, 1000);
    await editor.typed("  # begin");
  }
  const [pid] = windows.with.languageServer();
  const begin = used(pid);
  const times = { without: [], with: [] };
  for (let block = 0; block < Number(blocks); block++) {
    for (const [name, editor] of Object.entries(windows)) times[name].push(...(await editor.typed(WORDS, 80)));
  }
  say("times", times);
  say("server", { ticks: used(pid) - begin });
  say("activation", await windows.with.activation());
} finally {
  for (const editor of Object.values(windows)) await editor.close();
}
