// One VS Code (code-server) with the built extension, and a browser that a person could sit at.
// Only keys, clicks and what is on the screen; what the server did is asserted elsewhere, from its journal.

import { spawn, spawnSync } from "node:child_process";
import { mkdirSync, openSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import { dirname, join, resolve } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { fileURLToPath } from "node:url";

export const ROOT = resolve(dirname(fileURLToPath(import.meta.url)), "../..");
const APP = join(ROOT, ".code-server/app/node_modules");
const ENTRY = join(APP, "code-server/out/node/entry.js");
export const VSIX = join(ROOT, "editor-clients/vscode/kernel-lsp.vsix");
const { chromium } = createRequire(join(APP, "x.js"))("playwright-core");
const CHROMIUM = ["--no-sandbox", "--disable-gpu", "--disable-quic"].concat(
  ["--disable-background-networking", "--disable-component-update", "--disable-sync"],
);
/** For what must happen: a bound for hangs, on a machine that others use too. */
export const PATIENCE_MS = Number(process.env.PATIENCE_MS ?? 600_000);
const QUIET = {
  "workbench.startupEditor": "none",
  "workbench.secondarySideBar.defaultVisibility": "hidden",
  "workbench.colorTheme": "Default Light Modern",
  "workbench.tips.enabled": false,
  "chat.disableAIFeatures": true,
  "editor.minimap.enabled": false,
  "editor.lightbulb.enabled": "off",
  "files.autoSave": "off",
  "window.menuBarVisibility": "hidden",
};

const STATUS = '[id="kernel-lsp.kernel-lsp.kernel-lsp.status"]';

/** Says a step on standard output, for the Python side. */
export function say(step, data = {}) {
  console.log(JSON.stringify({ step, ...data }));
}

export class Editor {
  /** `readOnly`: nothing in the folder can be written, by nobody. */
  static async open({ folder, state, settings = {}, environment = {}, trust = false, extensions = [VSIX], readOnly = false }) {
    const editor = new Editor();
    editor.folder = folder;
    editor.state = state;
    editor.item = STATUS;
    // Settings of scope machine are read from the machine's file where the window is remote, as it is here.
    for (const [place, values] of Object.entries({ User: QUIET, Machine: settings })) {
      mkdirSync(join(state, "data", place), { recursive: true });
      writeFileSync(join(state, "data", place, "settings.json"), JSON.stringify(values));
    }
    writeFileSync(join(state, "config.yaml"), "auth: none\n");
    const places = ["--user-data-dir", join(state, "data"), "--extensions-dir", join(state, "extensions")];
    editor.environment = { ...process.env, ...environment };
    for (const file of extensions) {
      const done = spawnSync(process.execPath, [ENTRY, ...places, "--install-extension", file], { env: editor.environment });
      if (done.status !== 0) throw new Error(`${file} was not installed: ${done.stderr}`);
    }
    const port = await freePort();
    const flags = ["--auth", "none", "--disable-telemetry", "--disable-update-check", "--config", join(state, "config.yaml")];
    if (!trust) flags.push("--disable-workspace-trust");
    const log = openSync(join(state, "code-server.log"), "w");
    const command = [process.execPath, ENTRY, ...flags, ...places, "--bind-addr", `127.0.0.1:${port}`];
    if (readOnly) command.unshift("bwrap", "--dev-bind", "/", "/", "--ro-bind", folder, folder);
    editor.server = spawn(command[0], command.slice(1), {
      env: editor.environment,
      stdio: ["ignore", log, log],
      detached: true, // so that its children can be ended with it
    });
    editor.browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: CHROMIUM });
    const context = await editor.browser.newContext({ viewport: { width: 1280, height: 720 }, deviceScaleFactor: 1 });
    editor.page = await context.newPage();
    editor.page.setDefaultTimeout(PATIENCE_MS);
    await editor.page.addInitScript(watchMessages);
    await reachable(port);
    await editor.page.goto(`http://127.0.0.1:${port}/?folder=${encodeURIComponent(folder)}`);
    await editor.page.waitForSelector(".monaco-workbench .explorer-folders-view .monaco-list-row");
    await editor.key("Control+B"); // room for two sides
    return editor;
  }

  async close() {
    await this.browser.close();
    try {
      process.kill(-this.server.pid, "SIGKILL");
    } catch {
      // it ended before
    }
  }

  async key(...keys) {
    for (const key of keys) await this.page.keyboard.press(key);
  }

  /** The box at the top, opened by a key; again where something else closed it, as a busy window does. */
  async quick(key, words) {
    const input = this.page.locator(".quick-input-widget input");
    await until(async () => {
      await this.key("Escape", key);
      return input.fill(words, { timeout: 5000 }).then(() => true, () => false);
    }, `a box to type ${words} into`);
  }

  /** A command of the palette, by the name that it has there. */
  async command(name) {
    await this.quick("F1", `>${name}`);
    const row = this.page.locator(".quick-input-list .monaco-list-row", { hasText: name }).first();
    await row.waitFor();
    await row.click();
  }

  async file(name) {
    const row = this.page.locator(".quick-input-list .monaco-list-row", { hasText: name }).first();
    await until(async () => {
      await this.quick("Control+P", name);
      return row.waitFor({ timeout: 10_000 }).then(() => true, () => false); // the box, too, may have closed
    }, `a row for ${name}`);
    await this.key("Enter");
    await this.page.waitForSelector(`.tab.active[data-resource-name="${name}"]`);
    await this.focus();
  }

  /** The keyboard into the text. */
  async focus() {
    await this.command("View: Focus Active Editor Group");
    await this.page.waitForSelector(".quick-input-widget", { state: "hidden" });
  }

  /** The cursor onto the first occurrence of these words. */
  async goTo(line, column) {
    await this.focus();
    await this.quick("Control+G", `:${line}:${column}`);
    await this.key("Enter");
    await this.page.waitForSelector(".quick-input-widget", { state: "hidden" });
  }

  /** The menu of code actions, as its rows. Asked for again where a server that just started had no answer yet. */
  async actions() {
    const rows = this.page.locator(".action-widget .monaco-list-row.action");
    await until(async () => {
      await this.key("Escape", "Control+Period");
      return rows.first().waitFor({ timeout: 5000 }).then(() => true, () => false);
    }, "a menu of actions");
    return rows.allInnerTexts();
  }

  async choose(words) {
    const row = this.page.locator(".action-widget .monaco-list-row.action", { hasText: words }).first();
    await row.click();
  }

  /** Until the text on the screen holds these words. */
  async text(words, timeout = PATIENCE_MS) {
    await this.page.waitForFunction(
      (wanted) => {
        const lines = [...document.querySelectorAll(".editor-instance .view-lines")];
        return lines.some((line) => line.textContent.replaceAll("\u00a0", " ").includes(wanted));
      },
      words,
      { timeout },
    );
  }

  async noText(words, timeout = PATIENCE_MS) {
    await this.page.waitForFunction(
      (wanted) => {
        const lines = [...document.querySelectorAll(".editor-instance .view-lines")];
        return !lines.some((line) => line.textContent.replaceAll("\u00a0", " ").includes(wanted));
      },
      words,
      { timeout },
    );
  }

  /** Until a lens says this; a lens never jumps, so it is where a person looks. */
  async lens(words, timeout = PATIENCE_MS) {
    const lens = this.page.locator(".codelens-decoration", { hasText: words }).first();
    await lens.waitFor({ timeout });
    return (await lens.innerText()).trim();
  }

  /** A message at the bottom right, gone since or not; returns its text. */
  async message(words) {
    let text;
    await until(async () => {
      text = (await this.messages()).find((message) => message.includes(words));
      return text !== undefined;
    }, `a message that says ${words}`);
    return text;
  }

  /** Every message since the last `clear` that nobody answered: a warning leaves the screen after 12 seconds, all do at Escape. */
  messages() {
    return this.page.evaluate(() => [...window.messagesShown.values()].filter((text) => text !== null));
  }

  async clear() {
    await this.command("Notifications: Clear All");
    await this.forget("");
  }

  /** Messages that say these words count no more. */
  forget(words) {
    return this.page.evaluate((wanted) => {
      for (const [toast, text] of window.messagesShown) if (text?.includes(wanted)) window.messagesShown.set(toast, null);
    }, words);
  }

  /** Clicks a button of a message, brought back where it has left the screen. */
  async answer(words, button) {
    await this.message(words);
    const row = this.page.locator(".notification-list-item", { hasText: words }).first();
    await until(async () => {
      const clicked = row.getByRole("button", { name: button }).first().click({ timeout: 5000 });
      if (await clicked.then(() => true, () => false)) return true;
      await this.command("Notifications: Show Notifications");
      return false;
    }, `a click on ${button}`);
    await this.forget(words);
  }

  /** Types this at the cursor; milliseconds from each key to the frame that shows it. */
  async typed(text, gap = 60) {
    await this.page.evaluate(watchKeys);
    for (const letter of text) {
      await this.page.keyboard.type(letter);
      await this.page.waitForTimeout(gap);
    }
    return this.shown();
  }

  /** The same of keys that were typed before and are shown only now. */
  async shown() {
    return this.page.evaluate(() => window.keysShown.splice(0));
  }

  /** The hover of a word on the screen. */
  async hover(word) {
    await this.page.locator(".view-line span span", { hasText: new RegExp(`^${word}$`) }).first().hover();
    await this.page.locator(".monaco-hover", { hasText: "kernel-lsp" }).first().waitFor();
  }

  async undo(words) {
    await this.focus();
    await this.key("Control+Z");
    await this.noText(words);
  }

  async noLens(words) {
    await this.page.locator(".codelens-decoration", { hasText: words }).first().waitFor({ state: "detached" });
  }

  /** Until the journal has this event as its last of an offer's fate. */
  async settled(kind) {
    await until(() => this.fates().at(-1) === kind, `the journal's last word is ${kind}`);
  }

  fates() {
    const database = new DatabaseSync(join(this.environment.KERNEL_LSP_DATA_DIR, "journal.db"), { readOnly: true });
    try {
      const rows = database.prepare("SELECT kind FROM events ORDER BY time").all();
      return rows.map((row) => row.kind).filter((kind) => kind !== "evaluated");
    } finally {
      database.close();
    }
  }

  /** Until nothing runs: the sign in the status bar is back. */
  async idle() {
    await this.page.locator(`${STATUS} .codicon-zap`).waitFor();
  }

  /** Until the log of the extension says so many times that a server is started. */
  async serverStarted(times) {
    const count = () => this.log().split("] starting ").length - 1;
    await until(() => count() >= times, `${times} starts`);
  }

  /** The line of the log that says which server was started last, and why that one. */
  lastStart() {
    return this.log().split("\n").filter((line) => line.includes("] starting ")).at(-1);
  }

  /** What the extension has logged. */
  log() {
    const folder = join(this.state, "data/logs");
    const files = readdirSync(folder, { recursive: true }).filter((name) => name.endsWith("kernel-lsp.log"));
    return files.map((name) => readFileSync(join(folder, name), "utf8")).join("");
  }

  /** Milliseconds to load, call and finish the activation, from VS Code's own page "Startup Performance". */
  async activation() {
    await this.command("Developer: Startup Performance");
    await this.text("System Info");
    await this.key("Control+F");
    await this.page.keyboard.type("kernel-lsp.kernel-lsp");
    await this.key("Enter", "Escape");
    await this.text("kernel-lsp.kernel-lsp");
    const lines = await this.page.locator(".editor-instance .view-line").allInnerTexts();
    const row = lines.map((line) => line.replaceAll("\u00a0", " ")).find((line) => line.includes("| kernel-lsp.kernel-lsp"));
    const [, , , load, call, finish] = row.split("|").map((cell) => Number(cell.trim()));
    return { load, call, finish };
  }

  /** Process ids of the language server of this window, and of nothing else: [] when there is none. */
  languageServer() {
    const mine = `KERNEL_LSP_DATA_DIR=${this.environment.KERNEL_LSP_DATA_DIR}`;
    const read = (pid, name) => {
      try {
        return readFileSync(`/proc/${pid}/${name}`, "utf8").split("\0");
      } catch {
        return []; // it has ended
      }
    };
    const ids = readdirSync("/proc").filter((name) => /^\d+$/.test(name));
    return ids.filter((pid) => read(pid, "cmdline").includes("serve") && read(pid, "environ").includes(mine)).map(Number);
  }

  /** Other settings of the machine, as if somebody saved the file. */
  set(settings) {
    writeFileSync(join(this.state, "data/Machine/settings.json"), JSON.stringify(settings));
  }

  /** What the pointer sees over the item in the status bar, which says these words too. */
  async tooltip(words) {
    await this.page.locator(STATUS).hover();
    const hover = this.page.locator(".monaco-hover", { hasText: words }).first();
    await hover.waitFor();
    const text = (await hover.innerText()).replaceAll("\u00a0", " ");
    await this.page.mouse.move(600, 400);
    return text;
  }

  /** What the item in the status bar says. */
  async status(words, timeout = PATIENCE_MS) {
    const item = this.page.locator(STATUS);
    await item.filter({ hasText: words }).waitFor({ timeout });
    return (await item.innerText()).trim();
  }

  /** A page that is rendered in a tab; returns its text. */
  async rendered(words, timeout = PATIENCE_MS) {
    const end = Date.now() + timeout;
    while (Date.now() < end) {
      for (const frame of this.page.frames()) {
        const text = await frame.evaluate(() => document.body?.innerText ?? "").catch(() => "");
        if (frame !== this.page.mainFrame() && text.includes(words)) return text;
      }
      await this.page.waitForTimeout(200);
    }
    throw new Error(`no rendered page says ${words}`);
  }

  picture(path) {
    return this.page.screenshot({ path });
  }
}

/** In the page: each message by its element; null: cleared or answered. */
function watchMessages() {
  const shown = new Map();
  window.messagesShown = shown;
  const look = () => {
    for (const toast of document.querySelectorAll(".notification-toast")) {
      const text = toast.innerText.replaceAll("\u00a0", " ").trim();
      if (text !== "" && shown.get(toast) !== null) shown.set(toast, text);
    }
  };
  new MutationObserver(look).observe(document, { subtree: true, childList: true, characterData: true });
}

/** In the page: how long each key waits until the text on the screen has changed. */
function watchKeys() {
  if (window.keysShown) return;
  window.keysShown = [];
  const onKey = (event) => {
    if (event.key.length !== 1) return;
    const text = document.querySelector(".editor-group-container.active .view-lines");
    const changed = new MutationObserver(() => {
      changed.disconnect();
      setTimeout(() => window.keysShown.push(performance.now() - event.timeStamp)); // after the frame
    });
    changed.observe(text, { subtree: true, childList: true, characterData: true });
  };
  document.addEventListener("keydown", onKey, true);
}

/** Hundredths of a second of CPU time, of all threads of a process. */
export function used(pid) {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ").at(-1).split(" ");
  return Number(fields[11]) + Number(fields[12]);
}

function freePort() {
  return new Promise((done) => {
    const probe = createServer().listen(0, "127.0.0.1", () => {
      const { port } = probe.address();
      probe.close(() => done(port));
    });
  });
}

async function until(condition, words) {
  const end = Date.now() + PATIENCE_MS;
  while (!(await condition())) {
    if (Date.now() > end) throw new Error(`never came true: ${words}`);
    await new Promise((done) => setTimeout(done, 100));
  }
}

async function reachable(port) {
  const healthy = () => fetch(`http://127.0.0.1:${port}/healthz`).then((answer) => answer.ok, () => false);
  await until(healthy, "code-server answers");
}
