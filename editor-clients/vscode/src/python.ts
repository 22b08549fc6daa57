// The interpreter that the user selected in the Python extension, where there is one.

import { stat } from "node:fs/promises";
import { isAbsolute } from "node:path";
import { PythonExtension } from "@vscode/python-extension";
import { type Disposable, extensions, type Uri } from "vscode";

const TIMEOUT_MS = 5_000;

/** Absolute path of the selected interpreter; undefined: no Python extension, or nothing selected (it says "python"
 * then, and names the folder of an environment that has no Python in it). */
export async function selectedInterpreter(resource: Uri | undefined): Promise<string | undefined> {
  const path = (await pythonApi())?.environments.getActiveEnvironmentPath(resource).path;
  if (path === undefined || !isAbsolute(path)) return undefined;
  const isFile = await stat(path).then(
    (found) => found.isFile(),
    () => false, // it was deleted since
  );
  return isFile ? path : undefined;
}

/** Calls back when another one is selected. Does not start the Python extension. */
export async function onSelection(changed: () => void): Promise<Disposable | undefined> {
  return (await pythonApi())?.environments.onDidChangeActiveEnvironmentPath(changed);
}

/** A Python extension that is broken or slow counts as none: we have other ways to find a server. */
async function pythonApi(): Promise<PythonExtension | undefined> {
  if (extensions.getExtension("ms-python.python") === undefined) return undefined;
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<undefined>((resolve) => {
    timer = setTimeout(() => resolve(undefined), TIMEOUT_MS);
  });
  try {
    return await Promise.race([PythonExtension.api(), late]);
  } catch {
    return undefined;
  } finally {
    clearTimeout(timer);
  }
}
