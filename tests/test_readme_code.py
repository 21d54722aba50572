"""The runner of README's code: order, shared names, and failures that show."""

import subprocess
import sys
from pathlib import Path

import pytest
from readme_code import blocks

SCRIPT = Path(__file__).with_name("readme_code.py")


def run(tmp_path, text):
    file = tmp_path / "README.md"
    file.write_text(text)
    return subprocess.run(
        [sys.executable, SCRIPT, file], capture_output=True, text=True, timeout=60
    )


def test_blocks_run_in_order_in_one_namespace_and_one_folder(tmp_path):
    result = run(
        tmp_path,
        """
```python
value = 20
open("made.txt", "w").write("x")
```
Text.
<!-- ci -->

```bash
test "$(cat made.txt)" = x && echo y > second.txt
```
```python
value += 1
print("seen", value, open("second.txt").read())
```
```bash
exit 1
```
```text
not code
```
""",
    )
    assert result.returncode == 0, result.stderr
    assert "seen 21 y" in result.stdout
    assert result.stdout.endswith("README.md: 3 blocks ran\n")
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]


def test_a_failing_python_block_shows_its_line(tmp_path):
    result = run(tmp_path, "# T\n\n```python\na = 1\nassert a == 2\n```\n")
    assert result.returncode == 1
    assert 'File "README.md", line 5' in result.stderr
    assert "README.md:4: this python block failed" in result.stderr


@pytest.mark.parametrize(
    "code", ["false\ntrue", "false | true", "echo $NOT_SET_AT_ALL"]
)
def test_a_failing_bash_command_anywhere_fails(tmp_path, code):
    result = run(tmp_path, f"<!-- ci -->\n```bash\n{code}\n```\n")
    assert result.returncode == 1
    assert "README.md:3: this bash block ended with status 1" in result.stderr


def test_a_readme_of_which_nothing_runs_fails(tmp_path):
    result = run(tmp_path, "```\nvalue = 1\n```\n")
    assert result.returncode == 1
    assert "no block ran" in result.stderr


def test_bash_commands_come_from_this_environment(tmp_path):
    result = run(
        tmp_path,
        '<!-- ci -->\n```bash\npython -c "import sys; print(sys.prefix)"\n```\n',
    )
    assert sys.prefix in result.stdout


def test_a_mark_holds_for_the_next_block_only_and_blocks_must_close():
    found = blocks("<!-- ci -->\n```bash\na\n```\n```bash\nb\n```\n")
    assert [block.marked for block in found] == [True, False]
    with pytest.raises(ValueError, match="line 1: expected a closing"):
        blocks("```python\na = 1\n")
