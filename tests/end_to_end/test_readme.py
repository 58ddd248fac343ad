"""The README's blocks are run as a reader would run them; `make` itself is run by .ci/run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def blocks(language: str, containing: str) -> list[str]:
    return [text for kind, text in BLOCKS if kind == language and containing in text]


def run(arguments: list[str], folder: Path) -> str:
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_block_is_covered_by_a_test_here_or_is_a_make_line_or_output():
    covered = {
        *blocks("python", ""),
        *blocks("sh", "veriward train ./my_env.py"),
        *blocks("sh", "make "),
        *blocks("sh", "veriward sandbox check"),
        *blocks("text", ""),
    }
    assert [text for _, text in BLOCKS if text not in covered] == []


def test_the_env_of_the_readme_trains_with_the_command_of_the_readme(tmp_path):
    (env,) = blocks("python", "class Sums(Env)")
    (command,) = blocks("sh", "veriward train ./my_env.py")
    (tmp_path / "my_env.py").write_text(env)
    program, *arguments = command.split()
    assert program == ".venv/bin/veriward"
    output = run([sys.executable, "-m", "veriward", *arguments], tmp_path)
    assert "pass@1" in output
    assert (next((tmp_path / "runs").iterdir()) / "report.html").is_file()


def test_the_sandboxs_commands_check_run_and_serve(tmp_path):
    (block,) = blocks("sh", "veriward sandbox check")
    check, program, token, serve = (line.partition("#")[0].strip() for line in block.splitlines())
    (tmp_path / "prog.py").write_text("print(6 * 7)")
    assert "languages: python" in run(_here(check), tmp_path)
    assert run(_here(program), tmp_path) == "42\n"
    run(["sh", "-c", token], tmp_path)
    assert "--port 8080" in serve  # which may be taken here
    server = subprocess.Popen(
        _here(serve.replace("8080", "0")), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert server.stdout.readline().startswith("sandbox server on http://127.0.0.1:")
    finally:
        server.terminate()
        server.communicate(timeout=30)
    assert server.returncode == 0


def _here(command: str) -> list[str]:
    program, *arguments = command.split()
    assert program == ".venv/bin/veriward"
    return [sys.executable, "-m", "veriward", *arguments]


def test_the_env_of_the_readme_has_at_most_twelve_lines_of_code():
    (env,) = blocks("python", "class Sums(Env)")
    assert len([line for line in env.splitlines() if line.strip()]) <= 12


@pytest.mark.parametrize("text", blocks("python", "print("))
def test_a_python_block_prints_what_its_comment_says(text, tmp_path):
    (tmp_path / "block.py").write_text(text)
    expected = re.findall(r"# (.*)$", text, flags=re.MULTILINE)
    assert run([sys.executable, "block.py"], tmp_path).split("\n")[:-1] == expected
