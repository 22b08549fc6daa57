// The life of the server in this window: found, started, restarted, or off with the reason (safe mode).

import { type ExtensionContext, type LogOutputChannel, window, workspace } from "vscode";
import type { QuietClient } from "./client.ts";
import { atLeast, Crashes } from "./crashes.ts";
import { allowed, type Located, locate } from "./locate.ts";
import { onSelection, selectedInterpreter } from "./python.ts";
import { SECTION, serverPath } from "./settings.ts";
import { type Details, type Life, type ServerStatus, Status } from "./status.ts";

export const OLDEST_SERVER = "0.1.0";
const LOG = "Show Log";
const INSTALL = "Install";
const RESTART = "Restart";
const CHOOSE = "Open Settings";

/** Of the first folder, as the server has one interpreter for a window. */
const selected = () => selectedInterpreter(workspace.workspaceFolders?.[0]?.uri);

export class Session {
  readonly status: Status;
  interpreter: string | undefined;
  located: Located | undefined;
  problem: string | undefined;
  private client: QuietClient | undefined;
  private readonly crashes = new Crashes();
  private turn: Promise<void> = Promise.resolve();
  private listening = false;
  /** It answered once: what ends later is a crash, what ends before never was a server. */
  private answered = false;

  constructor(
    private readonly context: ExtensionContext,
    readonly log: LogOutputChannel,
    private readonly act: (title: string) => void,
  ) {
    this.status = new Status(
      () => this.details(),
      () => workspace.isTrusted,
    );
    context.subscriptions.push(this.status);
  }

  /** Where "Install" puts the server. */
  get ownFolder(): string {
    return `${this.context.globalStorageUri.fsPath}/server`;
  }

  /** An interpreter, unless it lies in a folder that nobody trusts. */
  mayRun(interpreter: string | undefined): string | undefined {
    const folders = (workspace.workspaceFolders ?? []).map((folder) => folder.uri.fsPath);
    const where = { folders, trusted: workspace.isTrusted };
    return interpreter !== undefined && allowed(interpreter, where) ? interpreter : undefined;
  }

  /** The running client. Throws an Error that says why there is none. */
  get running(): QuietClient {
    if (this.client?.isRunning()) return this.client;
    throw new Error(this.problem ?? "kernel-lsp is still starting; try again in a moment");
  }

  /** Stop what runs and start again; one after another, however often it is called. */
  restart(): Promise<void> {
    this.crashes.forget();
    this.turn = this.turn
      .then(() => this.stop())
      .then(() => this.start())
      .catch((error) => this.off(`off: ${error}`, LOG, RESTART));
    return this.turn;
  }

  async stop(): Promise<void> {
    const client = this.client;
    this.client = undefined;
    if (client?.needsStop()) await client.stop().catch((error) => this.log.warn(`stop: ${error}`));
    await client?.dispose().catch(() => undefined); // it never ran
  }

  private async start(): Promise<void> {
    this.fine();
    this.answered = false;
    await this.findInterpreter();
    const { path, problem } = serverPath(workspace.getConfiguration(SECTION));
    if (problem !== undefined) return this.off(problem, CHOOSE);
    this.located = await locate({
      setting: path,
      interpreter: this.interpreter,
      path: process.env.PATH,
      own: this.ownFolder,
      folders: (workspace.workspaceFolders ?? []).map((folder) => folder.uri.fsPath),
      trusted: workspace.isTrusted,
    });
    if ("problem" in this.located) {
      const { problem: what, remedy } = this.located;
      return this.off(`${what}: ${remedy}`, path === undefined ? INSTALL : CHOOSE);
    }
    this.log.info(`starting ${this.located.place.command} (${this.located.place.origin})`);
    const hooks = {
      python: () => this.interpreter,
      ended: () => this.ended(),
      moved: (life: Life) => this.status.moved(life),
    };
    // The library takes longer to load than everything else: after the activation, which VS Code waits for.
    const { makeClient } = await import("./client.ts");
    this.client = makeClient(this.context, this.located.place, this.log, hooks);
    this.client.onNotification("experimental/serverStatus", (status: ServerStatus) =>
      this.status.server(status),
    );
    await this.begin(this.client, this.located.place.command);
  }

  private async begin(client: QuietClient, command: string): Promise<void> {
    try {
      await client.start();
    } catch (error) {
      this.log.error(`${command}: ${(error as Error).message}`);
      if (this.problem === undefined) {
        this.off(`${command} did not start as a language server; the log says why`, LOG, CHOOSE);
      }
      return;
    }
    const info = client.initializeResult?.serverInfo;
    this.answered = info?.name === "kernel-lsp" && atLeast(info.version, OLDEST_SERVER);
    if (this.answered) return;
    await this.stop();
    const found =
      info?.name === "kernel-lsp" ? `version ${info.version}` : `"${info?.name ?? "something else"}"`;
    this.off(
      `${command} is ${found}, this extension needs kernel-lsp ${OLDEST_SERVER} or newer: pip install -U kernel-lsp`,
      INSTALL,
      CHOOSE,
    );
  }

  /** Asks the Python extension; starts it only when it is there. */
  private async findInterpreter(): Promise<void> {
    this.interpreter = await selected();
    if (this.listening) return;
    this.listening = true;
    const listener = await onSelection(() => void this.reselected());
    if (listener !== undefined) this.context.subscriptions.push(listener);
  }

  /** The Python extension says so at its start, too, and of what was selected before: then nothing restarts. */
  private async reselected(): Promise<void> {
    if ((await selected()) !== this.interpreter) await this.restart();
  }

  private ended(): boolean {
    if (!this.answered || this.problem !== undefined) return false;
    if (this.crashes.mayRestart(Date.now())) return true;
    this.off(`off: the server ended ${this.crashes.words}; the log says why`, LOG, RESTART);
    return false;
  }

  private fine(): void {
    this.problem = undefined;
    this.status.failed(undefined);
  }

  /** Safe mode: the status bar says why for as long as it lasts, one message says it once. */
  private off(problem: string, ...actions: string[]): void {
    this.problem = problem;
    this.log.error(problem);
    this.status.failed(problem);
    void window
      .showWarningMessage(`kernel-lsp: ${problem}`, ...actions)
      .then((title) => title && this.act(title));
  }

  private async details(): Promise<Details | undefined> {
    if (!this.client?.isRunning()) return undefined;
    const asked = { command: "kernel-lsp.status", arguments: [{}] };
    const reply = await this.client
      .sendRequest<Partial<Details> | null>("workspace/executeCommand", asked)
      .catch(() => undefined); // it just ended
    return Array.isArray(reply?.folders) ? (reply as Details) : undefined; // another program answers anything
  }
}
