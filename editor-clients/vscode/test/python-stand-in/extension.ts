// Stands in for ms-python.python, which no package registry carries: the part of its published interface that we
// read, checked against its types. What is selected stands in the file that STAND_IN_SELECTED names.

import { readFileSync, watchFile } from "node:fs";
import type { ActiveEnvironmentPathChangeEvent, PythonExtension } from "@vscode/python-extension";
import { EventEmitter } from "vscode";

type Environments = PythonExtension["environments"];
type Read = Pick<Environments, "getActiveEnvironmentPath" | "onDidChangeActiveEnvironmentPath">;

/** "python" where nobody has selected anything, as the real one says. */
function selected(file: string): string {
  return readFileSync(file, { encoding: "utf8", flag: "a+" }).trim() || "python";
}

export function activate(): { environments: Read } {
  const file = process.env.STAND_IN_SELECTED ?? "";
  const changed = new EventEmitter<ActiveEnvironmentPathChangeEvent>();
  watchFile(file, { interval: 200 }, () => {
    const path = selected(file);
    changed.fire({ id: path, path, resource: undefined });
  });
  return {
    environments: {
      getActiveEnvironmentPath: () => ({ id: selected(file), path: selected(file) }),
      onDidChangeActiveEnvironmentPath: changed.event,
    },
  };
}
