// What the server is told, what the extension reads itself, and when a crash loop ends.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { atLeast, Crashes } from "../src/crashes.ts";
import { forServer, type Inspected, serverNames, serverPath } from "../src/settings.ts";

const manifest = JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8"));

function having(values: Record<string, Inspected>) {
  return { inspect: (key: string) => values[key] };
}

test("the names are the server's, without our own", () => {
  const names = serverNames(manifest);
  assert.ok(names.includes("search_candidates") && names.includes("python"));
  assert.ok(!names.includes("server") && !names.includes("trace.server"));
});

test("only what somebody chose is sent; what was taken back is null", () => {
  const configuration = having({ budget: { globalValue: 3, workspaceValue: 5 }, hover: {} });
  assert.deepEqual(forServer(configuration, ["budget", "hover"], undefined), {
    budget: 5,
    hover: null,
    python: null,
  });
});

test("false and 0 are choices", () => {
  const configuration = having({ hover: { globalValue: false }, max: { globalValue: 0 } });
  assert.deepEqual(forServer(configuration, ["hover", "max"], undefined), {
    hover: false,
    max: 0,
    python: null,
  });
});

test("the selected interpreter is used until the setting says another", () => {
  assert.equal(forServer(having({}), ["python"], "/a/python").python, "/a/python");
  assert.equal(forServer(having({ python: { globalValue: "/b" } }), ["python"], "/a/python").python, "/b");
});

test("a server of another type than a path is a problem with a remedy", () => {
  assert.deepEqual(serverPath(having({})), {});
  assert.deepEqual(serverPath(having({ server: { globalValue: "/x" } })), { path: "/x" });
  assert.match(serverPath(having({ server: { globalValue: ["a"] } })).problem ?? "", /must be a path/);
});

test("four ends within three minutes are restarted, the fifth is not", () => {
  const crashes = new Crashes();
  assert.deepEqual(
    [0, 1, 2, 3, 4].map((second) => crashes.mayRestart(second * 1000)),
    [true, true, true, true, false],
  );
  assert.match(crashes.words, /5 times/);
  assert.equal(crashes.mayRestart(200_000), true);
});

test("ends that lie apart are no loop", () => {
  const crashes = new Crashes();
  for (let minute = 0; minute < 20; minute++) assert.equal(crashes.mayRestart(minute * 60_000), true);
});

test("versions compare by number, and what is none is too old", () => {
  assert.ok(atLeast("0.10.0", "0.9.1") && atLeast("1.0.0", "0.9.9") && atLeast("0.1.0", "0.1.0"));
  assert.ok(!atLeast("0.9.9", "0.10.0") && !atLeast(undefined, "0.1.0") && !atLeast("new", "0.1.0"));
});
