// What the user has set, as the server wants it, and the few settings that are the extension's own.
// Names and types of the server's settings are the server's business: package.json lists them, written
// from kernel_lsp/config.py by scripts/settings.py; a value that cannot be used comes back as one of the
// problems of `kernel-lsp.status`.

export const SECTION = "kernel-lsp";
/** Never sent to the server. */
export const OWN: ReadonlySet<string> = new Set(["server", "trace.server"]);
/** What the server reads once, when it starts. */
export const AT_START = ["server", "data_dir"] as const;

/** The part of vscode.WorkspaceConfiguration that is read here. */
export interface Configuration {
  inspect(key: string): Inspected | undefined;
}

export interface Inspected {
  globalValue?: unknown;
  workspaceValue?: unknown;
  workspaceFolderValue?: unknown;
}

interface Manifest {
  contributes?: { configuration?: { properties?: Record<string, unknown> } };
}

/** The server's settings that this version of the extension knows. */
export function serverNames(manifest: unknown): string[] {
  const properties = (manifest as Manifest).contributes?.configuration?.properties ?? {};
  const names = Object.keys(properties).map((key) => key.slice(SECTION.length + 1));
  return names.filter((name) => !OWN.has(name));
}

/** What somebody chose; undefined where only the default holds, because defaults are the server's. */
export function chosen(configuration: Configuration, name: string): unknown {
  const found = configuration.inspect(name);
  return found?.workspaceFolderValue ?? found?.workspaceValue ?? found?.globalValue;
}

/** All settings for the server. Null takes an earlier answer back; `python` is the editor's choice. */
export function forServer(
  configuration: Configuration,
  names: readonly string[],
  python: string | undefined,
): Record<string, unknown> {
  const values = Object.fromEntries(names.map((name) => [name, chosen(configuration, name) ?? null]));
  return { ...values, python: values.python ?? python ?? null };
}

/** The path in `kernel-lsp.server`, or what is wrong with it. */
export function serverPath(configuration: Configuration): { path?: string; problem?: string } {
  const value = chosen(configuration, "server");
  if (value === undefined || value === null || value === "") return {};
  if (typeof value === "string") return { path: value };
  return {
    problem: `the setting kernel-lsp.server is ${JSON.stringify(value)}; it must be a path in quotes`,
  };
}
