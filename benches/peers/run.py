#!/usr/bin/env python3
"""ferret beside PyTorch on this machine: forward and backward in f32 on the CPU, the same shapes, the same threads, turn by turn.

    python3 benches/peers/run.py [--threads 2] [--rounds 3] [--only CASE] [--data records.jsonl --tokenizer FOLDER]

Makes a virtual environment beside itself (.venv), installs PyTorch and transformers there by name, builds `cargo bench --bench step`, and
prints a table. With --data and --tokenizer (a folder with tokenizer.json) it also compares ragged batches of 16 records: PyTorch pads
them, ferret does not. Leave the machine alone while it runs. Not part of the tests.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
VENV = HERE / ".venv"
PACKAGES = ["torch==2.9.1", "transformers==4.57.6", "numpy"]


def main():
    args = parse()
    if pathlib.Path(sys.prefix).resolve() != VENV.resolve():
        python = VENV / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        os.execv(python, [str(python), *sys.argv])
    bench = build()
    cases = [("gpt2, 4 x 128", "gpt2-128"), ("gpt2, 4 x 256", "gpt2-256"), ("small, 16 x 128", "small")]
    lengths = HERE / ".venv" / "lengths.json"
    if args.data:
        lengths.write_text(json.dumps(record_lengths(args.data, args.tokenizer, args.batches)))
        cases.append((f"gpt2, {args.batches} ragged batches of 16", "ragged"))
    cases = [case for case in cases if args.only in (None, case[1])]
    torch_steps = {name: torch_step(name, lengths, args.threads) for _, name in cases}
    print(f"{'forward + backward':32} {'PyTorch [s]':>14} {'ferret [s]':>14} {'ratio':>7}   medians of {args.rounds} rounds, turn by turn")
    for title, name in cases:
        theirs, ours = [], []
        for _ in range(args.rounds):
            theirs.append(torch_steps[name]())
            ours.append(ferret(bench, name, lengths, args.threads))
        t, o = statistics.median(theirs), statistics.median(ours)
        print(f"{title:32} {t:14.3f} {o:14.3f} {t / o:6.2f}x   PyTorch {min(theirs):.3f} to {max(theirs):.3f}, ferret {min(ours):.3f} to {max(ours):.3f}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=4, help="ragged batches")
    parser.add_argument("--data", help="records as JSON lines")
    parser.add_argument("--tokenizer", help="folder with tokenizer.json")
    parser.add_argument("--only", choices=["gpt2-128", "gpt2-256", "small", "ragged"], help="one case")
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
    """Median seconds of one round of ferret."""
    env = {**os.environ, "RAYON_NUM_THREADS": str(threads)}
    args = [bench, name] + ([str(lengths)] if name == "ragged" else [])
    out = subprocess.run(args, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout
    return float(re.search(r"forward \+ backward +([0-9.]+)", out).group(1))


def record_lengths(data, tokenizer, batches):
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
    return [found[i:i + 16] for i in range(0, len(found), 16)]


def torch_step(name, lengths, threads):
    """A function that times one round of PyTorch: the median over its steps; for ragged batches the sum over all of them."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    still = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    small = dict(n_layer=4, n_embd=128, n_head=4, vocab_size=2048)
    config = GPT2Config(**still, **(small if name == "small" else {}))
    model = GPT2LMHeadModel(config).train()

    def step(ids, labels, mask=None):
        begun = time.perf_counter()
        logits = model(ids, attention_mask=mask).logits
        loss = torch.nn.functional.cross_entropy(logits.view(-1, logits.size(-1)), labels.view(-1))
        loss.backward()
        taken = time.perf_counter() - begun
        model.zero_grad(set_to_none=False)
        return taken

    def dense(rows, length, steps):
        ids = torch.randint(0, config.vocab_size, (rows, length))
        labels = torch.randint(0, config.vocab_size, (rows, length))
        step(ids, labels)
        return statistics.median(step(ids, labels) for _ in range(steps))

    def ragged():
        total = 0.0
        for i, batch in enumerate(json.loads(lengths.read_text())):
            widest = max(batch)
            ids = torch.randint(0, config.vocab_size, (len(batch), widest))
            labels, mask = ids.clone(), torch.ones_like(ids)
            for row, length in enumerate(batch):
                labels[row, length:], mask[row, length:] = -100, 0
            if i == 0:
                step(ids, labels, mask)
            total += step(ids, labels, mask)
        return total

    if name == "ragged":
        return ragged
    rows, length, steps = {"gpt2-128": (4, 128, 5), "gpt2-256": (4, 256, 3), "small": (16, 128, 20)}[name]
    return lambda: dense(rows, length, steps)


if __name__ == "__main__":
    main()
