// A rewrite beside the code as it is, before anything changes: a diff with "Apply" and "Close" in its title.
// The server makes the edit, and makes it again when it is applied, so a text that moved on is refused there.

import {
  type CodeAction,
  type CodeActionContext,
  CodeActionKind,
  CodeActionTriggerKind,
  type Command,
  commands,
  EventEmitter,
  type ExtensionContext,
  type TextDocument,
  Uri,
  window,
  workspace,
} from "vscode";
import type { LanguageClient, CodeAction as Offer, TextEdit } from "vscode-languageclient/node";
import { TextDocument as Text } from "vscode-languageserver-textdocument";

const SCHEME = "kernel-lsp-rewrite";
const CELL = "vscode-notebook-cell";
export const COMPARE = "kernel-lsp.client.compare";

interface Data {
  uri: string;
  proposal: string;
  qualname: string;
}

type Items = readonly (Command | CodeAction)[] | null | undefined;

/** Beside a rewrite, the same as a comparison. Both go before what dismisses it: VS Code shows quick fixes first,
 * and the first is what Enter takes. Not for the light bulb, which asks on every move. A cell has no comparison:
 * its rewrite may edit other cells as well. */
export function withComparison(
  document: TextDocument,
  items: Items,
  context: CodeActionContext,
): (Command | CodeAction)[] {
  const all = [...(items ?? [])];
  const rewrite = all.find((item): item is CodeAction => dataOf(item) !== undefined);
  if (rewrite === undefined || context.triggerKind === CodeActionTriggerKind.Automatic) return all;
  if (context.only === undefined) rewrite.kind = CodeActionKind.QuickFix.append("kernel");
  if (document.uri.scheme === CELL) return [rewrite, ...all.filter((item) => item !== rewrite)];
  const title = `Compare ${dataOf(rewrite)?.qualname} with its rewrite`;
  const compare: CodeAction = {
    title,
    ...(rewrite.kind ? { kind: rewrite.kind } : {}),
    ...(rewrite.diagnostics ? { diagnostics: rewrite.diagnostics } : {}),
    command: { title, command: COMPARE, arguments: [dataOf(rewrite)] },
  };
  return [rewrite, compare, ...all.filter((item) => item !== rewrite)];
}

/** What the server wants back to make the edit; undefined: no rewrite. */
function dataOf(item: Command | CodeAction | undefined): Data | undefined {
  const data = (item as { data?: unknown } | undefined)?.data as Partial<Data> | undefined;
  return typeof data?.proposal === "string" && typeof data.uri === "string" ? (data as Data) : undefined;
}

export class Comparisons {
  private readonly texts = new Map<string, string>();
  private readonly offers = new Map<string, Data>();
  private readonly changed = new EventEmitter<Uri>();

  constructor(
    context: ExtensionContext,
    private readonly running: () => LanguageClient,
  ) {
    const provider = {
      onDidChange: this.changed.event,
      provideTextDocumentContent: (uri: Uri) => this.texts.get(uri.toString()) ?? "",
    };
    context.subscriptions.push(
      this.changed,
      workspace.registerTextDocumentContentProvider(SCHEME, provider),
      commands.registerCommand(COMPARE, (data: Data) => this.open(data)),
      commands.registerCommand("kernel-lsp.client.applyCompared", () => this.apply()),
      workspace.onDidCloseTextDocument((document) => this.forget(document)),
    );
  }

  private async open(data: Data): Promise<void> {
    const source = await workspace.openTextDocument(Uri.parse(data.uri));
    const edits = await this.edits(data);
    const text = Text.applyEdits(Text.create(data.uri, "python", source.version, source.getText()), edits);
    const uri = Uri.from({ scheme: SCHEME, path: source.uri.path, query: data.proposal });
    this.texts.set(uri.toString(), text);
    this.offers.set(uri.toString(), data);
    this.changed.fire(uri);
    await commands.executeCommand(
      "vscode.diff",
      source.uri,
      uri,
      `${data.qualname}: now ↔ verified rewrite`,
      {
        preview: true,
      },
    );
  }

  private async apply(): Promise<void> {
    const tab = window.tabGroups.activeTabGroup.activeTab;
    const uri = (tab?.input as { modified?: Uri } | undefined)?.modified;
    const data = uri && this.offers.get(uri.toString());
    if (tab === undefined || data === undefined) return;
    const client = this.running();
    const edit = await client.protocol2CodeConverter.asWorkspaceEdit(await this.resolved(data));
    await window.showTextDocument(Uri.parse(data.uri), { preview: false });
    if (!(await workspace.applyEdit(edit)))
      throw new Error("VS Code refused the edit: the file changed meanwhile");
    await client.sendRequest("workspace/executeCommand", { command: "kernel-lsp.chosen", arguments: [data] });
    await window.tabGroups.close(tab);
  }

  /** The server's answer on the text of this moment; it refuses when that is not what was measured. */
  private async resolved(data: Data) {
    const offer: Offer = { title: data.qualname, data };
    const answer = await this.running().sendRequest<Offer>("codeAction/resolve", offer);
    if (answer.edit === undefined) throw new Error("the server gave no edit; measure again");
    return answer.edit;
  }

  private async edits(data: Data): Promise<TextEdit[]> {
    const edit = await this.resolved(data);
    const changes = (edit.documentChanges ?? []).flatMap((change) => ("edits" in change ? change.edits : []));
    return [...changes, ...Object.values(edit.changes ?? {}).flat()].filter(
      (one): one is TextEdit => "newText" in one,
    );
  }

  private forget(document: TextDocument): void {
    this.texts.delete(document.uri.toString());
    this.offers.delete(document.uri.toString());
  }
}
