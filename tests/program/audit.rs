//! Audits of real decoders: scores by brute force, small worlds with known answers, and the program.

use crate::common::{Random, config, weights};
use ferret::audit::bound::{Charge, Design};
use ferret::audit::columns::WIDTH;
use ferret::audit::report::Report;
use ferret::audit::score::RecordStats;
use ferret::backend::{Cpu, Memory};
use ferret::data::{Example, batches};
use ferret::grad::Sum;
use ferret::measure::shadow::{self, Changes, Knowledge, Method, train_shadow};
use ferret::measure::{Cache, Metering, gradient_norms, leakage, threshold_attacks, token_stats};
use ferret::method::ferret::{BatchPer, Cuts, Settings, Trainer, Transcript};
use ferret::method::{Run, Samples, Task};
use ferret::model::checkpoint::{self};
use ferret::model::{Decoder, ParamId, Reduction, Weights, init};
use ferret::optim::Route;
use ferret::ranks::Alone;
use ferret::rng::{DirectionStream, Secret, coin};

/// Records of `len` random tokens.
pub(super) fn random_records(count: usize, len: usize, seed: u64) -> Vec<Example> {
    let mut random = Random::new(seed);
    (0..count).map(|_| Example::all((0..len).map(|_| random.below(23) as u32).collect())).collect()
}

pub(super) fn fresh(seed: u64) -> Weights {
    init::random(config(|c| (c.width, c.inner) = (24, 96)), seed).unwrap()
}

/// The base model trained on `records` until it knows them by heart.
pub(super) fn memorise(base: &Weights, records: &[Example], epochs: u32, batch: u64) -> Weights {
    let hash = checkpoint::tensors_sha256(base);
    let changes = Changes { batch: Some(batch), epochs: Some(epochs), learning_rate: Some(5e-3), ..Changes::default() };
    let method = Method::named("nonprivate", &base.layout, Knowledge::default(), changes, records.len()).unwrap();
    let task = shadow::Task { base: base.clone(), base_sha256: &hash, method: &method, records, share: 1.0, seed: 1 };
    train_shadow(Cpu::<f32>::new(), task, || Ok(())).unwrap().weights
}

fn stats_of(weights: &Weights, base: &Weights, records: &[Example]) -> Vec<RecordStats> {
    let of = |w: &Weights| {
        let decoder = Decoder::new(Cpu::<f32>::new(), w.clone()).unwrap();
        token_stats(&decoder, "", records, &Cache::none(), |_| Ok(())).unwrap()
    };
    let both = of(weights).into_iter().zip(of(base));
    both.map(|(tuned, base)| RecordStats { tuned, base: Some(base), ..Default::default() }).collect()
}

fn report(tuned: &Weights, base: &Weights, members: &[Example], nonmembers: &[Example], charge: Charge) -> Report {
    let (m, n) = (stats_of(tuned, base, members), stats_of(tuned, base, nonmembers));
    let curves: Vec<_> =
        threshold_attacks(&m, &n, 0.2).unwrap().iter().map(|a| (a.name.clone(), a.roc().unwrap())).collect();
    Report::new(&curves, charge, Design::RandomSubset, (members.len() as u64, nonmembers.len() as u64))
}

#[test]
fn token_statistics_and_norms_are_those_of_brute_force() {
    let weights = weights(config(|_| ()), 3);
    let decoder = Decoder::new(Cpu::<f32>::new(), weights.clone()).unwrap();
    let mut records: Vec<Example> = [5, 1, 12, 2, 7].iter().flat_map(|&n| random_records(1, n, n as u64)).collect();
    records[2].learn[4] = false;
    records[2].learn[11] = false;
    let mut finished = 0;
    let stats = token_stats(&decoder, "w", &records, &Cache::none(), |n| {
        finished += n;
        Ok(())
    })
    .unwrap();
    assert_eq!(finished, records.len());
    let norms = gradient_norms(&decoder, "w", &records, &Cache::none(), |_| Ok(())).unwrap();
    for ((record, stats), norm) in records.iter().zip(&stats).zip(norms) {
        assert_eq!(stats.log_prob.len(), record.targets());
        let batch = batches::batch([record]);
        let logits = decoder.backend.download(&decoder.logits(&batch, 0..batch.rows())).unwrap();
        let counted = (1..record.ids.len()).filter(|&i| record.learn[i]);
        for (k, i) in counted.enumerate() {
            let row: Vec<f64> = logits[(i - 1) * 23..i * 23].iter().map(|&x| f64::from(x)).collect();
            let total: f64 = row.iter().map(|l| l.exp()).sum();
            let p: Vec<f64> = row.iter().map(|l| l.exp() / total).collect();
            let mean: f64 = p.iter().map(|p| p * p.ln()).sum();
            let std = p.iter().map(|p| p * (p.ln() - mean).powi(2)).sum::<f64>().sqrt();
            let max = p.iter().copied().fold(0.0, f64::max);
            let want = [p[record.ids[i] as usize].ln(), mean, std, max];
            let got = [stats.log_prob[k], stats.mean_log_prob[k], stats.std_log_prob[k], stats.max_prob[k]];
            for (got, want) in got.into_iter().zip(want) {
                assert!((f64::from(got) - want).abs() < 1e-4, "token {i}: {got}, not {want}");
            }
        }
        let mut sum = Sum::new(&decoder.backend, &decoder.layout, |_| true);
        decoder.backward(&batch, &batch.weights(Reduction::SampleSum), &mut sum);
        let squares: f64 = decoder
            .layout
            .ids()
            .flat_map(|p| decoder.backend.download(sum.get(p).unwrap()).unwrap())
            .map(|x| f64::from(x).powi(2))
            .sum();
        assert!((norm - squares.sqrt()).abs() < 1e-4 * (1.0 + norm), "{norm}, not {}", squares.sqrt());
    }
}

#[test]
fn a_model_that_memorised_raises_the_alarm_and_an_untouched_one_does_not() {
    let base = fresh(1);
    let (members, nonmembers) = (random_records(64, 10, 1), random_records(64, 10, 2));
    let tuned = memorise(&base, &members, 40, 16);
    let found = report(&tuned, &base, &members, &nonmembers, Charge::Bits(8));
    for row in found.attacks.iter().filter(|r| ["loss", "perplexity-ratio"].contains(&r.attack.as_str())) {
        assert!(row.summary.auc > 0.98, "{}: {}", row.attack, row.summary.auc);
    }
    assert!(found.alarm, "{}", found.text(WIDTH));
    assert!(found.text(WIDTH).contains("ALARM"));
    // As many bits as records permit everything; without a random choice of members no bound applies.
    assert!(!report(&tuned, &base, &members, &nonmembers, Charge::Bits(100_000)).alarm);

    let other = fresh(2);
    let found = report(&other, &base, &members, &nonmembers, Charge::Bits(1));
    for row in &found.attacks {
        let (s, name) = (&row.summary, &row.attack);
        assert!(s.auc_null[0] <= s.auc && s.auc <= s.auc_null[1], "{name}: {} outside {:?}", s.auc, s.auc_null);
        assert!(s.advantage <= s.advantage_null[1], "{name}: {} above {:?}", s.advantage, s.advantage_null);
    }
    assert!(!found.alarm, "{}", found.text(WIDTH));
}

// --- FERRET's leakage meter

pub(super) fn ferret_settings(weights: &Weights) -> Settings {
    let ids: Vec<ParamId> = weights.layout.ids().collect();
    let groups: Vec<Vec<ParamId>> = ids.chunks(4).map(<[ParamId]>::to_vec).collect();
    Settings {
        epsilon: 2.0,
        records: 30,
        batch: 6,
        epochs: 3,
        micro_batch: 4,
        route: Route::Direct,
        learning_rate: 0.3,
        weight_decay: 0.0,
        seed: 5,
        ..Settings::paper("ferret", Cuts::of(&groups).unwrap())
    }
}

/// A run, and how often a drawn record was decisive, by whole gradients.
pub(super) fn ferret_run(
    base: &Weights,
    s: &Settings,
    records: &[Example],
    secret: &Secret,
) -> (Weights, Transcript, f64) {
    let task = Task::new(base.clone(), s.clone(), secret, records);
    let members = s.groups.members(&s.tune.ids(&base.layout).unwrap()).unwrap();
    let samples = Samples::new(secret, s.sampler, records.len(), s.batch as usize).unwrap();
    let mut trainer = Trainer::new(Cpu::<f32>::new(), task, None).unwrap();
    let fires = s.fires(s.steps());
    let (mut drawn, mut decisive) = (0, 0);
    while let Some(step) = trainer.next() {
        let decoder = trainer.decoder();
        for &(_, group) in fires.iter().filter(|f| f.0 == step) {
            let bit = if s.batch_per == BatchPer::Step { 0 } else { group };
            let sample = samples.known(step, bit).unwrap();
            let ids = &members[group as usize];
            let dim = ids.iter().map(|&p| base.layout.spec(p).len()).sum();
            let mut u = vec![0.0; dim];
            DirectionStream::new(s.seed, step, group, s.direction, dim).fill(0, &mut u);
            let share = |record: &Example| -> f64 {
                let batch = batches::batch([record]);
                let mut sum = Sum::new(&decoder.backend, &decoder.layout, |_| true);
                decoder.backward(&batch, &batch.weights(Reduction::SampleSum), &mut sum);
                let g = ids.iter().flat_map(|&p| decoder.backend.download(sum.get(p).unwrap()).unwrap());
                g.zip(&u).map(|(g, u)| f64::from(g) * f64::from(*u)).sum()
            };
            let shares: Vec<f64> = sample.iter().map(|&i| share(&records[i])).collect();
            let total: f64 = shares.iter().sum();
            let sign = |x: f64| if x == 0.0 { coin(s.seed, step, group) == 1 } else { x > 0.0 };
            let rest = |i: usize| shares.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, a)| a).sum::<f64>();
            drawn += shares.len();
            decisive += (0..shares.len()).filter(|&i| sign(rest(i)) != sign(total)).count();
        }
        trainer.step().unwrap();
    }
    let (weights, transcript, _) = trainer.end().unwrap();
    (weights, transcript, decisive as f64 / drawn as f64)
}

#[test]
fn the_leakage_meter_reads_what_whole_gradients_say() {
    let base = weights(config(|_| ()), 4);
    let records = random_records(30, 6, 9);
    for batch_per in [BatchPer::Step, BatchPer::Bit] {
        let mut s = ferret_settings(&base);
        s.batch_per = batch_per;
        let secret = Secret::insecure(9);
        let (_, transcript, flip_rate) = ferret_run(&base, &s, &records, &secret);
        // The run's own key draws the run's own samples: every bit must come out as it was released.
        let read = |secret: &Secret, micro: usize| {
            let (transcript, examples) = (&transcript, &records[..]);
            let metering = Metering { transcript, examples, secret, micro_batch: micro, ranks: &Alone };
            leakage(Cpu::<f32>::new(), base.clone(), &metering, |_| Ok(())).unwrap()
        };
        let reading = read(&secret, 4);
        let bits = transcript.releases.len() as u64;
        assert!(bits >= 5);
        assert_eq!((reading.leakage.bits, reading.agreement), (bits, 1.0));
        assert!((reading.leakage.flip_rate - flip_rate).abs() < 1e-12, "{} {flip_rate}", reading.leakage.flip_rate);
        assert!(flip_rate > 0.0, "some record must be decisive for this test to say something");
        let charged = 0.2 * bits as f64 * std::f64::consts::LN_2;
        assert!((reading.leakage.charged_nats - charged).abs() < 1e-12);
        assert_eq!(read(&secret, 100), reading, "micro-batches change nothing");
        assert_ne!(read(&Secret::insecure(10), 4).leakage.drawn, reading.leakage.drawn);
    }
    let s = ferret_settings(&base);
    let (_, transcript, _) = ferret_run(&base, &s, &records, &Secret::insecure(1));
    let (transcript, examples, secret) = (&transcript, &records[1..], &Secret::insecure(1));
    let metering = Metering { transcript, examples, secret, micro_batch: 4, ranks: &Alone };
    let wrong = leakage(Cpu::<f32>::new(), base, &metering, |_| Ok(()));
    assert!(wrong.unwrap_err().to_string().contains("the run had 30 records, the data has 29"));
}
