// A rewrite in a cell of a notebook: lens, finding, action, applied, undone, saved.
// Arguments: folder, state folder, server program.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Editor, say } from "./editor.mjs";

const [folder, state, server] = process.argv.slice(2);
const FILE = "work.ipynb";
const settings = { "kernel-lsp.server": server, "kernel-lsp.consent": "always" };
const editor = await Editor.open({ folder, state, settings });
const { page } = editor;
const CELLS = ".notebook-editor .view-lines";
const line = (words) => page.locator(".notebook-editor .view-line", { hasText: words }).first();
const cells = () => readFileSync(join(folder, FILE), "utf8");

/** Until a cell on the screen says these words, or none does. */
function cell(words, there = true) {
  return page.waitForFunction(
    ([selector, wanted, shown]) => {
      const texts = [...document.querySelectorAll(selector)].map((one) => one.textContent.replaceAll("\u00a0", " "));
      return texts.some((text) => text.includes(wanted)) === shown;
    },
    [CELLS, words, there],
  );
}

/** The menu of the class's line: Escape, which the menu of a file begins with, would leave the cell. */
async function actions() {
  const rows = page.locator(".action-widget .monaco-list-row.action");
  for (;;) {
    await line("class Gain").click();
    await editor.key("Control+Period");
    if (await rows.first().waitFor({ timeout: 5000 }).then(() => true, () => false)) return rows.allInnerTexts();
  }
}

try {
  await editor.file(FILE);
  say("offered", { lens: await editor.lens("available"), status: await editor.status("kernel-lsp") });
  say("actions", { rows: await actions() });
  await editor.choose("Rewrite Gain");
  await cell("Verified on");
  await editor.settled("accepted");
  await editor.key("Control+S");
  await page.waitForSelector(".tab.active.dirty", { state: "detached" });
  say("applied", { text: cells() });
  await line("class Gain").click();
  await editor.key("Control+Z");
  await cell("Verified on", false);
  await editor.settled("reverted");
  await editor.key("Control+S");
  await page.waitForSelector(".tab.active.dirty", { state: "detached" });
  say("undone", { text: cells(), messages: await editor.messages() });
} catch (error) {
  await editor.picture(join(state, "failure.png"));
  throw error;
} finally {
  await editor.close();
}
