// Which server is chosen, on a disk that has what each case says.

import assert from "node:assert/strict";
import { chmodSync, mkdirSync, mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { allowed, type Located, locate, type Where } from "../src/locate.ts";

const disk = mkdtempSync(join(tmpdir(), "locate-"));

function program(...parts: string[]): string {
  const path = join(disk, ...parts);
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, "#!/bin/sh\n");
  chmodSync(path, 0o755);
  return path;
}

function where(given: Partial<Where>): Where {
  const nothing = { setting: undefined, interpreter: undefined, path: undefined };
  return { ...nothing, own: join(disk, "own"), folders: [join(disk, "work")], trusted: true, ...given };
}

function command(located: Located): string {
  return "place" in located ? located.place.command : located.problem;
}

const selected = program("work", ".venv", "bin", "kernel-lsp");
const interpreter = join(dirname(selected), "python");
const onPath = program("tools", "kernel-lsp");
const path = `relative:${dirname(onPath)}`;

test("nothing anywhere is a problem with a remedy", async () => {
  const located = await locate(where({ path: "/nowhere" }));
  assert.ok("problem" in located && located.remedy.includes("install"));
});

test("the private environment comes last", async () => {
  const own = program("own2", "bin", "kernel-lsp");
  assert.equal(command(await locate(where({ own: join(disk, "own2") }))), own);
  assert.equal(command(await locate(where({ own: join(disk, "own2"), path }))), onPath);
});

test("the selected environment wins over PATH", async () => {
  assert.equal(command(await locate(where({ interpreter, path }))), selected);
});

test("an interpreter without the server is passed over", async () => {
  assert.equal(command(await locate(where({ interpreter: "/usr/bin/python3-none", path }))), onPath);
});

test("an untrusted folder's own program is not started", async () => {
  assert.equal(command(await locate(where({ interpreter, path, trusted: false }))), onPath);
  assert.match(command(await locate(where({ interpreter, trusted: false }))), /not installed/);
});

test("a setting is taken as it is, an interpreter runs the package", async () => {
  const located = await locate(where({ setting: onPath, interpreter }));
  assert.deepEqual("place" in located && located.place.args, ["serve"]);
  const python = await locate(where({ setting: program("work", "python3.12") }));
  assert.deepEqual("place" in python && python.place.args, ["-P", "-m", "kernel_lsp", "serve"]);
});

test("a setting that leads into an untrusted folder is refused", async () => {
  for (const setting of [".venv/bin/kernel-lsp", selected]) {
    const located = await locate(where({ setting, path, trusted: false }));
    assert.ok("problem" in located && located.problem.includes("do not trust"));
    assert.equal(command(await locate(where({ setting }))), selected);
  }
  assert.equal(command(await locate(where({ setting: onPath, trusted: false }))), onPath);
});

test("an interpreter of an untrusted folder is not even asked for its version", () => {
  const folders = [join(disk, "work")];
  assert.equal(allowed(interpreter, { folders, trusted: false }), false);
  assert.equal(allowed(interpreter, { folders, trusted: true }), true);
  assert.equal(allowed("/usr/bin/python3", { folders, trusted: false }), true);
});

test("a relative setting belongs to the folder", async () => {
  assert.equal(command(await locate(where({ setting: ".venv/bin/kernel-lsp" }))), selected);
});

test("a setting that names no program is not replaced by a guess", async () => {
  for (const setting of [join(disk, "work"), join(disk, "gone")]) {
    const located = await locate(where({ setting, path }));
    assert.ok("problem" in located && located.problem.includes(setting));
  }
});
