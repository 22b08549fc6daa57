"""The library of optimization skills: read, checked, and recalled for a target by the words they
share.

Loading does not import numpy; the first `Skillbook.select` does.
"""

from kernel_lsp.skillbook.format import lint
from kernel_lsp.skillbook.library import Skillbook, SkillFolder, built_in_folder, folders, load

__all__ = ["SkillFolder", "Skillbook", "built_in_folder", "folders", "lint", "load"]
