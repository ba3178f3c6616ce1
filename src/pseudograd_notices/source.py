"""Lines of Python source, and of notebook cells that IPython reads and Python does not."""

import re

_MAGIC = re.compile(r"^\s*(?:%|!|\?)|^\s*[\w.]+\s*\?\??\s*$|^\s*[\w, ]+=\s*[%!]")
_OTHER_LANGUAGES = re.compile("%%(bash|sh|html|javascript|js|latex|markdown|writefile|cython|R|sql|script)")


def split_lines(text: str) -> list[str]:
    """The lines as ast counts them: a form feed ends none."""
    return re.split(r"\r\n|\r|\n", text)


def blank_magics(source: str) -> str:
    """The cell with `pass` for each line that is IPython's, so that every other line keeps its number."""
    lines = split_lines(source)
    first = next((line for line in lines if line.strip()), "")
    if _OTHER_LANGUAGES.match(first):
        return ""
    result = []
    continues = False
    indent = ""
    for line in lines:
        is_magic = continues or (_MAGIC.match(line) is not None and not line.lstrip().startswith("%s"))
        if is_magic and not continues:  # the lines that continue it may be indented as they like
            indent = line[: len(line) - len(line.lstrip())]
        result.append(f"{indent}pass" if is_magic else line)
        continues = is_magic and line.rstrip().endswith("\\")
    return "\n".join(result)
