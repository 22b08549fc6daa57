// What was found and what to do about what was not, as a rendered page: the extension's part, and the
// findings of `kernel-lsp doctor`.

import { execFile } from "node:child_process";
import { promisify } from "node:util";
import type { Located } from "./locate.ts";

const run = promisify(execFile);
const TIMEOUT_MS = 120_000;

export interface Facts {
  extension: string;
  located: Located;
  interpreter: string | undefined;
  folder: string | undefined;
  trusted: boolean;
  problem: string | undefined;
  environment: NodeJS.ProcessEnv;
}

interface Finding {
  part: string;
  ok: boolean;
  found: string;
  remedy: string | null;
}

export async function report(facts: Facts): Promise<string> {
  const rows = [...editorRows(facts), ...(await serverRows(facts))];
  const lines = rows.map(
    ({ part, ok, found, remedy }) =>
      `| ${ok ? "✓" : "–"} | ${cell(part)} | ${cell(found)} | ${cell(remedy ?? "")} |`,
  );
  return [
    "# kernel-lsp: what was found",
    "",
    "| | part | found | what to do |",
    "|---|---|---|---|",
    ...lines,
    "",
  ].join("\n");
}

function editorRows(facts: Facts): Finding[] {
  const { located } = facts;
  const server: Finding =
    "place" in located
      ? {
          part: "server",
          ok: facts.problem === undefined,
          found: `${located.place.command} (${located.place.origin})`,
          remedy: facts.problem ?? null,
        }
      : { part: "server", ok: false, found: located.problem, remedy: located.remedy };
  return [
    { part: "extension", ok: true, found: facts.extension, remedy: null },
    server,
    {
      part: "selected interpreter",
      ok: true,
      found: facts.interpreter ?? "none from the Python extension: the server searches",
      remedy: null,
    },
    {
      part: "workspace trust",
      ok: facts.trusted,
      found: facts.trusted ? "trusted" : "restricted",
      remedy: facts.trusted ? null : "trust the folder, or only static hints are given",
    },
  ];
}

/** The doctor runs the project's interpreter: not in a folder that nobody trusts. */
async function serverRows(facts: Facts): Promise<Finding[]> {
  if (!("place" in facts.located) || !facts.trusted || facts.folder === undefined) return [];
  const { command, args } = facts.located.place;
  const asked = [...args.slice(0, -1), "doctor", "--json", facts.folder];
  const env = {
    ...facts.environment,
    ...(facts.interpreter ? { KERNEL_LSP_PYTHON: facts.interpreter } : {}),
  };
  try {
    return findings(await run(command, asked, { env, timeout: TIMEOUT_MS }).then(({ stdout }) => stdout));
  } catch (error) {
    const { stdout, stderr } = error as { stdout?: string; stderr?: string }; // exit 1: something is missing
    const rows = findings(stdout ?? "");
    const said =
      String(stderr ?? error)
        .trim()
        .split("\n")
        .at(-1) ?? "";
    return rows.length > 0 ? rows : [{ part: "doctor", ok: false, found: said, remedy: "see the log" }];
  }
}

function findings(text: string): Finding[] {
  try {
    return (JSON.parse(text) as { findings: Finding[] }).findings;
  } catch {
    return [];
  }
}

function cell(text: string): string {
  return text.replaceAll("|", "\\|").replaceAll("\n", " ");
}
