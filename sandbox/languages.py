"""How each language is laid out, compiled and run.

A language is a file name and two commands, so any other can be declared in place:
`Language(file="main.lua", run=("lua", "main.lua"))`. Commands run in the work directory, found on
the job's own PATH; a program's `argv` follows `run`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

PYTHON = "{python}"  # stands for the interpreter that the backend offers

Command = Annotated[tuple[str, ...], Field(min_length=1, max_length=64)]


class Language(BaseModel):
    """`file`: the name the code is laid out under. `compile`: what makes `run` possible, or None.

    Everything that `compile` leaves in the work directory is there, executable, when `run` starts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: Annotated[str, Field(min_length=1, max_length=255)]
    run: Command
    compile: Command | None = None

    @field_validator("file")
    @classmethod
    def _is_one_name(cls, file: str) -> str:
        if "/" in file or "\0" in file or file in (".", ".."):
            raise ValueError(f"{file[:60]!r} must be a plain file name")
        file.encode()  # half a surrogate pair is no name: UnicodeEncodeError is a ValueError
        return file

    @field_validator("run", "compile")
    @classmethod
    def _can_be_executed(cls, command: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if command is not None and not command[0]:
            raise ValueError("a command's first word names a program, so it can't be empty")
        for word in command or ():
            if "\0" in word or len(word.encode()) > 4096:
                raise ValueError("a command's words hold no NUL character and at most 4096 bytes")
        return command


LANGUAGES: dict[str, Language] = {
    "python": Language(file="main.py", run=(PYTHON, "main.py")),
    "c": Language(file="main.c", compile=("gcc", "-O2", "-std=gnu17", "-o", "main", "main.c", "-lm"), run=("./main",)),
    "cpp": Language(file="main.cpp", compile=("g++", "-O2", "-std=gnu++17", "-o", "main", "main.cpp"), run=("./main",)),
    "bash": Language(file="main.sh", run=("bash", "main.sh")),
    "javascript": Language(file="main.js", run=("node", "main.js")),
}
