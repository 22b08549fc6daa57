"""What each message of a client means, exactly as LSP 3.17 says: order, errors, cancellation, the
end.

pygls dispatches, lsprotocol knows the types. What is added here: nothing is served before
`initialize` or after `shutdown`; every request is answered once, with the code that the
specification names; values are not turned into other types ("3" is no line number); no answer
holds a traceback; nothing is kept of what was answered. Texts of documents are the session's
(sync.py): pygls keeps none. Not covered: bytes (framing.py)."""

from __future__ import annotations

import asyncio
import enum
import functools
import logging
from collections.abc import Callable, Generator, Sequence
from typing import Any, Union, get_args, get_origin
from urllib.parse import unquote, urlsplit

import attrs
from cattrs import Converter, transform_error
from cattrs.gen import make_dict_structure_fn, override
from lsprotocol import types
from pygls.exceptions import JsonRpcException, JsonRpcInvalidParams
from pygls.protocol import LanguageServerProtocol, default_converter
from pygls.protocol.language_server import lsp_method

from kernel_lsp import plain, positions
from kernel_lsp.server.framing import Damaged

log = logging.getLogger("kernel_lsp")
ErrorCode = types.ErrorCodes
GOODBYE_S = 1.0
"""How long `exit` waits for the answer to a `shutdown` that came right before it."""
MAX_ERROR_CHARS = 400
_ABSENT = object()
_TOKEN_TYPES = (Union[int, str], Union[int, str, None])  # noqa: UP007 - as lsprotocol writes them


class RequestFailed(JsonRpcException):
    """A request that was understood and cannot be done; clients show the message.

    Not ContentModified: VS Code swallows that one.
    """

    CODE = types.LSPErrorCodes.RequestFailed.value
    MESSAGE = "Request failed"


class BadArguments(JsonRpcInvalidParams):
    """A command with arguments that are no arguments of it."""


@functools.cache
def strict_converter() -> Converter:
    """lsprotocol's converter, except that it refuses values of a wrong type: a text is no number,
    and no list of letters."""
    converter: Converter = default_converter()  # type: ignore[no-untyped-call]
    for kind in (str, int, bool, float):
        converter.register_structure_hook(kind, _exactly)
    converter.register_structure_hook_func(lambda given: given in _TOKEN_TYPES, _token)
    converter.register_structure_hook_factory(_is_sequence, _sequence_hook)
    converter.register_structure_hook_factory(attrs.has, _object_hook)
    return converter


class Protocol(LanguageServerProtocol):
    """One client's: see the top of this file."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.ended = asyncio.Event()
        """Set by `exit`."""
        self.shutdown_asked = False
        self._initialized = False
        self._notified = False
        self._ours: set[Any] = set()
        """Ids of requests that we sent."""
        self._goodbye_id: Any = None
        """Of a shutdown request that is not answered yet."""
        self._leaving = False
        self.answered_ahead: Any = _ABSENT
        """Id of a request that was answered before this began to serve (announced.py)."""

    def exit_code(self) -> int:
        """The exit status as LSP says: 0 only after a shutdown request."""
        return 0 if self.shutdown_asked else 1

    # --- in ------------------------------------------------------------------------------------

    def receive(self, data: Any) -> None:
        """One JSON value of the client. Never raises."""
        try:
            self._receive(data)
        except Exception as error:
            log.error("a message could not be handled: %s", error)
            if isinstance(data, dict) and "method" in data and "id" in data:
                self._refuse(
                    data["id"], ErrorCode.InternalError, "the message could not be handled"
                )

    def _receive(self, data: Any) -> None:
        if isinstance(data, Damaged):
            self._refuse(None, ErrorCode.ParseError, data.reason)
        elif isinstance(data, list):
            self._refuse(None, ErrorCode.InvalidRequest, "batches are not part of LSP")
        elif not isinstance(data, dict):
            self._refuse(None, ErrorCode.InvalidRequest, "a message is an object")
        elif data.get("jsonrpc") != self.VERSION:
            self._refuse(data.get("id"), ErrorCode.InvalidRequest, 'a message has "jsonrpc": "2.0"')
        elif "method" in data:
            self._receive_call(data)
        elif "id" in data and ("result" in data or "error" in data):
            self._receive_response(data)
        else:
            self._refuse(
                data.get("id"), ErrorCode.InvalidRequest, "a message has a method, or a result"
            )

    def _receive_call(self, data: dict[str, Any]) -> None:
        method, msg_id = data["method"], data.get("id", _ABSENT)
        if msg_id is not _ABSENT and not is_id(msg_id):
            self._refuse(None, ErrorCode.InvalidRequest, "an id is an integer or a text")
        elif not isinstance(method, str):
            if msg_id is not _ABSENT:
                self._refuse(msg_id, ErrorCode.InvalidRequest, "a method is a text")
        elif msg_id is _ABSENT:
            self._receive_notification(method, data)
        else:
            self._receive_request(msg_id, method, data)

    def _receive_request(self, msg_id: Any, method: str, data: dict[str, Any]) -> None:
        kind = self.get_message_type(method)
        if self.shutdown_asked:
            self._refuse(msg_id, ErrorCode.InvalidRequest, "the server was asked to shut down")
        elif method == types.INITIALIZE and self._initialized:
            self._refuse(msg_id, ErrorCode.InvalidRequest, "the server is initialized already")
        elif method != types.INITIALIZE and not self._initialized:
            self._refuse(msg_id, ErrorCode.ServerNotInitialized, "initialize comes first")
        elif kind is not None and not _has_id(kind):
            self._refuse(
                msg_id, ErrorCode.InvalidRequest, f"{method} is a notification: it has no id"
            )
        elif kind is None or not self._serves(method):
            self._refuse(msg_id, ErrorCode.MethodNotFound, f"{method[:200]} is not served")
        else:
            message = self._structured(data, kind)
            if isinstance(message, str):
                self._refuse(msg_id, ErrorCode.InvalidParams, message)
                return
            if method == types.SHUTDOWN:
                self.shutdown_asked = True
                self._goodbye_id = msg_id
            self.handle_message(message)
            if method == types.INITIALIZE:
                self._initialized = hasattr(self, "server_capabilities")

    def _receive_notification(self, method: str, data: dict[str, Any]) -> None:
        """Never answered, whatever is wrong with it."""
        if method == types.EXIT:
            self._leave()
            return
        if not self._initialized or self.shutdown_asked or not self._expects(method):
            return
        if method == types.INITIALIZED:
            if self._notified:
                return
            self._notified = True
            data = {**data, "params": {}}
        message = self._structured(data, self.get_message_type(method))
        if isinstance(message, str):
            log.warning("%s was not taken: %s", method, plain.plain(message))
        else:
            self.handle_message(message)

    def _receive_response(self, data: dict[str, Any]) -> None:
        """Of the client, to what we have asked; a malformed one is a failed one: whoever waits
        goes on."""
        msg_id = data["id"]
        if not is_id(msg_id) or msg_id not in self._ours:
            return
        self._ours.discard(msg_id)
        kind = self._result_types.pop(msg_id, None)
        future = self._request_futures.pop(msg_id, None)
        if future is None or future.done():
            return
        if data.get("error") is not None:
            future.set_exception(_error_of(data["error"]))
            return
        if kind is None:
            future.set_result(data.get("result"))
            return
        message = self._structured({**data, "result": data.get("result")}, kind)
        if isinstance(message, str):
            future.set_exception(JsonRpcInvalidParams(message))
        else:
            future.set_result(getattr(message, "result", None))

    def _structured(self, data: dict[str, Any], kind: Any) -> Any:
        """A message of lsprotocol's; a text that says what is wrong with the params otherwise."""
        try:
            return self._converter.structure(data, kind)
        except RecursionError:
            return "the params are nested too deeply"
        except Exception as error:
            try:
                reasons = [str(line) for line in transform_error(error)]
            except Exception:
                reasons = []
            return (
                "; ".join(reasons)[:MAX_ERROR_CHARS] or "the params are not what the method takes"
            )

    def _serves(self, method: str) -> bool:
        return method in self.fm.builtin_features or method in self.fm.features

    def _expects(self, method: str) -> bool:
        """Is it a notification, and one that somebody here takes?"""
        kind = self.get_message_type(method)
        if kind is not None and _has_id(kind):
            return False
        return kind is not None and (method == types.CANCEL_REQUEST or self._serves(method))

    def _leave(self) -> None:
        """`exit`: at once, but for the answer to a shutdown that is still being worked on."""
        if self._goodbye_id is None:
            self.ended.set()
        else:
            self._leaving = True
            asyncio.get_running_loop().call_later(GOODBYE_S, self.ended.set)

    # --- out -----------------------------------------------------------------------------------

    def _refuse(self, msg_id: Any, code: ErrorCode, message: str) -> None:
        """An error as an answer. Where the id is not known it is null, as JSON-RPC asks for."""
        if self._was_answered(msg_id):
            return
        error = {"code": code.value, "message": plain.plain(message)}
        known = msg_id if is_id(msg_id) else None
        self._send_data({"jsonrpc": self.VERSION, "id": known, "error": error})

    def _was_answered(self, msg_id: Any) -> bool:
        """Once: a client may use an id again."""
        if msg_id != self.answered_ahead:
            return False
        self.answered_ahead = _ABSENT
        return True

    def _send_response(
        self, msg_id: Any, result: Any = None, error: types.ResponseError | None = None
    ) -> None:
        if self._was_answered(msg_id):
            return
        if error is not None and isinstance(error.data, dict) and "traceback" in error.data:
            error = types.ResponseError(code=error.code, message=error.message)  # the log has it
        super()._send_response(msg_id, result, error)
        if self._goodbye_id is not None and msg_id == self._goodbye_id:
            self._goodbye_id = None
            if self._leaving:
                self.ended.set()

    def _serialize_message(self, data: Any) -> Any:
        """Whatever a client shows goes out here: no escape sequence, control character or
        direction mark."""
        return plain.make_plain(super()._serialize_message(data))

    def send_request(
        self, method: str, params: Any = None, callback: Any = None, msg_id: Any = None
    ) -> Any:
        """The future of the client's answer; the request's id is kept as one of ours."""
        future = super().send_request(method, params, callback, msg_id)
        self._ours.update(key for key, value in self._request_futures.items() if value is future)
        return future

    # --- pygls ---------------------------------------------------------------------------------

    def _execute_handler(
        self,
        msg_id: Any,
        handler: Any,
        callback: Callable[..., Any],
        args: Any = None,
        kwargs: Any = None,
    ) -> None:
        """pygls keeps the futures of notifications and of steps for good."""

        def done(future: Any) -> None:
            if self._request_futures.get(msg_id) is future:
                del self._request_futures[msg_id]
            callback(future)

        super()._execute_handler(msg_id, handler, done, args, kwargs)

    def _handle_cancel_notification(self, msg_id: Any) -> None:
        """Only what the client itself has asked can be cancelled by it."""
        if msg_id not in self._ours:
            super()._handle_cancel_notification(msg_id)

    @lsp_method(types.INITIALIZE)
    def lsp_initialize(self, params: types.InitializeParams) -> Generator[Any, Any, Any]:
        """The base class's answer. Raises JsonRpcInvalidParams for a root that is no URI."""
        folders = [folder.uri for folder in params.workspace_folders or ()]
        for uri in (params.root_uri, *folders):
            if uri is not None and not _is_uri(uri):
                raise JsonRpcInvalidParams(f"{uri[:200]} is no URI")
        return (yield from super().lsp_initialize(params))

    @lsp_method(types.SHUTDOWN)
    def lsp_shutdown(self, *arguments: Any) -> Generator[Any, Any, None]:
        """What is still worked on is cancelled, and its client gets an answer that says so."""
        yield self.fm.features[types.SHUTDOWN], arguments, None
        for msg_id, future in list(self._request_futures.items()):
            if msg_id != self._goodbye_id and not future.done():
                future.cancel()

    @lsp_method(types.TEXT_DOCUMENT_DID_OPEN)
    def lsp_text_document__did_open(self, params: Any) -> Generator[Any, Any, None]:
        """Runs our handler alone: the base class's copy of all texts is not used."""
        yield self.fm.features[types.TEXT_DOCUMENT_DID_OPEN], (params,), None

    @lsp_method(types.TEXT_DOCUMENT_DID_CHANGE)
    def lsp_text_document__did_change(self, params: Any) -> Generator[Any, Any, None]:
        """Runs our handler alone."""
        yield self.fm.features[types.TEXT_DOCUMENT_DID_CHANGE], (params,), None

    @lsp_method(types.TEXT_DOCUMENT_DID_CLOSE)
    def lsp_text_document__did_close(self, params: Any) -> Generator[Any, Any, None]:
        """Runs our handler alone."""
        yield self.fm.features[types.TEXT_DOCUMENT_DID_CLOSE], (params,), None

    @lsp_method(types.NOTEBOOK_DOCUMENT_DID_CHANGE)
    def lsp_notebook_document__did_change(
        self, params: types.DidChangeNotebookDocumentParams
    ) -> Generator[Any, Any, None]:
        """Texts of cells are edited as those of files are: pygls stops at the first cell that is
        not open, and also ends lines where Python does and LSP does not."""
        if unquote(params.notebook_document.uri) not in self.workspace.notebook_documents:
            log.warning("a change of a notebook that is not open was not taken")
            return
        cells = params.change.cells
        if cells is not None and cells.text_content:
            texts = {uri: cell.source for uri, cell in self.workspace.text_documents.items()}
            opened = (cells.structure.did_open if cells.structure is not None else None) or ()
            texts.update((unquote(item.uri), item.text) for item in opened)
            cells.text_content = [
                self._with_whole_text(content, texts[unquote(content.document.uri)])
                for content in cells.text_content
                if unquote(content.document.uri) in texts
            ]
        yield from super().lsp_notebook_document__did_change(params)

    def _with_whole_text(
        self, content: types.NotebookDocumentCellContentChanges, text: str
    ) -> types.NotebookDocumentCellContentChanges:
        """What a cell has after its changes."""
        chosen = self.workspace.position_encoding
        encoding = str(getattr(chosen, "value", chosen))
        edited = positions.apply_edits(text, encoding, list(map(edit_of, content.changes)))
        whole = types.TextDocumentContentChangeWholeDocument(text=edited)
        return types.NotebookDocumentCellContentChanges(content.document, [whole])

    @lsp_method(types.NOTEBOOK_DOCUMENT_DID_CLOSE)
    def lsp_notebook_document__did_close(
        self, params: types.DidCloseNotebookDocumentParams
    ) -> Generator[Any, Any, None]:
        """Closes the notebook as pygls does, unless it is not open."""
        if unquote(params.notebook_document.uri) in self.workspace.notebook_documents:
            yield from super().lsp_notebook_document__did_close(params)


def edit_of(
    change: types.TextDocumentContentChangeEvent,
) -> tuple[tuple[int, int], tuple[int, int], str] | str:
    """One change as `positions.apply_edits` takes it."""
    if isinstance(change, types.TextDocumentContentChangeWholeDocument):
        return change.text
    start, end = change.range.start, change.range.end
    return (start.line, start.character), (end.line, end.character), change.text


def _is_uri(text: str) -> bool:
    try:
        return bool(urlsplit(text).scheme)
    except ValueError:
        return False


def is_id(value: Any) -> bool:
    """Whether a value may be the id of a request."""
    return isinstance(value, (int, str)) and not isinstance(value, bool)


def _has_id(kind: Any) -> bool:
    return any(field.name == "id" for field in getattr(kind, "__attrs_attrs__", ()))


def _error_of(error: Any) -> JsonRpcException:
    message = error.get("message") if isinstance(error, dict) else None
    return JsonRpcException(message if isinstance(message, str) else "the client refused")


def _exactly(value: Any, kind: Any) -> Any:
    if issubclass(kind, enum.Enum):
        return kind(value)
    if type(value) is kind or (kind is float and type(value) is int):
        return value
    raise TypeError(f"no {kind.__name__}")


def _token(value: Any, _: Any) -> Any:
    if value is None or is_id(value):
        return value
    raise TypeError("neither an integer nor a text")


def _object_hook(kind: Any, converter: Converter) -> Callable[[Any, Any], Any]:
    """cattrs looks for names in whatever has some: also in a text."""
    names = {field.name: override(rename=_camel_case(field.name)) for field in attrs.fields(kind)}
    structure: Any = make_dict_structure_fn(kind, converter, **names)  # type: ignore[arg-type]

    def structure_object(value: Any, given: Any) -> Any:
        if not isinstance(value, dict):
            raise TypeError("no object")
        return structure(value, given)

    return structure_object


def _camel_case(name: str) -> str:
    """As lsprotocol's attributes are called in JSON: from_ is from, text_document is
    textDocument."""
    first, *others = name.removesuffix("_").split("_")
    return first + "".join(part.title() for part in others)


def _is_sequence(kind: Any) -> bool:
    origin = get_origin(kind)
    return (
        isinstance(origin, type) and issubclass(origin, Sequence) and len(get_args(kind)) in (1, 2)
    )


def _sequence_hook(kind: Any, converter: Converter) -> Callable[[Any, Any], Any]:
    inner = get_args(kind)[0]

    def structure(value: Any, _: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise TypeError("no list")
        return tuple(converter.structure(item, inner) for item in value)

    return structure
