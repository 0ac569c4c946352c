//! What does a tuned model give away? Train one that learns its records by heart, and let the audit find out.
//!
//! `cargo run --release --example audit_pair`

use ferret::audit::bound::Design;
use ferret::backend::Cpu;
use ferret::data::Example;
use ferret::measure::{Audit, Pair, Provenance};
use ferret::method::dense::{self, Settings};
use ferret::method::list::Method;
use ferret::method::run::{Conclusion, GoOn, Task, drive};
use ferret::model::checkpoint::{self, Dtype, SaveOptions};
use ferret::model::init;
use ferret::privacy::Sampler;
use ferret::progress::Unheard;
use ferret::rng::Secret;

fn main() -> ferret::Result<()> {
    // Candidates of one source; a fair coin decided who is trained on.
    let random = Secret::from_system()?;
    let mut coins = random.stream(ferret::rng::SecretDomain::Sampling, 0, 0);
    let record = |n: u32| Example::all((0..12).map(|i| (n * 7 + i * (n % 5 + 1)) % 60).collect());
    let (members, nonmembers): (Vec<Example>, Vec<Example>) = {
        let (inside, outside): (Vec<u32>, Vec<u32>) = (0..120).partition(|_| coins.bernoulli(0.5));
        (inside.into_iter().map(record).collect(), outside.into_iter().map(record).collect())
    };

    // Many passes without any protection.
    let base = init::random(init::Preset::Tiny.config(), 1)?;
    let settings = Settings {
        records: members.len() as u64,
        batch: 10,
        epochs: 100,
        sampler: Sampler::Shuffle,
        micro_batch: 10,
        learning_rate: 3e-3,
        weight_decay: 0.0,
        ..Settings::usual(dense::Method::Nonprivate)
    };
    let secret = Secret::from_system()?;
    let task = Task::new(base.clone(), Method::Dense(settings), &secret, &members);
    let mut run = task.begin(Cpu::<f32>::new(), None)?;
    drive(&mut *run, &mut GoOn(|| Ok(())))?;
    let Conclusion { weights, .. } = run.finish()?;
    let tuned = weights.into_form();

    // An audit reads two folders, as an auditor would be given them.
    let home = std::env::temp_dir().join(format!("ferret-audit-pair-{}", std::process::id()));
    let (base_dir, tuned_dir) = (home.join("base"), home.join("tuned"));
    for (dir, weights) in [(&base_dir, &base), (&tuned_dir, &tuned)] {
        checkpoint::save(dir, weights, &SaveOptions::fresh(Dtype::F32))?;
    }
    let pair = Pair::open(&base_dir.to_string_lossy(), &tuned_dir.to_string_lossy())?;
    // What the folder tells of the training and its charge: here nothing.
    let provenance = Provenance::of(&pair)?;
    let finding = Audit::new(pair, provenance, members, nonmembers, Design::CoinFlip).run(&Unheard)?;
    let removed = std::fs::remove_dir_all(&home);

    print!("{}", finding.report.text(100));
    let best = finding.curves.iter().map(|(_, roc)| roc.auc()).fold(0.0, f64::max);
    println!("The best attack has an AUC of {best:.3}.");
    assert!(best > 0.6, "a model that learnt by heart should be found out");
    removed.map_err(|e| ferret::Error::io(&home, e))
}
