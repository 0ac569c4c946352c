//! What FERRET costs beside non-private training, as ratios in one run.
//!
//! `cargo bench --bench ferret` times whole runs of a small model, then every kind of step of the GPT-2 124M shape, and sums those
//! over the realised plan of the paper's setting. Memory is measured in processes of their own.

mod common;

use common::{batch, gpt2, peak_memory, small, time, weights};
use ferret::backend::{Cpu, Memory};
use ferret::data::Example;
use ferret::grad::{GroupDirection, GroupDot, Sum};
use ferret::method::ferret::{Cuts, Releases, Replayer, Settings, Trainer};
use ferret::method::groups::{self, Groups};
use ferret::method::{Run, Sensitive, Task};
use ferret::model::layout::Place;
use ferret::model::{Batch, Config, Decoder, Layout, ParamId, Reduction, Weights};
use ferret::optim::{Gradient, Hyper, Schedule, Silent, Updates};
use ferret::rng::{Direction, DirectionStream, Secret};
use std::time::Instant;

const LENGTH: usize = 128;
const SAMPLES: usize = 4;

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("memory") => memory(&std::env::args().nth(2).expect("what to measure")),
        _ => {
            small_runs();
            gpt2_plan();
            for what in ["eval", "jvp", "direct", "backward"] {
                let this = std::env::current_exe().expect("this program");
                let out = std::process::Command::new(this).args(["memory", what]).output().expect("a second process");
                print!("{}", String::from_utf8_lossy(&out.stdout));
            }
        }
    }
}

fn settings(layout: &Layout, records: u64, epsilon: f64, batch: u64, epochs: u32) -> Settings {
    let groups = Groups::new(layout, groups::Grouping::Bucket(1)).expect("groups");
    let paper = Settings::paper("ferret-max", Cuts::of(&groups.members).expect("consecutive"));
    Settings { epsilon, records, batch, epochs, seed: 1, ..paper }
}

/// One non-private step: gradient of the mean, and AdamW.
fn plain_step(decoder: &mut Decoder<Cpu<f32>>, adamw: &mut Updates<Cpu>, step: u32, batches: &[Batch]) {
    let mut sum = Sum::new(&decoder.backend, &decoder.layout, |_| true);
    for batch in batches {
        decoder.backward(batch, &batch.weights(Reduction::SampleMean), &mut sum);
    }
    update(decoder, adamw, step, &sum);
}

fn update(decoder: &mut Decoder<Cpu<f32>>, adamw: &mut Updates<Cpu>, step: u32, sum: &Sum<Cpu<f32>>) {
    for p in decoder.layout.ids() {
        let gradient = Gradient::Whole { tensor: sum.get(p).expect("all"), scale: 1.0 };
        adamw.step(&decoder.backend, step, p, &mut decoder.params[p.0], gradient);
    }
}

/// Whole runs of the small shape: 500 records of 128 tokens, batch 50, 2 epochs.
fn small_runs() {
    let config = small();
    let base = weights(config.clone());
    let records: Vec<Example> = (0..500)
        .map(|i| Example::all(batch(&config, 1, LENGTH).ids.iter().map(|t| (t * 31 + i) % 2048).collect()))
        .collect();
    println!("small model, 500 records of {LENGTH} tokens, batch 50, 2 epochs (20 steps), whole runs:");
    let clock = Instant::now();
    let mut decoder = Decoder::new(Cpu::new(), base.clone()).expect("weights");
    let mut adamw = Updates::adamw(base.layout.len(), 20, Hyper::new(1e-4, 1e-3), Schedule::Constant, Silent::Zero);
    for step in 0..20 {
        let first = step as usize % 10 * 50;
        let batches: Vec<Batch> = records[first..first + 50].chunks(8).map(ferret::data::batches::batch).collect();
        plain_step(&mut decoder, &mut adamw, step, &batches);
    }
    let plain = clock.elapsed().as_secs_f64();
    println!("  non-private        {plain:>8.2} s");
    for epsilon in [0.1, 0.5, 2.0] {
        let s = settings(&base.layout, 500, epsilon, 50, 2);
        let secret = Secret::insecure(1);
        let clock = Instant::now();
        let task = Task {
            base: base.clone(),
            base_sha256: "0".repeat(64),
            settings: s.clone(),
            stop: None,
            secret: &secret,
            records: Sensitive::new(&records[..]),
        };
        let mut trainer = Trainer::new(Cpu::<f32>::new(), task, None).expect("a run");
        while trainer.step().expect("a step").is_some() {}
        trainer.end().expect("an end");
        let seconds = clock.elapsed().as_secs_f64();
        let fires = s.fires(s.steps());
        let computed = fires.chunk_by(|a, b| a.0 == b.0).count();
        println!(
            "  FERRET-MAX eps {epsilon:<4} {seconds:>7.2} s  {:>5.1} %  ({} bits, {computed} of 20 steps computed)",
            100.0 * seconds / plain,
            fires.len()
        );
    }
}

/// The paper's setting on the 124M shape: every kind of step measured, summed over the realised plan.
fn gpt2_plan() {
    let config = gpt2();
    let base = weights(config.clone());
    let layout = base.layout.clone();
    let rows = batch(&config, SAMPLES, LENGTH);
    let w = rows.weights(Reduction::SampleMean);
    let mut decoder = Decoder::new(Cpu::<f32>::new(), base).expect("weights");
    println!(
        "\nGPT-2 124M shape, N = 10,000 records of {LENGTH} tokens, B = 50, T = 1,000; steps measured at {SAMPLES} x {LENGTH} tokens"
    );
    let micro = 50.0 / SAMPLES as f64;
    let mut sum = Sum::new(&decoder.backend, &layout, |_| true);
    let full = time(3, || drop(decoder.backward(&rows, &w, &mut sum))).1.as_secs_f64();
    let mut adamw = Updates::adamw(layout.len(), 1000, Hyper::new(1e-4, 1e-3), Schedule::Constant, Silent::Zero);
    let mut step = 0;
    let optimizer = time(3, || {
        update(&mut decoder, &mut adamw, step, &sum);
        step += 1;
    })
    .1
    .as_secs_f64();
    drop(adamw);
    println!("  non-private: forward + backward {full:.3} s, AdamW {optimizer:.3} s a step");
    let plain = 1000.0 * (full * micro + optimizer);

    // A fired step's cost is set by the lowest block it reaches and the size of the group; the largest weight stands for a block.
    let mut fired = |members: &[ParamId]| {
        let dim = members.iter().map(|&p| layout.spec(p).len()).sum();
        let mut step = 0;
        let mut once = || {
            let stream = DirectionStream::new(1, step, 0, Direction::Sphere, dim);
            let direction = [GroupDirection::new(stream, members, &layout)];
            let mut sink = GroupDot::new(&decoder.backend, &direction, &rows.segments);
            decoder.backward(&rows, &w, &mut sink);
            step += 1;
        };
        // Clocks drift: full and fired in turn, and the fastest of each.
        let (mut fastest, mut beside) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..3 {
            fastest = fastest.min(seconds(&mut once));
            beside = beside.min(seconds(&mut || drop(decoder.backward(&rows, &w, &mut sum))));
        }
        full * fastest / beside
    };
    let blocks: Vec<f64> =
        layout.blocks.iter().map(|b| fired(&[b.mlp_in.iter().next().expect("a layer").weight])).collect();
    let (top, tokens, positions) = (
        fired(&[layout.norm_f.weight]),
        fired(&[layout.tokens]),
        fired(&[layout.positions.expect("learned positions")]),
    );
    println!("  fired step, share of forward + backward: final norm {:.0} %", 100.0 * top / full);
    for (l, seconds) in blocks.iter().enumerate().rev() {
        println!("    block {l:>2}  {:>4.0} %", 100.0 * seconds / full);
    }
    println!("    wpe       {:>4.0} %\n    wte       {:>4.0} %", 100.0 * positions / full, 100.0 * tokens / full);
    let cost = |p: ParamId| match layout.spec(p).place {
        Place::Top => top,
        Place::Block(l) => blocks[l],
        Place::Embedding if p == layout.tokens => tokens,
        Place::Embedding => positions,
    };
    for epsilon in [0.1, 0.5] {
        let s = settings(&layout, 10_000, epsilon, 50, 5);
        let fires = s.fires(s.steps());
        let computed: f64 = fires
            .chunk_by(|a, b| a.0 == b.0)
            .map(|step| micro * step.iter().map(|f| cost(ParamId(f.1 as usize))).fold(0.0, f64::max))
            .sum();
        // Idle steps and updates, as training makes them: caught up at every fired step.
        let mut idle = Decoder::new(Cpu::<f32>::new(), Weights::zeros(config.clone())).expect("weights");
        let (b, params) = (&idle.backend, &mut idle.params);
        let mut replayer = Replayer::new(&layout, &s).expect("settings");
        let clock = Instant::now();
        for step in fires.chunk_by(|a, b| a.0 == b.0) {
            replayer.catch_up(b, step[0].0, params);
            let bits = Releases::Bits(vec![1; step.len()]);
            replayer.apply(b, step, &bits, params, |_| ()).expect("releases");
        }
        replayer.catch_up(b, s.steps(), params);
        let idle = clock.elapsed().as_secs_f64();
        println!(
            "  FERRET-MAX eps {epsilon}: {} bits on {} steps; computed steps {computed:.0} s, AdamW with its idle steps {idle:.0} s \
             ({:.1} % of the run); {:.2} % of non-private's {plain:.0} s",
            fires.len(),
            fires.chunk_by(|a, b| a.0 == b.0).count(),
            100.0 * idle / (computed + idle),
            100.0 * (computed + idle) / plain
        );
    }
}

/// Seconds of one call.
fn seconds(f: &mut dyn FnMut()) -> f64 {
    let clock = Instant::now();
    f();
    clock.elapsed().as_secs_f64()
}

/// Peak memory of one kind of work on the 124M shape.
fn memory(what: &str) {
    let config: Config = gpt2();
    let rows = batch(&config, SAMPLES, LENGTH);
    let decoder = Decoder::new(Cpu::<f32>::new(), weights(config)).expect("weights");
    let b = &decoder.backend;
    let layout = &decoder.layout;
    let members = match what {
        "jvp" => vec![layout.blocks[0].mlp_in.iter().next().expect("a layer").weight],
        _ => vec![layout.tokens],
    };
    let dim = members.iter().map(|&p| layout.spec(p).len()).sum();
    let direction = [GroupDirection::new(DirectionStream::new(1, 1, 0, Direction::Sphere, dim), &members, layout)];
    match what {
        "eval" => drop(decoder.losses(&rows)),
        "jvp" => drop(decoder.jvp(&rows, &direction[0])),
        "direct" => {
            let mut sink = GroupDot::new(b, &direction, &rows.segments);
            decoder.backward(&rows, &rows.weights(Reduction::SampleSum), &mut sink);
            let dots = b.download(&sink.into_rows()[0]).expect("host memory");
            assert!(dots.iter().any(|d| *d != 0.0));
        }
        "backward" => {
            let mut sum = Sum::new(b, layout, |_| true);
            decoder.backward(&rows, &rows.weights(Reduction::SampleSum), &mut sum);
        }
        _ => panic!("eval, jvp, direct or backward"),
    }
    println!("peak memory, {what:<9} {:>6.0} MiB", peak_memory().unwrap_or(f64::NAN));
}
