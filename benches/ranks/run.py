#!/usr/bin/env python3
"""Ranks on this machine: how much of two cores two ranks use, and what a step costs on a network.

    python3 benches/ranks/run.py efficiency [--steps 6]   GPT-2 124M: 2 ranks of one thread, 4 x 128 tokens each, beside one process of two threads, 8 x 128
    python3 benches/ranks/run.py network                  a small model on two ranks in two network namespaces, by delay, bandwidth and loss; as root, on Linux
    python3 benches/ranks/run.py bytes                    what a rank receives in a step, as the kernel counts it on the loopback device, beside what `ferret plan` says
    python3 benches/ranks/run.py predict                  what `ferret plan --ranks --network` says of 8, 64 and 512 machines

Builds `ferret` with the feature mpi first (or takes FERRET, a binary that has it). Needs mpirun (Open MPI). The network is made of two namespaces, a tun device in each, and
a relay between them in this process that holds back, paces and drops packets: no kernel module is needed. Leave the machine alone while it runs. Not part of the tests.
"""

import argparse
import ctypes
import fcntl
import heapq
import itertools
import json
import os
import pathlib
import random
import select
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MPIRUN = ["mpirun", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none"]
METHODS = {
    "FERRET": ["--method", "ferret-max", "--epsilon", "1", "--learning-rate", "1e-4"],
    "FERRET-k": ["--method", "ferret-k", "--noise-multiplier", "1"],
    "DPSGD": ["--method", "dpsgd", "--noise-multiplier", "1", "--learning-rate", "1e-4"],
}


def main():
    args = parse()
    ferret = build()
    with tempfile.TemporaryDirectory(prefix="ferret-ranks-", dir=args.dir) as folder:
        {"efficiency": efficiency, "network": network, "bytes": count, "predict": predict}[args.what](ferret, pathlib.Path(folder), args)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["efficiency", "network", "bytes", "predict"])
    parser.add_argument("--steps", type=int, default=6, help="steps timed for each kind of run, after one that is not")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", choices=list(METHODS), help="one method")
    parser.add_argument("--dir", help="where models and runs are put meanwhile: some gigabytes")
    return parser.parse_args()


def build():
    if "FERRET" in os.environ:
        return os.environ["FERRET"]
    features = ["--no-default-features", "--features", "cli,embedded,tiles,mpi"]
    subprocess.run(["cargo", "build", "--release", *features], cwd=ROOT, check=True)
    return str(ROOT / "target/release/ferret")


def records(path, count, tokens, vocabulary):
    draw = random.Random(1)
    with open(path, "w") as out:
        for _ in range(count):
            out.write(json.dumps({"tokens": [draw.randrange(vocabulary) for _ in range(tokens)]}) + "\n")


def train(launch, ferret, out, arguments, env=None):
    """Seconds of every step that computed something, without the first."""
    shutil.rmtree(out, ignore_errors=True)
    command = [*launch, ferret, "train", "--log-private", "--insecure-seed", "1", "--sampler", "uniform", "--quiet", "--json", "--out", str(out), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})})
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    seconds = [json.loads(line)["seconds"] for line in (out / "log.jsonl").read_text().splitlines()]
    shutil.rmtree(out)
    return seconds[1:]


# How much of two cores two ranks use.


def efficiency(ferret, folder, args):
    model, data = folder / "gpt2", folder / "records.jsonl"
    subprocess.run([ferret, "init", "--preset", "gpt2", "--out", str(model), "--quiet"], check=True, stdout=subprocess.DEVNULL)
    records(data, 200, 128, 50257)
    print("GPT-2 124M, a batch of 8 x 128 tokens, seconds a step: medians over the same steps, kinds of run in turn")
    print(f"{'':10} {'1 process, 2 threads':>22} {'2 ranks, 1 thread each':>24} {'efficiency':>11}")
    for name, method in METHODS.items():
        if args.only not in (None, name):
            continue
        # Of FERRET's steps only those in which a group fires compute anything.
        steps = (2 if name == "FERRET" else 1) * args.steps + 1
        common = ["--model", str(model), "--data", str(data), "--batch", "8", "--max-steps", str(steps), *method]
        one, two = [], []
        for _ in range(args.rounds):
            one += train([], ferret, folder / "out", ["--threads", "2", "--micro-batch", "8", *common])
            two += train([*MPIRUN, "-n", "2"], ferret, folder / "out", ["--threads", "1", "--micro-batch", "4", *common])
        # The same public seed: step i of one kind computes what step i of the other does.
        ratio = statistics.median(a / b for a, b in zip(one, two))
        show = lambda s: f"{statistics.median(s):.3f} ({min(s):.3f} to {max(s):.3f})"
        print(f"{name:10} {show(one):>22} {show(two):>24} {ratio:11.3f}", flush=True)


# What a step costs on a network.


class Relay:
    """Two namespaces, a and b, 10.91.0.1 and 10.91.0.2, and what lies between them."""

    MTU = 65000

    def __init__(self):
        self.delay, self.rate, self.loss = 0.0, None, 0.0
        self.ends = []
        for name, own, other in (("fa", "10.91.0.1", "10.91.0.2"), ("fb", "10.91.0.2", "10.91.0.1")):
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)
            subprocess.run(["ip", "netns", "add", name], check=True)
            self.ends.append(tun(name, "net0"))
            for command in (f"link set lo up", f"link set net0 mtu {self.MTU} up", f"addr add {own} peer {other} dev net0"):
                subprocess.run(["ip", "netns", "exec", name, "ip", *command.split()], check=True)
        self.open = True
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def close(self):
        self.open = False
        self.thread.join()
        for end, name in zip(self.ends, ("fa", "fb")):
            os.close(end)
            subprocess.run(["ip", "netns", "del", name])

    def run(self):
        draw, number = random.Random(7), itertools.count()
        waiting = []
        free = [0.0, 0.0]
        while self.open:
            now = time.monotonic()
            while waiting and waiting[0][0] <= now:
                _, _, to, packet = heapq.heappop(waiting)
                os.write(self.ends[to], packet)
            pause = min(0.2, waiting[0][0] - now) if waiting else 0.2
            ready, _, _ = select.select(self.ends, [], [], max(0.0, pause))
            for end in ready:
                at = self.ends.index(end)
                packet = os.read(end, self.MTU + 100)
                if draw.random() < self.loss:
                    continue
                now = time.monotonic()
                if self.rate:
                    # A link that sends one packet after the other.
                    free[at] = max(free[at], now) + 8 * len(packet) / self.rate
                    now = free[at]
                heapq.heappush(waiting, (now + self.delay, next(number), 1 - at, packet))


def tun(namespace, name):
    """A tun device in `namespace`; what is written to it arrives there."""
    libc = ctypes.CDLL(None, use_errno=True)
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/var/run/netns/{namespace}", os.O_RDONLY)
    assert libc.setns(there, 0) == 0, "setns needs root"
    end = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(end, 0x400454CA, struct.pack("16sH14x", name.encode(), 0x1001))
    assert libc.setns(own, 0) == 0
    os.close(own), os.close(there)
    return end


def launcher(folder):
    """mpirun in the first namespace, which starts the second rank in the other one as if by ssh."""
    agent = folder / "agent"
    agent.write_text('#!/bin/sh\nshift\nexec ip netns exec fb unshare --uts sh -c "hostname fb; $*"\n')
    agent.chmod(0o755)
    net = "10.91.0.0/24"
    options = ["--host", "10.91.0.1:1,10.91.0.2:1", "-n", "2", "--mca", "plm_rsh_agent", str(agent), "--mca", "btl", "tcp,self", "--mca", "pml", "ob1"]
    options += ["--mca", "btl_tcp_if_include", net, "--mca", "oob_tcp_if_include", net]
    return ["ip", "netns", "exec", "fa", "unshare", "--uts", "sh", "-c", 'hostname fa; exec "$@"', "sh", "mpirun", "--allow-run-as-root", "--bind-to", "none", *options]


def network(ferret, folder, args):
    relay = Relay()
    try:
        launch = launcher(folder)
        data = folder / "records.jsonl"
        records(data, 400, 16, 1000)
        parameters = json.loads(subprocess.run([ferret, "inspect", "--model", "embedded", "--json"], capture_output=True, text=True, check=True).stdout)
        print(f"the embedded model ({parameters.get('parameters', parameters.get('scalars'))} parameters), a batch of 8 x 16 tokens, 2 ranks of one thread; milliseconds a step, medians")
        print(f"{'':10} {'network':>16} {'loss':>6} {'step':>9} {'of it exchange':>15} {'predicted':>10}")
        for name, method in METHODS.items():
            if args.only not in (None, name):
                continue
            common = ["--model", "embedded", "--data", str(data), "--batch", "8", "--micro-batch", "4", "--threads", "1", "--epochs", "4", *method]
            run = lambda launch, steps: train(launch, ferret, folder / "out", [*common, "--max-steps", str(steps)])
            relay.delay, relay.rate, relay.loss = 0.0, None, 0.0
            # What the same two ranks take where memory is the network.
            base = 1e3 * statistics.median(run([*MPIRUN, "-n", "2"], 80))
            print(f"{name:10} {'shared memory':>16} {'':6} {base:9.2f}", flush=True)
            for bits, delay, loss in [(None, 0, 0), (1e9, 1e-3, 0), (1e9, 10e-3, 0), (1e9, 50e-3, 0), (100e6, 1e-3, 0), (10e6, 1e-3, 0), (1e9, 1e-3, 0.001), (1e9, 1e-3, 0.01)]:
                relay.delay, relay.rate, relay.loss = delay, bits, loss
                step = 1e3 * statistics.median(run(launch, 80 if delay < 5e-3 else 30))
                if bits is None:
                    print(f"{name:10} {'the relay alone':>16} {loss:6} {step:9.2f} {step - base:15.2f}", flush=True)
                    continue
                network = f"{bits / 1e6:g}mbit,{delay * 1e3:g}ms"
                predicted = plan(ferret, method, "embedded", 2, network, 400, 4)["seconds"]
                # These runs log privately, to be timed. FERRET's numbers travel with its inner products; the others exchange once more: words, then numbers.
                predicted += 0 if name == "FERRET" else 2 * delay
                print(f"{name:10} {network:>16} {loss:6} {step:9.2f} {step - base:15.2f} {1e3 * predicted:10.2f}", flush=True)
    finally:
        relay.close()


def plan(ferret, method, model, ranks, network, count, micro, batch=8):
    names = {"--learning-rate", "--noise-multiplier"} if "ferret-max" in method else {"--learning-rate"}
    kept = [x for pair in zip(method[::2], method[1::2]) if pair[0] not in names for x in pair]
    command = [ferret, "plan", *kept, "--model", model, "--records", str(count), "--batch", str(batch), "--epochs", "4", "--ranks", str(ranks), "--network", network, "--micro-batch", str(micro), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout)["exchange"]


def count(ferret, folder, args):
    data = folder / "records.jsonl"
    records(data, 400, 16, 1000)
    print("the embedded model, a batch of 8 x 16 tokens, over TCP on the loopback device: bytes that a rank receives in a step (headers, acknowledgements and private logs included)")
    print(f"{'':10} {'ranks':>6} {'counted':>12} {'predicted':>12}")
    for name, method in METHODS.items():
        common = ["--model", "embedded", "--data", str(data), "--batch", "8", "--micro-batch", "4", "--threads", "1", "--epochs", "4", *method]
        for ranks in (2, 4):
            launch = [*MPIRUN, "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo", "-n", str(ranks)]
            counts = []
            # The same run with more steps: what all the rest sends goes out of the difference.
            for steps in (20, 80):
                before = received()
                done = train(launch, ferret, folder / "out", [*common, "--max-steps", str(steps)])
                counts.append((len(done), received() - before))
            (few, less), (many, more) = counts
            told = plan(ferret, method, "embedded", ranks, "1gbit,1ms", 400, 4)["bytes"]
            print(f"{name:10} {ranks:6} {(more - less) / (many - few) / ranks:12,.0f} {told:12,.0f}", flush=True)


def received():
    lines = pathlib.Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.strip().startswith("lo:"))


def predict(ferret, folder, args):
    model = folder / "gpt2"
    subprocess.run([ferret, "init", "--preset", "gpt2", "--out", str(model), "--quiet"], check=True, stdout=subprocess.DEVNULL)
    print("predicted, not measured: GPT-2 124M, 8 records a rank and step, 10gbit,50us: what a rank receives in a step, and how long the exchange takes")
    for ranks in (8, 64, 512):
        for name, method in METHODS.items():
            found = plan(ferret, method, str(model), ranks, "10gbit,50us", 100000, 8, 8 * ranks)
            print(f"{ranks:5} machines {name:10} {found['bytes']:16,.0f} bytes {1e3 * found['seconds']:10.3f} ms", flush=True)


if __name__ == "__main__":
    main()
