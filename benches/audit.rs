//! How fast an audit scores records, beside `eval` on the same records, in one run.
//!
//! `cargo bench --bench audit` scores 10,000 members and 10,000 non-members of the program's own short records with the embedded
//! model; `-- M N` other numbers of them. Both sides are taken in turn, piece by piece, so that a busy machine slows both alike.

use ferret::backend::Cpu;
use ferret::data::{self, Example, LoadOptions};
use ferret::eval;
use ferret::measure::{Cache, token_stats};
use ferret::model::tokenizer::Tokenizer;
use ferret::model::{Decoder, checkpoint};
use std::path::Path;
use std::time::{Duration, Instant};

/// Records scored before it is the other's turn.
const PIECE: usize = 1024;

fn main() {
    let mut counts = std::env::args().skip(1).filter_map(|a| a.parse::<usize>().ok());
    let (members, nonmembers) = (counts.next().unwrap_or(10_000), counts.next().unwrap_or(10_000));
    let checkpoint = checkpoint::load("embedded").expect("the embedded model");
    let tokenizer = Tokenizer::from_folder(&checkpoint.folder).expect("its tokenizer");
    let options = LoadOptions::new(&checkpoint.weights.config);
    let load = |name: String| -> Vec<Example> {
        data::load_examples(Path::new(&name), tokenizer.as_ref(), &options).expect("records").examples
    };
    let records = [load(format!("embedded:train:{members}")), load(format!("embedded:test:{nonmembers}"))].concat();
    let tokens: usize = records.iter().map(|e| e.ids.len()).sum();
    let hash = checkpoint::tensors_sha256(&checkpoint.weights);
    let decoder = Decoder::new(Cpu::<f32>::new(), checkpoint.weights).expect("weights fit");
    println!(
        "{members} + {nonmembers} records of {:.1} tokens, {} threads",
        tokens as f64 / records.len() as f64,
        rayon::current_num_threads()
    );

    let losses = eval::losses(&decoder, &records[..records.len().min(200)], |_| ()).expect("losses");
    let stats = token_stats(&decoder, &hash, &records[..losses.len()], &Cache::none(), |_| Ok(())).expect("scores");
    for (loss, stats) in losses.iter().zip(&stats) {
        let sum: f64 = stats.log_prob.iter().map(|&x| f64::from(x)).sum();
        assert!((loss.sum + sum).abs() < 1e-3 * (1.0 + loss.sum), "eval says {}, the audit {}", loss.sum, -sum);
    }

    let folder = tempfile::tempdir().expect("a folder");
    let cache = Cache::at(folder.path()).expect("a cache");
    let (mut by_eval, mut by_audit, mut again) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    let timed = |total: &mut Duration, f: &mut dyn FnMut()| {
        let begun = Instant::now();
        f();
        *total += begun.elapsed();
    };
    for (i, piece) in records.chunks(PIECE).enumerate() {
        let mut evaluate = || drop(eval::losses(&decoder, piece, |_| ()).expect("losses"));
        let mut score = || drop(token_stats(&decoder, &hash, piece, &cache, |_| Ok(())).expect("scores"));
        if i % 2 == 0 {
            timed(&mut by_eval, &mut evaluate);
            timed(&mut by_audit, &mut score);
        } else {
            timed(&mut by_audit, &mut score);
            timed(&mut by_eval, &mut evaluate);
        }
        timed(&mut again, &mut score);
    }
    let rate = |time: Duration| tokens as f64 / time.as_secs_f64();
    println!("{:<34} {:>9} {:>12} {:>9}", "", "s", "tokens/s", "of eval");
    for (what, time) in
        [("eval", by_eval), ("audit, scores kept as it goes", by_audit), ("audit again, from what was kept", again)]
    {
        let share = rate(time) / rate(by_eval);
        println!("{what:<34} {:>9.2} {:>12.0} {:>8.0}%", time.as_secs_f64(), rate(time), 100.0 * share);
    }
}
