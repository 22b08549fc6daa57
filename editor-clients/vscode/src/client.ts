// The language client: what it tells the server, and the few places where VS Code can show things better
// than plain LSP asks for. Decides nothing about rewrites.

import type { ChildProcess } from "node:child_process";
import { spawn } from "node:child_process";
import { homedir } from "node:os";
import { commands, type ExtensionContext, Uri, window, workspace } from "vscode";
import {
  type CodeAction,
  CodeActionRequest,
  type ConfigurationParams,
  LanguageClient,
  type LanguageClientOptions,
  LSPErrorCodes,
  ResponseError,
  RevealOutputChannelOn,
  type ServerCapabilities,
  State,
} from "vscode-languageclient/node";
import { withComparison } from "./compare.ts";
import type { Place } from "./locate.ts";
import { forServer, SECTION, serverNames } from "./settings.ts";
import type { Life } from "./status.ts";

const LIVES: Partial<Record<State, Life>> = { [State.Running]: "running", [State.Starting]: "starting" };

export interface Hooks {
  moved(life: Life): void;
  /** The selected interpreter, now. */
  python(): string | undefined;
  /** The server ended; true: start it again. */
  ended(): boolean;
}

/** Logs what the library would show as pop-ups; a refusal is the exception: it answers what somebody chose. */
export class QuietClient extends LanguageClient {
  override error(message: string, data?: unknown, show?: boolean | "force"): void {
    super.error(message, data, false);
    if (show !== false && data instanceof ResponseError && data.code === LSPErrorCodes.RequestFailed)
      void window.showWarningMessage(`kernel-lsp: ${data.message}`);
  }

  override warn(message: string, data?: unknown): void {
    super.warn(message, data, false);
  }

  override info(message: string, data?: unknown): void {
    super.info(message, data, false);
  }

  /** What the server offers at the cursor, asked as a person asks. */
  async actionsAtCursor(): Promise<CodeAction[]> {
    const editor = window.activeTextEditor;
    if (editor === undefined || editor.document.languageId !== "python") return [];
    const params = {
      textDocument: this.code2ProtocolConverter.asTextDocumentIdentifier(editor.document),
      range: this.code2ProtocolConverter.asRange(editor.selection),
      context: { diagnostics: [], triggerKind: 1 as const },
    };
    const found = (await this.sendRequest(CodeActionRequest.type, params)) ?? [];
    return found.filter((item): item is CodeAction => typeof item.command !== "string");
  }
}

export function makeClient(
  context: ExtensionContext,
  place: Place,
  channel: LanguageClientOptions["outputChannel"],
  hooks: Hooks,
): QuietClient {
  const client = new QuietClient(SECTION, "kernel-lsp", () => start(place), options(context, channel, hooks));
  client.registerFeature({
    fillClientCapabilities: (capabilities) => {
      const experimental = { ...(capabilities.experimental as object), serverStatusNotification: true };
      capabilities.experimental = experimental;
    },
    initialize: (_: ServerCapabilities) => {},
    getState: () => ({ kind: "static" }),
    clear: () => {},
  });
  client.onDidChangeState(({ newState }) => hooks.moved(LIVES[newState] ?? "stopped"));
  return client;
}

/** Resolves when the process runs, so that a missing program is an error of its own and no broken pipe. */
function start(place: Place): Promise<ChildProcess> {
  // Not in the workspace: what lies there is somebody else's, and Python imports from where it is started.
  const child = spawn(place.command, place.args, { cwd: homedir() });
  return new Promise((resolve, reject) => {
    child.once("spawn", () => resolve(child));
    child.once("error", reject);
  });
}

function options(
  context: ExtensionContext,
  channel: LanguageClientOptions["outputChannel"],
  hooks: Hooks,
): LanguageClientOptions {
  const names = serverNames(context.extension.packageJSON);
  const settings = (scope?: string) =>
    forServer(
      workspace.getConfiguration(SECTION, scope ? Uri.parse(scope) : undefined),
      names,
      hooks.python(),
    );
  return {
    // Cells are synchronized with their notebook; named here so that they are asked about, too.
    documentSelector: ["file", "untitled", "vscode-notebook-cell"].map((scheme) => ({
      scheme,
      language: "python",
    })),
    ...(channel ? { outputChannel: channel } : {}),
    revealOutputChannelOn: RevealOutputChannelOn.Never,
    initializationOptions: () => ({ isTrusted: workspace.isTrusted, settings: settings() }),
    initializationFailedHandler: () => false,
    synchronize: { configurationSection: SECTION },
    errorHandler: {
      error: () => ({ action: 1, handled: true }),
      closed: () => ({ action: hooks.ended() ? 2 : 1, handled: true }),
    },
    middleware: {
      // A lens or an action that asks for a recorded run: the palette's command has a terminal.
      executeCommand: (command, args, next) =>
        command === "kernel-lsp.recordRun"
          ? commands.executeCommand("kernel-lsp.client.recordProgram")
          : next(command, args),
      provideCodeActions: async (document, range, actions, token, next) =>
        withComparison(document, await next(document, range, actions, token), actions),
      handleWorkDoneProgress: (token, params, next) =>
        // What can be cancelled is shown as a pop-up; ours belongs into the status bar, whose menu cancels.
        next(token, params.kind === "begin" ? { ...params, cancellable: false } : params),
      window: {
        showDocument: async (params, token, next) =>
          (await showRendered(params.uri)) ? { success: true } : next(params, token),
      },
      workspace: {
        configuration: (params: ConfigurationParams) =>
          params.items.map((item) => (item.section === SECTION ? settings(item.scopeUri) : null)),
      },
    },
  };
}

/** Reports of the server are Markdown: rendered, not as source. */
async function showRendered(uri: string): Promise<boolean> {
  if (!uri.endsWith(".md")) return false;
  await commands.executeCommand("markdown.showPreview", Uri.parse(uri));
  return true;
}
