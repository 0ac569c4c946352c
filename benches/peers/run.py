#!/usr/bin/env python3
"""ferret beside PyTorch on this machine: forward and backward, a whole step with AdamW, DPSGD beside Opacus, decoding; f32 on the CPU, the same
shapes, the same threads, turn by turn, each of PyTorch's cases in a process of its own.

    python3 benches/peers/run.py [--threads 2] [--rounds 3] [--only CASE ...] [--isa avx2] [--data records.jsonl --tokenizer FOLDER]

Makes a virtual environment beside itself (.venv), installs PyTorch, transformers and Opacus there by name (or takes --python, one that has them),
builds `cargo bench --bench step` (or takes --bench, one that is built), and prints a table. --isa avx2 holds both to AVX2. With --data and --tokenizer
(a folder with tokenizer.json) it also compares ragged batches of 16 records: PyTorch pads them, ferret does not. Leave the machine alone while it
runs. Not part of the tests.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
VENV = HERE / ".venv"
PACKAGES = ["torch==2.9.1", "transformers==4.57.6", "opacus==1.5.4", "numpy"]
AVX2 = dict(ATEN_CPU_CAPABILITY="avx2", MKL_ENABLE_INSTRUCTIONS="AVX2", ONEDNN_MAX_CPU_ISA="AVX2", FERRET_ISA="avx2")

# Title, the case of PyTorch, the case of `--bench step`, what it is counted in.
CASES = [
    ("gpt2, 4 x 128", "gpt2-128", "gpt2-128", "s"),
    ("gpt2, 4 x 256", "gpt2-256", "gpt2-256", "s"),
    ("small, 16 x 128", "small", "small", "s"),
    ("gpt2, ragged batches of 16", "ragged", "ragged", "s"),
    ("smollm2 135M, 4 x 128", "smollm-128", "smollm-128", "s"),
    ("smollm2 135M, 1 x 512", "smollm-512", "smollm-512", "s"),
    ("gpt2, 4 x 128, AdamW step", "adamw", "adamw", "s"),
    ("gpt2, 4 x 128, DPSGD, hooks", "opacus-hooks", "dpsgd", "s"),
    ("the same, ghost, theirs untied", "opacus-ghost", "dpsgd", "s"),
    ("smollm2 135M, decode, f32", "decode-f32", "decode-f32", "s/token"),
    ("smollm2 135M, decode, bf16", "decode-bf16", "decode-bf16", "s/token"),
]


def main():
    args = parse()
    if args.isa == "avx2" and os.environ.get("ATEN_CPU_CAPABILITY") != "avx2":
        os.environ.update(AVX2)
    python = pathlib.Path(args.python) if args.python else VENV / "bin" / "python"
    if args.worker:
        return work(args.worker, args.lengths, args.threads)
    if not args.python:
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    bench = args.bench or build()
    with tempfile.TemporaryDirectory() as folder:
        lengths = pathlib.Path(folder) / "lengths.json"
        if args.data:
            code = f"import run; run.write_lengths({args.data!r}, {args.tokenizer!r}, {args.batches}, {str(lengths)!r})"
            subprocess.run([str(python), "-c", code], cwd=HERE, check=True)
        cases = [c for c in CASES if (c[1] in args.only if args.only else True) and (c[1] != "ragged" or args.data)]
        print(f"{'':32} {'PyTorch':>9} {'ferret':>9} {'ratio':>7}   medians of {args.rounds} rounds, turn by turn; least to most; peak memory", flush=True)
        for title, theirs, ours, unit in cases:
            compare(args, python, bench, lengths, title, theirs, ours, unit)


def compare(args, python, bench, lengths, title, case, own, unit):
    command = [str(python), str(HERE / "run.py"), "--worker", case, "--lengths", str(lengths), "--threads", str(args.threads)]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    theirs, ours, memory = [], [], ["", ""]
    for _ in range(args.rounds):
        worker.stdin.write("go\n")
        worker.stdin.flush()
        answer = worker.stdout.readline().split()
        if len(answer) != 2:
            return print(f"{title:32} PyTorch failed: {worker.wait()}", flush=True)
        theirs.append(float(answer[0]))
        memory[0] = f"{float(answer[1]):.0f} MiB"
        seconds, memory[1] = ferret(bench, own, lengths, args.threads)
        ours.append(seconds)
    worker.stdin.close()
    worker.wait()
    t, o = statistics.median(theirs), statistics.median(ours)
    spread = f"{min(theirs):.4g} to {max(theirs):.4g}, ferret {min(ours):.4g} to {max(ours):.4g} {unit}"
    print(f"{title:32} {t:9.4g} {o:9.4g} {t / o:6.2f}x   {spread}; {memory[0]}, ferret {memory[1]}", flush=True)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=4, help="ragged batches")
    parser.add_argument("--data", help="records as JSON lines")
    parser.add_argument("--tokenizer", help="folder with tokenizer.json")
    parser.add_argument("--only", nargs="+", choices=[case[1] for case in CASES], help="these cases alone")
    parser.add_argument("--isa", choices=["avx2"], help="the instructions that both may use")
    parser.add_argument("--python", help="an interpreter that has PyTorch, transformers and Opacus")
    parser.add_argument("--bench", help="the bench `step`, built")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--lengths", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if bool(args.data) != bool(args.tokenizer):
        parser.error("--data and --tokenizer go together")
    return args


def build():
    """The bench's executable."""
    out = subprocess.run(
        ["cargo", "bench", "--bench", "step", "--no-run", "--message-format=json"],
        cwd=HERE.parent.parent, check=True, stdout=subprocess.PIPE, text=True,
    ).stdout
    found = [m["executable"] for m in map(json.loads, out.splitlines()) if m.get("executable") and m["target"]["name"] == "step"]
    return found[-1]


def ferret(bench, name, lengths, threads):
    """Median seconds of one round of ferret, and its peak memory."""
    env = {**os.environ, "RAYON_NUM_THREADS": str(threads)}
    args = [bench, name] + ([str(lengths)] if name == "ragged" else [])
    out = subprocess.run(args, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout
    peak = re.search(r"peak memory so far (\d+ MiB)", out)
    return float(re.search(r"  (?:forward \+ backward|step|decode) +([0-9.]+)", out).group(1)), peak.group(1) if peak else "-"


def write_lengths(data, tokenizer, batches, out):
    """Token counts of the first records, 16 a batch; at least 2, at most 1024."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(pathlib.Path(tokenizer) / "tokenizer.json"))
    found = []
    with open(data, encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            text = " ".join(str(v) for v in record.values() if isinstance(v, str))
            found.append(min(1024, max(2, len(tokenizer.encode(text).ids))))
            if len(found) == 16 * batches:
                break
    pathlib.Path(out).write_text(json.dumps([found[i:i + 16] for i in range(0, len(found), 16)]))


def work(case, lengths, threads):
    """A process of PyTorch: for every line that comes in, a round, its seconds and the peak of memory in MiB."""
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    round_of = prepare(case, lengths)
    for _ in sys.stdin:
        seconds = round_of()
        peak = re.search(r"VmHWM:\s+(\d+)", pathlib.Path("/proc/self/status").read_text())
        print(seconds, int(peak.group(1)) / 1024, flush=True)


def prepare(case, lengths):
    """A function that times one round: the median over its steps; for ragged batches the sum over all of them."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    if case.startswith("opacus"):
        return opacus_round(case)
    if case.startswith(("smollm", "decode")):
        config = LlamaConfig(
            vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
            num_key_value_heads=3, max_position_embeddings=8192, rope_theta=100000.0, tie_word_embeddings=True,
        )
        model = LlamaForCausalLM(config).train()
    else:
        still = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        small = dict(n_layer=4, n_embd=128, n_head=4, vocab_size=2048)
        config = GPT2Config(**still, **(small if case == "small" else {}))
        model = GPT2LMHeadModel(config).train()
    if case.startswith("decode"):
        return decode_round(model.eval().to(torch.bfloat16 if case == "decode-bf16" else torch.float32))
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-4) if case == "adamw" else None

    def step(ids, labels, mask=None):
        begun = time.perf_counter()
        logits = model(ids, attention_mask=mask).logits
        loss = torch.nn.functional.cross_entropy(logits.view(-1, logits.size(-1)), labels.view(-1))
        loss.backward()
        if adamw:
            adamw.step()
            adamw.zero_grad()
            return time.perf_counter() - begun
        taken = time.perf_counter() - begun
        model.zero_grad(set_to_none=False)
        return taken

    def ragged():
        total = 0.0
        for i, batch in enumerate(json.loads(pathlib.Path(lengths).read_text())):
            widest = max(batch)
            ids = torch.randint(0, config.vocab_size, (len(batch), widest))
            labels, mask = ids.clone(), torch.ones_like(ids)
            for row, length in enumerate(batch):
                labels[row, length:], mask[row, length:] = -100, 0
            if i == 0:
                step(ids, labels, mask)
            total += step(ids, labels, mask)
        return total

    if case == "ragged":
        return ragged
    shapes = {"gpt2-256": (4, 256, 3), "small": (16, 128, 20), "smollm-512": (1, 512, 5)}
    rows, length, steps = shapes.get(case, (4, 128, 5))
    ids = torch.randint(0, config.vocab_size, (rows, length))
    labels = torch.randint(0, config.vocab_size, (rows, length))

    def dense():
        step(ids, labels)
        return statistics.median(step(ids, labels) for _ in range(steps))

    return dense


def decode_round(model):
    """Seconds a token, one after the other with the key-value cache."""
    import torch

    @torch.no_grad()
    def decode():
        out = model(torch.arange(1, 9)[None], use_cache=True)
        seconds = []
        for _ in range(64):
            begun = time.perf_counter()
            out = model(torch.tensor([[9]]), past_key_values=out.past_key_values, use_cache=True)
            seconds.append(time.perf_counter() - begun)
        return statistics.median(seconds)

    return decode


def opacus_round(case):
    """Per-sample gradients by hooks, or their norms by ghost clipping and a second backward; clipped and summed, no noise. GPT-2 written out of the
    layers that Opacus knows, the head tied to the embedding, but for ghost clipping, which refuses ties."""
    import torch
    from opacus.grad_sample import GradSampleModule
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping
    from torch import nn

    c, heads, vocab, samples, length = 768, 12, 50257, 4, 128

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.qkv, self.out = nn.LayerNorm(c), nn.Linear(c, 3 * c), nn.Linear(c, c)
            self.ln_2, self.fc, self.proj = nn.LayerNorm(c), nn.Linear(c, 4 * c), nn.Linear(4 * c, c)

        def forward(self, x):
            b, t, _ = x.shape
            q, k, v = (y.view(b, t, heads, c // heads).transpose(1, 2) for y in self.qkv(self.ln_1(x)).split(c, dim=2))
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
            return x + self.proj(nn.functional.gelu(self.fc(self.ln_2(x)), approximate="tanh"))

    ghost = case == "opacus-ghost"

    class Gpt2(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(vocab, c), nn.Embedding(1024, c)
            self.blocks, self.ln_f = nn.ModuleList(Block() for _ in range(12)), nn.LayerNorm(c)
            self.head = nn.Linear(c, vocab, bias=False)
            if not ghost:
                self.head.weight = self.wte.weight

        def forward(self, ids, positions):
            x = self.wte(ids) + self.wpe(positions)
            for block in self.blocks:
                x = block(x)
            return self.head(self.ln_f(x))

    ids, labels = (torch.randint(0, vocab, (samples, length)) for _ in range(2))
    positions = torch.arange(length).expand(samples, length).contiguous()
    if ghost:
        model = GradSampleModuleFastGradientClipping(Gpt2(), max_grad_norm=1.0, use_ghost_clipping=True, loss_reduction="sum")
    else:
        model = GradSampleModule(Gpt2(), loss_reduction="sum")
    parameters = list(model.parameters())

    def losses():
        logits = model(ids, positions)
        each = nn.functional.cross_entropy(logits.view(-1, vocab), labels.view(-1), reduction="none")
        return each.view(samples, length).mean(dim=1)

    def step():
        begun = time.perf_counter()
        if ghost:
            model.enable_hooks()
            each = losses()
            each.sum().backward(retain_graph=True)
            factors = model.get_clipping_coef()
            for p in parameters:
                p.grad = None
            model.disable_hooks()
            (each * factors).sum().backward()
        else:
            losses().sum().backward()
            norms = torch.stack([p.grad_sample.flatten(1).norm(2, dim=1) for p in parameters], dim=1).norm(2, dim=1)
            factors = (1.0 / (norms + 1e-6)).clamp(max=1.0)
            for p in parameters:
                p.grad = torch.einsum("i,i...", factors, p.grad_sample)
        taken = time.perf_counter() - begun
        for p in parameters:
            p.grad, p.grad_sample = None, None
            if hasattr(p, "_norm_sample"):
                del p._norm_sample
        return taken

    def round_of():
        step()
        return statistics.median(step() for _ in range(3))

    return round_of


if __name__ == "__main__":
    main()
