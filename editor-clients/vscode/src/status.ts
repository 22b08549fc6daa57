// The status bar item: what the server says it does, which device and interpreter, and why nothing runs.

import {
  type Disposable,
  MarkdownString,
  StatusBarAlignment,
  type StatusBarItem,
  ThemeColor,
  window,
} from "vscode";

export const MENU = "kernel-lsp.client.menu";

/** Of the server. */
export type Life = "starting" | "running" | "stopped";

/** `experimental/serverStatus`, as rust-analyzer defined it. */
export interface ServerStatus {
  health: "ok" | "warning" | "error";
  quiescent: boolean;
  message: string | null;
}

/** The reply of the command `kernel-lsp.status`, as far as it is shown. */
export interface Details {
  version: string;
  device?: string | null;
  jobs: string[];
  folders: {
    folder: string;
    interpreter: string;
    interpreter_origin: string;
    consent: string | null;
    problems?: string[];
    settings: { device: string };
  }[];
}

export class Status implements Disposable {
  private readonly item: StatusBarItem;
  private said: ServerStatus = { health: "ok", quiescent: true, message: null };
  private life: Life = "stopped";
  private problem: string | undefined;
  private details: Details | undefined;

  constructor(
    private readonly ask: () => Promise<Details | undefined>,
    private readonly trusted: () => boolean,
  ) {
    this.item = window.createStatusBarItem("kernel-lsp.status", StatusBarAlignment.Right, 90);
    this.item.name = "kernel-lsp";
    this.item.command = MENU;
    this.render();
    this.item.show();
  }

  dispose(): void {
    this.item.dispose();
  }

  server(status: ServerStatus): void {
    this.said = status;
    void this.refresh();
  }

  moved(life: Life): void {
    this.life = life;
    if (life === "running") void this.refresh();
    else this.render();
  }

  /** Why there is no server; undefined: there is one again. */
  failed(problem: string | undefined): void {
    this.problem = problem;
    this.render();
  }

  async refresh(): Promise<void> {
    this.render();
    this.details = await this.ask();
    this.render();
  }

  private render(): void {
    const wrong = this.problem !== undefined;
    const warned = this.said.health !== "ok" || this.settingsProblems().length > 0;
    this.item.text = `${this.icon(wrong, warned)} kernel-lsp${this.words(wrong)}`;
    const color = wrong ? "error" : "warning";
    this.item.backgroundColor =
      wrong || warned ? new ThemeColor(`statusBarItem.${color}Background`) : undefined;
    this.item.tooltip = this.tooltip();
  }

  private icon(wrong: boolean, warned: boolean): string {
    if (wrong) return "$(error)";
    if (this.life === "starting") return "$(loading~spin)";
    if (warned) return "$(warning)";
    return (this.details?.jobs.length ?? 0) > 0 ? "$(sync~spin)" : "$(zap)";
  }

  private words(wrong: boolean): string {
    if (wrong) return ": off";
    const jobs = this.details?.jobs ?? [];
    const device = this.details?.device ? ` · ${this.details.device}` : "";
    return jobs.length > 0 ? `: ${jobs[0]}${jobs.length > 1 ? ` +${jobs.length - 1}` : ""}${device}` : device;
  }

  private settingsProblems(): string[] {
    return this.details?.folders.flatMap((folder) => folder.problems ?? []) ?? [];
  }

  private tooltip(): MarkdownString {
    const text = new MarkdownString("", true);
    for (const line of this.lines()) text.appendText(line).appendMarkdown("\n\n");
    return text;
  }

  private lines(): string[] {
    if (this.problem !== undefined) return [this.problem, "Click for what to do."];
    const lines = this.said.message === null ? [] : [this.said.message];
    if (!this.trusted()) lines.push("Restricted: no code of this folder is run until you trust it.");
    lines.push(...this.settingsProblems());
    for (const folder of this.details?.folders ?? []) {
      lines.push(
        `${folder.folder}: device ${folder.settings.device}, consent ${folder.consent ?? "not asked yet"}`,
      );
      lines.push(`measures with ${folder.interpreter} (${folder.interpreter_origin})`);
    }
    const jobs = this.details?.jobs ?? [];
    lines.push(jobs.length > 0 ? `Running or waiting: ${jobs.join(", ")}` : "Nothing is running.");
    if (this.details) lines.push(`kernel-lsp ${this.details.version}`);
    return lines;
  }
}
