"""`kperf ir`: which line of each level comes of which line of source, in the terminal and on the page."""

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kperf.arch import of
from kperf.diagnose import inputs
from kperf.ir.levels import LEVELS, read_levels
from tests.command import kperf
from tests.report.browser import without

SOURCE = """\
import torch
import triton
import triton.language as tl


@triton.jit
def scaled(x, factor):
    return x * factor + 1.0  # <img src=x onerror=alert(1)> & [bold]


@triton.jit
def kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = scaled(x, 3.0)
    y += tl.sum(y)
    tl.store(y_ptr + offsets, y, mask=mask)


@triton.jit
def twice(x_ptr, BLOCK: tl.constexpr):
    at = x_ptr + tl.arange(0, BLOCK)
    x = scaled(tl.load(at), 5.0)
    tl.debug_barrier()
    tl.store(at, scaled(x * x, 7.0))


if __name__ == "__main__":
    x = torch.empty(1000, device="cuda")
    kernel[(8,)](x, torch.empty_like(x), 1000, BLOCK=128)
    twice[(1,)](x, BLOCK=128)
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("größe of it") / "k.py"
    path.write_text(SOURCE)
    return path


def shown(*arguments):
    """{line of source: {level: its lines}} as printed, and all that was printed."""
    done = kperf("ir", *arguments)
    assert done.returncode == 0, done.stderr
    found, lines, level = {}, {}, ""
    for line in done.stdout.splitlines():
        if head := re.match(r"k\.py:(\d+)  ", line):
            lines = found.setdefault(int(head[1]), {})
        elif row := re.match(rf"  ({'|'.join(LEVELS)}| +) {{2,}}(.*)", line):
            level = row[1].strip() or level
            lines.setdefault(level, []).append(row[2])
    return found, done.stdout


def opcodes(lines):
    """Without addresses, predicates and operands."""
    return [re.sub(r"^([0-9a-f]{4}  )?(@!?%?\w+ )?", "", line).split()[0].split(".")[0] for line in lines]


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_ptx_and_sass_belong_to_the_line_that_they_are_made_of(script, target):
    found, _ = shown(script, "--kernel", "kernel", "--target", target, "--level", "ptx,sass")
    assert opcodes(found[8]["ptx"]) == ["fma"]  # the helper's, where it is written
    assert opcodes(found[8]["sass"]).count("FFMA") == 1
    assert "LDG" not in opcodes(found[8]["sass"])
    assert opcodes(found[14]["ptx"]) == ["setp"]
    assert opcodes(found[15]["ptx"])[-1] == "ld"
    assert opcodes(found[15]["sass"]).count("LDG") == 1
    assert 16 not in found  # a call makes nothing itself
    # Five steps in a warp and two between warps; the code is of Triton's library, the line is that which called it.
    assert opcodes(found[17]["ptx"]).count("shfl") == opcodes(found[17]["sass"]).count("SHFL") == 7
    assert opcodes(found[18]["sass"]).count("STG") == 1
    assert sum(opcodes(lines.get("sass", ())).count("STG") for lines in found.values()) == 1


def test_all_levels_are_linked(script):
    found, text = shown(script, "--kernel", "kernel")
    assert list(found[15]) == ["ttir", "ttgir", "llir", "ptx", "sass"]
    assert [line.split(" = ")[1].split()[0] for line in found[8]["ttgir"]] == ["arith.mulf", "arith.addf"]
    assert [line.split(" = ")[1].split()[0] for line in found[8]["llir"]] == ["fmul", "fadd"]
    assert any("tt.load" in line for line in found[15]["ttir"])
    assert "!dbg" not in text
    assert "loc(" not in text
    assert ".loc" not in text


def test_a_call_is_shown_with_what_was_inlined(script):
    found, text = shown(script, "--kernel", "kernel", "--line", "16", "--level", "ptx,sass")
    assert set(found) == {8}
    assert opcodes(found[8]["ptx"]) == ["fma"]
    assert "FFMA" in opcodes(found[8]["sass"])
    assert "k.py:8  return x * factor + 1.0  # <img src=x onerror=alert(1)> & [bold]  (inlined at k.py:16)" in text
    found, _ = shown(script, "--kernel", "kernel", "--line", "14-15", "--level", "ptx")
    assert set(found) == {14, 15}


def test_a_helper_called_twice_is_one_line_of_two_calls(script):
    found, text = shown(script, "--kernel", "twice", "--level", "ptx,sass")
    assert opcodes(found[8]["ptx"]) == ["fma", "fma"]
    assert opcodes(found[8]["sass"]).count("FFMA") == 2
    assert "(inlined at k.py:24, k.py:26)" in text
    found, _ = shown(script, "--kernel", "twice", "--level", "ptx", "--line", "26")
    (constant,) = (line for line in found[8]["ptx"] if line.startswith("fma"))
    assert "0f40E00000" in constant  # 7.0: the second call's


def test_findings_stand_at_their_line(script):
    done = kperf("ir", script, "--kernel", "kernel", "--level", "ttgir", "--line", "12")
    (finding,) = re.findall(r"^k\.py:12  def kernel.*\n  low  (.*)$", done.stdout, re.MULTILINE)
    assert finding.startswith("8 CTAs leave 124 of 132 SMs without work [launch-too-small]; launch 17 times as many")


def test_a_source_that_was_compiled_elsewhere_is_linked_where_it_lies(script, tmp_path):
    other = tmp_path / "ñ"
    other.mkdir()
    copy = shutil.copy(script, other / "k.py")
    assert shown(copy, "--kernel", "kernel")[0] == shown(script, "--kernel", "kernel")[0]


def test_amd_has_gcn_and_says_what_it_has_not(script):
    found, text = shown(script, "--kernel", "kernel", "--target", "gfx942", "--level", "ttgir,ptx,sass,gcn")
    assert "  no ptx of kernel for gfx942: its machine code is gcn\n" in text
    assert "  no sass of kernel for gfx942: its machine code is gcn\n" in text
    assert list(found[15]) == ["ttgir", "gcn"]
    assert "buffer_load_dword" in opcodes(found[15]["gcn"])
    assert [one for one in opcodes(found[8]["gcn"]) if one.startswith("v_")] == ["v_fmamk_f32"]
    assert "buffer_store_dword" in opcodes(found[18]["gcn"])
    assert ".cfi" not in text
    assert ".amdhsa" not in text


@pytest.fixture(scope="module")
def texts(script):
    """What Triton makes of the kernel for two targets."""
    return {arch: inputs.read(str(script), [], of(arch))[0].compiled.texts for arch in ("sm_90a", "gfx942")}


def test_a_ttgir_file_begins_at_ttgir(script, texts, tmp_path):
    file = tmp_path / "k.ttgir"
    file.write_text(texts["sm_90a"]["ttgir"])
    found, text = shown(file)
    assert "  no ttir of kernel for sm_90a: what was read holds none\n" in text
    assert opcodes(found[8]["ptx"]) == ["fma"]
    assert shown(file, "--level", "sass")[0][15] == shown(script, "--kernel", "kernel", "--level", "sass")[0][15]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--level", "mlir"], "--level mlir is no level: choose from ttir, ttgir, llir, ptx, sass, gcn"),
        (["--line", "7-3"], "--line 7-3 is no line: give N, or A-B with A not after B"),
        (["--line", "0"], "--line 0 is no line: give N, or A-B with A not after B"),
        (["--line", "90", "--kernel", "kernel"], "kernel makes nothing of line 90 of k.py: it has lines 8 to 18"),
        (["--kernel", "none*"], "has no kernel none*: it has kernel, twice"),
        (["--level", "gcn"], "no gcn of kernel for sm_90a: its machine code is sass"),
        (["--target", "sm_1"], "no GPU architecture 'sm_1' is known"),
    ],
)
def test_a_mistake_is_one_sentence(script, arguments, sentence):
    done = kperf("ir", script, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_file_that_is_none_is_one_sentence(tmp_path):
    damaged = tmp_path / "damaged.ttgir"
    damaged.write_text("module {\n")
    for what in (damaged, tmp_path / "missing.py", tmp_path):
        done = kperf("ir", what)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_an_entry_of_the_cache_shows_what_it_holds(script, texts, tmp_path):
    metadata = {"name": "kernel", "target": {"backend": "hip", "arch": "gfx942", "warp_size": 64}, "num_stages": 2}
    (tmp_path / "kernel.json").write_text(json.dumps(metadata))
    for suffix, level in (("ttgir", "ttgir"), ("amdgcn", "gcn")):
        (tmp_path / f"kernel.{suffix}").write_text(texts["gfx942"][level])
    found, text = shown(tmp_path)
    assert "  no llir of kernel for gfx942: what was read holds none\n" in text
    assert list(found[15]) == ["ttgir", "gcn"]
    whole, _ = shown(script, "--kernel", "kernel", "--target", "gfx942")
    assert found[15]["gcn"] == whole[15]["gcn"]
    (tmp_path / "kernel.llir").write_bytes(b"\xff\xfe")
    done = kperf("ir", tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "kernel.llir cannot be read" in done.stderr


@given(data=st.data())
def test_damaged_texts_are_read_as_far_as_they_go(data, texts):
    arch, level = data.draw(
        st.sampled_from([("sm_90a", "llir"), ("sm_90a", "ptx"), ("gfx942", "llir"), ("gfx942", "gcn")])
    )
    text = texts[arch][level]
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 200)))
    cut = read_levels({level: text[:start] + text[end:]}, None)[level]
    whole = read_levels({level: text[:start].rpartition("\n")[0]}, None)[level]
    assert [line.text for line in cut[: len(whole)]] == [line.text for line in whole]
    names = {frame.file.rpartition("/")[2] for line in whole for frame in line.frames}
    assert names <= {"k.py", "standard.py", ""}


class Page(HTMLParser):
    """{pane: its lines as (places, text)}, and the elements and addresses that there are."""

    def __init__(self, text):
        super().__init__()
        self.panes, self.tags, self.links, self.at, self.inside = {}, set(), [], None, ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.links += [value for name, value in attributes if name in ("src", "href")]
        self.inside = tag
        if tag == "li":
            self.at = dict(attributes).get("data-at", "").split()

    def handle_data(self, text):
        if self.inside == "h3" and text.strip():
            self.panes[text] = []
        elif self.inside == "code":
            list(self.panes.values())[-1].append((self.at, text))
            self.inside = ""


@pytest.fixture(scope="module")
def text(script, tmp_path_factory):
    out = tmp_path_factory.mktemp("page") / "ladder.html"
    done = kperf("ir", script, "--kernel", "kernel", "--html", out)
    assert (done.returncode, done.stdout) == (0, f"written: {out}\n")
    return out.read_text()


def test_the_page_links_lines_at_all_levels(text):
    page = Page(text)
    assert list(page.panes) == ["k.py", "ttir", "ttgir", "llir", "ptx", "sass"]
    helper = {name: [line for at, line in lines if at[:1] == ["0:8"]] for name, lines in page.panes.items()}
    assert helper["k.py"] == ["    return x * factor + 1.0  # <img src=x onerror=alert(1)> & [bold]"]
    assert [line.split()[0] for line in helper["ptx"]] == ["fma.rn.f32"]
    assert [line for line in helper["sass"] if "FFMA" in line]
    called = [line for at, line in page.panes["ptx"] if "0:16" in at]
    assert called == helper["ptx"]  # a call's line leads to what was inlined
    assert {line.strip(): at for at, line in page.panes["k.py"]}["y = scaled(x, 3.0)"] == ["0:16"]


def test_the_page_fetches_nothing_and_what_files_say_is_text(text):
    page = Page(text)
    assert page.links == []
    assert "img" not in page.tags
    assert not re.findall(r"https?://|@import|url\(", text)
    assert "launch-too-small" in text


DRIVE = """<script>
const errors = []
window.addEventListener("error", (event) => errors.push(event.message))
const lit = () => [...document.querySelectorAll(".pane")].map((pane) => pane.querySelectorAll(".lit").length)
const line = [...document.querySelectorAll(".pane li")].find((one) => one.textContent.includes("return x * factor"))
const press = (key) =>
  document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }))
const seen = { before: lit(), stops: document.querySelectorAll(".pane [tabindex='0']").length }
line.focus()
// A browser that is still starting gives its page the focus later, and tells elements then.
if (!document.hasFocus()) line.dispatchEvent(new FocusEvent("focus"))
seen.focused = lit()
seen.said = document.querySelector("output").textContent
press("ArrowDown"); seen.below = document.activeElement.textContent
press("ArrowUp"); press("ArrowRight"); seen.beside = document.activeElement.textContent
const load = [...document.querySelectorAll(".pane li")].find((one) => one.textContent.includes("ld.global"))
load.dispatchEvent(new MouseEvent("mouseover", { bubbles: true }))
seen.hovered = document.querySelector(".lit").textContent
seen.errors = errors
document.body.appendChild(document.createElement("textarea")).textContent = JSON.stringify(seen)
</script></body>"""


def test_hover_focus_and_keys_show_a_line_in_all_panes(text, tmp_path):
    if not shutil.which("chromium"):
        without("needs chromium (apt install chromium)")
    (tmp_path / "page.html").write_text(text.replace("</body>", DRIVE))
    command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
    command += ["--disable-background-networking", "--dump-dom", f"file://{tmp_path}/page.html"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=280)
    seen = json.loads(html.unescape(re.search(r"<textarea>([^<]+)</textarea>", done.stdout)[1]))
    assert seen["errors"] == []
    assert seen["before"] == [0] * 6
    assert seen["stops"] == 6  # one a pane; arrow keys move within
    assert seen["focused"][:5] == [1, 4, 2, 2, 1]
    assert seen["said"].startswith("Lines: 1 in k.py, 4 in ttir, 2 in ttgir, 2 in llir, 1 in ptx, ")
    assert "def kernel" in seen["below"]
    assert "arith.constant dense<3.0" in seen["beside"]
    assert "tl.load" in seen["hovered"]
