;;; kernel-lsp.el --- Measured, checked rewrites of PyTorch and Triton code  -*- lexical-binding: t; -*-

;; Author: The authors of kernel-lsp
;; Maintainer: The authors of kernel-lsp
;; URL: https://github.com/kernel-lsp/kernel-lsp
;; Version: 0.1.0
;; Package-Requires: ((emacs "28.1") (eglot "1.9"))
;; Keywords: languages, tools
;; SPDX-License-Identifier: Apache-2.0

;;; Commentary:

;; Runs kernel-lsp as a language server of Eglot (`kernel-lsp-eglot-setup') or
;; of lsp-mode, beside your other servers (`kernel-lsp-lsp-mode-setup'), and
;; gives its code actions names that keys can be bound to.  Nothing is decided
;; here: what is offered, and whether it still fits, the server says.

;;; Code:

(require 'cl-lib)
(require 'compile)
(require 'diff)
(require 'eglot)
(require 'seq)
(require 'subr-x)

(defgroup kernel-lsp nil
  "Measured, checked rewrites of PyTorch and Triton code."
  :group 'tools)

(defcustom kernel-lsp-command '("kernel-lsp" "serve")
  "The program that is the server, and its arguments."
  :type '(repeat string))

(defconst kernel-lsp--clone
  (let* ((file (or load-file-name buffer-file-name))
         (folder (and file (expand-file-name "../.." (file-name-directory file)))))
    (and folder (file-exists-p (expand-file-name "pyproject.toml" folder)) folder))
  "The repository that this file lies in, or nil where it was installed by itself.")

(defvar kernel-lsp-status ""
  "What the server is doing, for the mode line; empty when there is nothing to say.")

;; lsp-mode is optional.
(defvar lsp--cur-workspace)
(defvar lsp-response-timeout)
(declare-function lsp-request-async "lsp-mode")
(declare-function lsp-find-workspace "lsp-mode")
(declare-function lsp-workspace-restart "lsp-mode")
(declare-function lsp-register-client "lsp-mode")
(declare-function lsp-activate-on "lsp-mode")
(declare-function lsp-stdio-connection "lsp-mode")
(declare-function make-lsp-client "lsp-mode")
(declare-function lsp--buffer-uri "lsp-mode")
(declare-function lsp--workspace-server-capabilities "lsp-mode")

;;; Two clients, one face

(defclass kernel-lsp-eglot-server (eglot-lsp-server) ()
  "Eglot's connection to kernel-lsp.")

(cl-defmethod eglot-client-capabilities ((_server kernel-lsp-eglot-server))
  "What Eglot announces, and that status notifications are read."
  (plist-put (cl-call-next-method) :experimental '(:serverStatusNotification t)))

(cl-defmethod eglot-handle-notification
  ((_server kernel-lsp-eglot-server) (_method (eql experimental/serverStatus))
   &key health message &allow-other-keys)
  "Keep HEALTH and MESSAGE for the mode line."
  (kernel-lsp--set-status health message))

(defun kernel-lsp--set-status (health message)
  "Show MESSAGE in the mode line, marked unless HEALTH is ok."
  (setq kernel-lsp-status
        (if (stringp message)
            (concat " kernel-lsp" (if (equal health "ok") ": " "! ") message)
          ""))
  (force-mode-line-update t))

;;;###autoload
(defun kernel-lsp-eglot-setup ()
  "Make kernel-lsp the Python server of Eglot, and show its status."
  (add-to-list 'eglot-server-programs
               `((python-mode python-ts-mode) . (kernel-lsp-eglot-server ,@kernel-lsp-command)))
  (add-to-list 'global-mode-string '(:eval kernel-lsp-status) t))

;;;###autoload
(defun kernel-lsp-lsp-mode-setup ()
  "Run kernel-lsp in lsp-mode, beside other Python servers, and show its status."
  (require 'lsp-mode)
  (let ((handlers (make-hash-table :test 'equal))
        (actions (make-hash-table :test 'equal)))
    (puthash "kernel-lsp.recordRun" (lambda (_action) (kernel-lsp-record)) actions)
    (puthash "experimental/serverStatus"
             (lambda (_workspace params)
               (kernel-lsp--set-status (kernel-lsp--get params :health)
                                       (kernel-lsp--get params :message)))
             handlers)
    (lsp-register-client
     (make-lsp-client :new-connection (lsp-stdio-connection (lambda () kernel-lsp-command))
                      :activation-fn (lsp-activate-on "python")
                      :server-id 'kernel-lsp
                      :add-on? t
                      :custom-capabilities '((experimental . ((serverStatusNotification . t))))
                      :action-handlers actions
                      :notification-handlers handlers)))
  (add-to-list 'global-mode-string '(:eval kernel-lsp-status) t))

(defun kernel-lsp--get (object key)
  "The value of KEY, a keyword, in OBJECT: a plist, or the hash table of lsp-mode."
  (if (hash-table-p object)
      (gethash (substring (symbol-name key) 1) object)
    (plist-get object key)))

(defun kernel-lsp--workspace ()
  "The workspace of lsp-mode for this buffer, or nil."
  (and (bound-and-true-p lsp-mode) (lsp-find-workspace 'kernel-lsp (buffer-file-name))))

(defun kernel-lsp--server ()
  "Our server in this buffer: Eglot's or lsp-mode's."
  (or (kernel-lsp--workspace)
      (and (eglot-managed-p) (eglot-current-server))
      (user-error "No kernel-lsp in this buffer: M-x eglot or M-x lsp starts it; M-x kernel-lsp-doctor")))

(defun kernel-lsp--request (method params)
  "Ask our server METHOD, a string, with PARAMS and wait for its answer."
  (let ((server (kernel-lsp--server)))
    (if (cl-typep server 'eglot-lsp-server)
        (jsonrpc-request server (intern (concat ":" method)) params :deferred t)
      (let ((lsp--cur-workspace server)) (kernel-lsp--request-lsp-mode method params)))))

(defun kernel-lsp--request-lsp-mode (method params)
  "Ask METHOD with PARAMS; `lsp-request' loses what comes with an answer."
  (let ((end (+ (float-time) lsp-response-timeout)) answer refusal)
    (lsp-request-async method params (lambda (result) (setq answer (list result)))
                       :error-handler (lambda (found) (setq refusal found))
                       :mode 'detached)
    (while (not (or answer refusal (> (float-time) end)))
      (accept-process-output nil 0.02))
    (cond (answer (car answer))
          (refusal (user-error "%s" (kernel-lsp--get refusal :message)))
          (t (user-error "No answer from kernel-lsp within %s s; M-x kernel-lsp-restart" lsp-response-timeout)))))

(defun kernel-lsp--execute (command arguments)
  "Run COMMAND of the server with ARGUMENTS, one object."
  (kernel-lsp--request "workspace/executeCommand" `(:command ,command :arguments [,arguments])))

(defun kernel-lsp--uri ()
  "The name that the server knows this buffer by."
  (cond ((kernel-lsp--workspace) (lsp--buffer-uri))
        ((fboundp 'eglot-path-to-uri) (funcall #'eglot-path-to-uri buffer-file-name))
        (t (funcall #'eglot--path-to-uri buffer-file-name))))

;;; Positions and edits

(defun kernel-lsp--encoding ()
  "The unit in which the server counts columns."
  (let* ((server (kernel-lsp--server))
         (capabilities (if (cl-typep server 'eglot-lsp-server)
                           (eglot--capabilities server)
                         (lsp--workspace-server-capabilities server))))
    (or (kernel-lsp--get capabilities :positionEncoding) "utf-16")))

(defun kernel-lsp--width (text encoding)
  "How many units of ENCODING the string TEXT has."
  (pcase encoding
    ("utf-32" (length text))
    ("utf-8" (string-bytes text))
    (_ (/ (length (encode-coding-string text 'utf-16le)) 2))))

(defun kernel-lsp--position (encoding)
  "Point in the units of ENCODING, with lines from 0."
  (list :line (1- (line-number-at-pos nil t))
        :character (kernel-lsp--width (buffer-substring-no-properties (line-beginning-position) (point))
                                      encoding)))

(defun kernel-lsp--point (position encoding)
  "Buffer position of POSITION, which counts in ENCODING."
  (save-excursion
    (goto-char (point-min))
    (forward-line (kernel-lsp--get position :line))
    (let ((left (kernel-lsp--get position :character)))
      (while (and (> left 0) (not (eolp)))
        (setq left (- left (kernel-lsp--width (string (char-after)) encoding)))
        (forward-char)))
    (point)))

(defun kernel-lsp--edits (workspace-edit)
  "The text edits in WORKSPACE-EDIT, which is about one document."
  (if-let ((documents (kernel-lsp--get workspace-edit :documentChanges)))
      (kernel-lsp--get (elt documents 0) :edits)
    (let ((changes (kernel-lsp--get workspace-edit :changes)))
      (if (hash-table-p changes) (car (hash-table-values changes)) (cadr changes)))))

(defun kernel-lsp--edit (edits encoding)
  "Make EDITS, whose positions count in ENCODING, in the current buffer."
  (let ((places (mapcar (lambda (edit)
                          (let ((range (kernel-lsp--get edit :range)))
                            (list (kernel-lsp--point (kernel-lsp--get range :start) encoding)
                                  (kernel-lsp--point (kernel-lsp--get range :end) encoding)
                                  (kernel-lsp--get edit :newText))))
                        edits)))
    (pcase-dolist (`(,start ,end ,new) (sort places (lambda (a b) (> (car a) (car b)))))
      (delete-region start end)
      (goto-char start)
      (insert new))))

;;; What can be done here

(defun kernel-lsp--actions (commands)
  "Code actions at point whose command is one of COMMANDS."
  (let ((here (kernel-lsp--position (kernel-lsp--encoding))))
    (seq-filter (lambda (action)
                  (let ((command (kernel-lsp--get action :command)))
                    (and command (not (stringp command))
                         (member (kernel-lsp--get command :command) commands))))
                (kernel-lsp--request "textDocument/codeAction"
                                     `(:textDocument (:uri ,(kernel-lsp--uri))
                                       :range (:start ,here :end ,here)
                                       :context (:diagnostics [] :triggerKind 1))))))

(defun kernel-lsp--choose (commands none)
  "Choose a code action at point among COMMANDS, or say NONE."
  (let ((titles (mapcar (lambda (action) (cons (kernel-lsp--get action :title) action))
                        (kernel-lsp--actions commands))))
    (cond ((null titles) (user-error "%s" none))
          ((null (cdr titles)) (cdar titles))
          (t (cdr (assoc (completing-read "kernel-lsp: " titles nil t) titles))))))

(defun kernel-lsp--arguments (action)
  "Arguments for the command of ACTION."
  (elt (kernel-lsp--get (kernel-lsp--get action :command) :arguments) 0))

(defun kernel-lsp--run (command none)
  "Run the code action at point that is COMMAND, or say NONE."
  (let ((action (kernel-lsp--choose (list command) none)))
    (prog1 (kernel-lsp--execute command (kernel-lsp--arguments action))
      (message "kernel-lsp: %s" (kernel-lsp--get action :title)))))

(defun kernel-lsp--after (action)
  "A buffer with the present text and ACTION in place."
  (let* ((encoding (kernel-lsp--encoding))
         (text (buffer-substring-no-properties (point-min) (point-max)))
         (full (kernel-lsp--request "codeAction/resolve"
                                    (list :title (kernel-lsp--get action :title)
                                          :data (kernel-lsp--arguments action)))))
    (with-current-buffer (get-buffer-create " *kernel-lsp after*")
      (erase-buffer)
      (insert text)
      (kernel-lsp--edit (kernel-lsp--edits (kernel-lsp--get full :edit)) encoding)
      (current-buffer))))

(defun kernel-lsp-rewrite ()
  "Show the verified rewrite at point as a diff, and apply it when you say so."
  (interactive)
  (let* ((action (kernel-lsp--choose
                  '("kernel-lsp.chosen" "kernel-lsp.apply")
                  "No verified rewrite is offered here; M-x kernel-lsp-optimize measures this target"))
         (diff (diff-no-select (current-buffer) (kernel-lsp--after action) "-u" t
                               (get-buffer-create "*kernel-lsp diff*")))
         (eglot-confirm-server-initiated-edits nil)) ; the question below is the confirmation
    (when (save-window-excursion
            (display-buffer diff)
            (y-or-n-p (format "%s.  Apply? " (kernel-lsp--get action :title))))
      (kernel-lsp--execute "kernel-lsp.apply" (kernel-lsp--arguments action)))))

(defun kernel-lsp-optimize ()
  "Measure the target at point: seconds to a minute."
  (interactive)
  (kernel-lsp--run "kernel-lsp.optimize" "Nothing to measure here, or a rewrite is offered already"))

(defun kernel-lsp-search-deeper ()
  "Go on searching for the target at point, in the background."
  (interactive)
  (kernel-lsp--run "kernel-lsp.searchDeeper" "No target here, or its search runs already"))

(defun kernel-lsp-dismiss ()
  "Hear no more of the hint at point: of this code, or of its kind in this folder."
  (interactive)
  (kernel-lsp--run "kernel-lsp.dismiss" "No hint here"))

(defun kernel-lsp-show-evidence ()
  "Open the full report of the rewrite at point."
  (interactive)
  (let* ((action (kernel-lsp--choose '("kernel-lsp.showEvidence") "No rewrite is offered here"))
         (found (kernel-lsp--execute "kernel-lsp.showEvidence" (kernel-lsp--arguments action))))
    (with-current-buffer (get-buffer-create "*kernel-lsp evidence*")
      (let ((inhibit-read-only t))
        (erase-buffer)
        (insert (kernel-lsp--get found :report)))
      (goto-char (point-min))
      (view-mode 1)
      (display-buffer (current-buffer)))))

(defun kernel-lsp--program (doing prompt)
  "Choose a program with PROMPT, and run the line that is DOING it, a keyword.
What is typed and no program of the workspace is one as in a shell."
  (let* ((found (kernel-lsp--execute "kernel-lsp.entryPoints" (list :uri (kernel-lsp--uri))))
         (programs (mapcar (lambda (program)
                             (cons (format "%s (%s)" (kernel-lsp--get program :name)
                                           (kernel-lsp--get program :kind))
                                   program))
                           (kernel-lsp--get found :points)))
         (name (completing-read prompt (kernel-lsp--in-order (mapcar #'car programs)) nil nil nil nil
                                (or (caar programs) (kernel-lsp--get found :python))))
         (program (cdr (assoc name programs)))
         (default-directory (file-name-as-directory
                             (if program (kernel-lsp--get program :path)
                               (kernel-lsp--get found :folder))))
         (shell-file-name (if (eq system-type 'windows-nt) shell-file-name "/bin/sh"))
         (compilation-buffer-name-function
          (lambda (_mode) (format "*kernel-lsp %s*" (substring (symbol-name doing) 1)))))
    (mapc (lambda (problem) (message "kernel-lsp: %s" problem)) (kernel-lsp--get found :problems))
    (compile (if program (kernel-lsp--get program doing)
               (concat (kernel-lsp--get found doing) " " name))
             t)))

(defun kernel-lsp--in-order (names)
  "Make a completion table of NAMES in their order: likely ones first."
  (lambda (string predicate action)
    (if (eq action 'metadata)
        '(metadata (display-sort-function . identity) (cycle-sort-function . identity))
      (complete-with-action action names string predicate))))

(defun kernel-lsp-record ()
  "Run a program of the workspace, and record what it does with its modules."
  (interactive)
  (kernel-lsp--program :record "Record a run of: "))

(cl-defmethod eglot-execute-command
  ((_server kernel-lsp-eglot-server) (_command (eql kernel-lsp.recordRun)) _arguments)
  "An action that asks for a recorded run: a terminal is ours to open."
  (kernel-lsp-record))

(defun kernel-lsp-optimize-program ()
  "Optimize a program of the workspace as a whole, and measure its own step."
  (interactive)
  (kernel-lsp--program :optimize "Optimize the program: "))

(defun kernel-lsp-cancel ()
  "Stop what is measured or searched for this file."
  (interactive)
  (message "kernel-lsp: %s stopped"
           (kernel-lsp--get (kernel-lsp--execute "kernel-lsp.cancel" (list :uri (kernel-lsp--uri)))
                            :cancelled)))

(defun kernel-lsp-show-status ()
  "Show five lines about the work in this folder and the gains of the week."
  (interactive)
  (let ((status (kernel-lsp--execute "kernel-lsp.showStatus" (list :page :json-false))))
    (message "%s" (string-join (append (kernel-lsp--get status :lines) nil) "\n"))))

(defun kernel-lsp-restart ()
  "End the server of this buffer and start it again."
  (interactive)
  (let ((server (kernel-lsp--server)))
    (kernel-lsp--set-status "ok" nil)
    (if (cl-typep server 'eglot-lsp-server)
        (eglot-reconnect server)
      (lsp-workspace-restart server))))

(defun kernel-lsp-doctor ()
  "Show what kernel-lsp found in this folder, and what to do about what it did not."
  (interactive)
  (let ((command (append (remove "serve" kernel-lsp-command) '("doctor")))
        (buffer (get-buffer-create "*kernel-lsp doctor*")))
    (unless (executable-find (car command))
      (user-error "%s is not installed: pip install %s, or set `kernel-lsp-command'"
                  (car command) (or kernel-lsp--clone "CLONE-OF-KERNEL-LSP")))
    (with-current-buffer buffer (erase-buffer))
    (make-process :name "kernel-lsp doctor" :command command :buffer buffer :noquery t)
    (display-buffer buffer)))

(provide 'kernel-lsp)
;;; kernel-lsp.el ends here
