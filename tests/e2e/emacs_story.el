;;; emacs_story.el --- the story of a rewrite in Emacs with our package  -*- lexical-binding: t; -*-
;; Loaded by test_emacs.py after the user's settings, with the file open: emacs --batch -l init.el FILE -l this.
;; One line per step on standard output; the last is DONE or a reason.  STORY_CLIENT: eglot or lsp-mode.

(require 'jsonrpc)
(require 'kernel-lsp)

(defvar story-messages nil "What a person would have read in the echo area.")
(defvar story-wanted "Allow for this folder" "The choice that a person makes in the next menu.")
(defvar story-patience (string-to-number (or (getenv "KL_PATIENCE_S") "90")))
(setq jsonrpc-default-request-timeout story-patience
      lsp-response-timeout story-patience)
(defvar story-before (buffer-string))
(defvar story-lsp-mode (equal (getenv "STORY_CLIENT") "lsp-mode"))

(defun story-say (&rest words) (princ (concat (string-join words " ") "\n")))

(defun story-until (condition reason)
  "Wait until CONDITION holds, or end with REASON."
  (let ((end (+ (float-time) story-patience)) found)
    (while (not (or (setq found (funcall condition)) (> (float-time) end)))
      (accept-process-output nil 0.05)
      (story-flush))
    (unless found
      (story-say reason (format "%S %S" kernel-lsp-status story-messages))
      (kill-emacs 1))
    found))

(defun story-flush ()
  "What idle timers do where somebody sits at the keyboard."
  (if story-lsp-mode
      (when (bound-and-true-p lsp-mode) (lsp--flush-delayed-changes))
    (when (eglot-managed-p)
      (eglot--signal-textDocument/didChange)
      (flymake-start))))

(defun story-wait (seconds)
  (let ((end (+ (float-time) seconds)))
    (while (< (float-time) end) (accept-process-output nil 0.05) (story-flush))))

(defun story-hints ()
  (if story-lsp-mode
      (mapcar (lambda (found) (kernel-lsp--get found :message))
              (apply #'append (hash-table-values (lsp-diagnostics))))
    (mapcar #'flymake-diagnostic-text (flymake-diagnostics))))

(defun story-hint () (seq-find (lambda (text) (string-match-p "verified" text)) (story-hints)))
(defun story-told (words) (seq-find (lambda (text) (string-match-p words text)) story-messages))
(defun story-at-target () (goto-char (point-min)) (search-forward "class Mod"))

;; What needs a person: menus, yes-or-no questions, and reading.
(defun story-choose (prompt collection &rest _)
  (story-say "ASKED" (string-join (split-string prompt "\n") " "))
  (seq-find (lambda (title) (string-prefix-p story-wanted title)) (all-completions "" collection)))
(advice-add 'completing-read :override #'story-choose)
(defun story-yes (prompt)
  (if (string-suffix-p "Apply? " prompt)
      (story-say "DIFF" (with-current-buffer "*kernel-lsp diff*" (format "%d lines:" (count-lines (point-min) (point-max)))) prompt)
    (push prompt story-messages))
  t)
(advice-add 'y-or-n-p :override #'story-yes)
(advice-add 'message :before (lambda (text &rest rest) (when text (push (apply #'format text rest) story-messages))))
(setq last-nonmenu-event 'keyboard) ; eglot would open a popup menu

(defun story-undo (step)
  (undo-boundary)
  (let ((last-command nil)) (undo))
  (unless (equal (buffer-string) story-before)
    (story-say "UNDO LEFT A DIFFERENT TEXT") (kill-emacs 1))
  (story-until #'story-hint "NO HINT AFTER UNDO")
  (story-wait 1.5)
  (story-say step))

(defun story-rewrites ()
  (story-say "HINT" (story-until #'story-hint "NO HINT"))
  (story-at-target)
  (undo-boundary)
  (kernel-lsp-rewrite)
  (story-until (lambda () (not (equal (buffer-string) story-before))) "NOT APPLIED")
  (story-say "APPLIED")
  (unless (equal (buffer-string) (with-current-buffer " *kernel-lsp after*" (buffer-string)))
    (story-say "WHAT WENT IN IS NOT WHAT THE DIFF SHOWED") (kill-emacs 1))
  (story-until (lambda () (not (story-hint))) "THE HINT STAYED")
  (story-wait 1.5)
  (story-undo "UNDONE"))

(defun story-reads ()
  (story-at-target)
  (let ((hover (kernel-lsp--request "textDocument/hover"
                                    `(:textDocument (:uri ,(kernel-lsp--uri))
                                      :position ,(kernel-lsp--position (kernel-lsp--encoding))))))
    (story-say "HOVER" (car (split-string (kernel-lsp--get (kernel-lsp--get hover :contents) :value) "\n"))))
  (kernel-lsp-show-evidence)
  (with-current-buffer "*kernel-lsp evidence*"
    (goto-char (point-min))
    (unless (search-forward "## Diff" nil t) (story-say "NO EVIDENCE") (kill-emacs 1))
    (story-say "EVIDENCE" (car (split-string (buffer-string) "\n")))))

(defun story-own-menu ()
  (story-at-target)
  (setq story-wanted "Rewrite ")
  (undo-boundary)
  (let ((eglot-confirm-server-initiated-edits nil))
    (if story-lsp-mode
        (call-interactively #'lsp-execute-code-action)
      (eglot-code-actions (point) (point) nil t)))
  (story-until (lambda () (not (equal (buffer-string) story-before))) "NOT APPLIED BY THE MENU")
  (story-say "MENU")
  (story-wait 1.5)
  (story-undo "UNDONE AGAIN"))

(defun story-another-server (first reason)
  (story-until (lambda () (ignore-errors (not (eq first (kernel-lsp--server))))) reason))

(defun story-restarts ()
  (let ((first (kernel-lsp--server)))
    (kernel-lsp-restart)
    (story-another-server first "NOT RESTARTED")
    (story-until #'story-hint "NO HINT AFTER THE RESTART")
    (story-say "RESTARTED")))

(defun story-searches ()
  (story-at-target)
  (kernel-lsp-search-deeper)
  (story-until (lambda () (string-match-p "searching Model" kernel-lsp-status)) "NO STATUS")
  (story-say "SEARCH" kernel-lsp-status)
  (kernel-lsp-cancel)
  ;; The jsonrpc of Emacs 28 looks at a message that came together with a reply only when the next one comes.
  (story-until (lambda () (kernel-lsp-show-status) (story-told "nothing is running")) "STILL RUNNING")
  (story-until (lambda () (and (story-told "1 stopped") (equal kernel-lsp-status ""))) "NOT CANCELLED")
  (story-say "CANCELLED" (story-told "nothing is running")))

(defun story-dismisses ()
  (story-at-target)
  (setq story-wanted "Dismiss ")
  (kernel-lsp-dismiss)
  (story-until (lambda () (not (story-hint))) "NOT DISMISSED")
  (story-say "DISMISSED")
  (condition-case refused
      (progn (kernel-lsp-rewrite) (story-say "OFFERED ALTHOUGH DISMISSED") (kill-emacs 1))
    (user-error (story-say "SILENT" (cadr refused)))))

(defun story-asks-doctor ()
  (kernel-lsp-doctor)
  (story-until (lambda () (with-current-buffer "*kernel-lsp doctor*"
                            (goto-char (point-min))
                            (search-forward "interpreter" nil t)))
               "NO DOCTOR")
  (story-say "DOCTOR")
  (let ((kernel-lsp-command '("no-such-kernel-lsp" "serve")))
    (condition-case missing
        (kernel-lsp-doctor)
      (user-error (story-say "MISSING" (cadr missing))))))

(defun story-survives-a-crash ()
  "Eglot starts a server again that lived for three seconds; lsp-mode asks first."
  (let ((first (kernel-lsp--server)))
    (unless story-lsp-mode  ; on a quick machine all since the restart took less
      (story-until (lambda () (not (eglot--inhibit-autoreconnect first))) "NEVER RESTARTED BY ITSELF"))
    (signal-process (if story-lsp-mode (lsp--workspace-cmd-proc first) (jsonrpc--process first)) 'SIGKILL)
    (story-another-server first "A CRASH WITHOUT A RESTART")
    (story-say "CRASH" (or (story-told "after unexpected server exit") (story-told "want to restart it") "restarted"))))

(story-rewrites)
(story-reads)
(story-own-menu)
(story-restarts)
(story-searches)
(story-dismisses)
(story-asks-doctor)
(story-survives-a-crash)
(if story-lsp-mode
    (setq lsp-restart 'ignore) ; or ending Emacs is one more crash to ask about
  (eglot-shutdown (eglot-current-server)))
(story-say "DONE")
(kill-emacs 0)
