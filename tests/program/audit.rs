//! Audits of real decoders: scores by brute force, small worlds with known answers, and the program.

use crate::common::{Random, config, weights};
use crate::io_support::{assert_refused, byte_tokenizer, ferret, stderr};
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
use ferret::model::checkpoint::{self, Dtype, SaveOptions};
use ferret::model::{Config, Decoder, ParamId, Reduction, Weights, init};
use ferret::optim::Route;
use ferret::ranks::Alone;
use ferret::rng::{DirectionStream, Secret, coin};
use serde_json::{Value, json};
use std::path::Path;

/// Records of `len` random tokens.
fn random_records(count: usize, len: usize, seed: u64) -> Vec<Example> {
    let mut random = Random::new(seed);
    (0..count).map(|_| Example::all((0..len).map(|_| random.below(23) as u32).collect())).collect()
}

fn fresh(seed: u64) -> Weights {
    init::random(config(|c| (c.width, c.inner) = (24, 96)), seed).unwrap()
}

/// The base model trained on `records` until it knows them by heart.
fn memorise(base: &Weights, records: &[Example], epochs: u32, batch: u64) -> Weights {
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

fn ferret_settings(weights: &Weights) -> Settings {
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
fn ferret_run(base: &Weights, s: &Settings, records: &[Example], secret: &Secret) -> (Weights, Transcript, f64) {
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

// --- The program

fn save(dir: &Path, weights: &Weights) {
    checkpoint::save(dir, weights, &SaveOptions::fresh(Dtype::F32)).unwrap();
}

fn write_tokens(path: &Path, records: &[Example]) {
    let lines: Vec<String> = records.iter().map(|r| json!({"tokens": r.ids}).to_string()).collect();
    std::fs::write(path, lines.join("\n") + "\n").unwrap();
}

fn json_of(dir: &Path, args: &[&str]) -> Value {
    let out = ferret(dir).args(args).output().unwrap();
    assert!(out.status.success(), "{args:?}: {}", stderr(&out));
    serde_json::from_slice(&out.stdout).unwrap()
}

/// base, tuned (knows in.jsonl by heart), in.jsonl, out.jsonl, other.jsonl.
fn world(dir: &Path) {
    let base = fresh(1);
    let members = random_records(40, 10, 1);
    save(&dir.join("base"), &base);
    save(&dir.join("tuned"), &memorise(&base, &members, 40, 10));
    write_tokens(&dir.join("in.jsonl"), &members);
    write_tokens(&dir.join("out.jsonl"), &random_records(40, 10, 2));
    write_tokens(&dir.join("other.jsonl"), &random_records(60, 10, 3));
}

const PAIR: [&str; 9] =
    ["audit", "--base", "base", "--tuned", "tuned", "--members", "in.jsonl", "--nonmembers", "out.jsonl"];

#[test]
fn the_verb_reports_every_attack_with_intervals_bounds_and_files() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    world(dir);
    let with = |extra: &[&str]| json_of(dir, &[&PAIR[..], &["--json"], extra].concat());
    let charged = ["--membership", "random-subset", "--bits", "8", "--gradient-norm", "--out", "report"];
    let found = with(&charged);
    let attacks = found["attacks"].as_array().unwrap();
    let names: Vec<&str> = attacks.iter().map(|a| a["attack"].as_str().unwrap()).collect();
    assert_eq!(names, ["loss", "perplexity-ratio", "confidence", "min-20%", "min-20%++", "zlib", "gradient-norm"]);
    for attack in attacks {
        for key in ["auc", "advantage", "tpr_at_fpr_0.01", "tpr_at_fpr_0.001"] {
            let value = attack[key].as_f64().unwrap();
            assert!((0.0..=1.0).contains(&value), "{key}");
            for suffix in ["_ci", "_null"] {
                assert_eq!(attack[format!("{key}{suffix}")].as_array().unwrap().len(), 2);
            }
        }
        assert_eq!((attack["members"].as_u64(), attack["nonmembers"].as_u64()), (Some(40), Some(40)));
        assert_eq!(attack["verdicts"].as_array().unwrap().len(), 4);
        assert!(attack["held_out"]["advantage"].is_number());
    }
    assert!(attacks[0]["auc"].as_f64().unwrap() > 0.98);
    assert_eq!(found["alarm"], true);
    for file in ["audit.txt", "audit.csv", "audit.json", "roc.svg", "roc-log.svg", "scores.csv"] {
        assert!(!std::fs::read_to_string(dir.join("report").join(file)).unwrap().is_empty(), "{file}");
    }
    assert!(std::fs::read_to_string(dir.join("report/roc-log.svg")).unwrap().contains("<svg"));
    assert_eq!(std::fs::read_to_string(dir.join("report/scores.csv")).unwrap().lines().count(), 81);
    // Cached scores give the same report, and are really read.
    let cached = std::fs::read_dir(dir.join("report/cache")).unwrap().count();
    assert!(cached >= 3);
    assert_eq!(with(&charged)["attacks"], found["attacks"]);
    assert_eq!(std::fs::read_dir(dir.join("report/cache")).unwrap().count(), cached);
    // Without a random choice of members no bound applies, and the table says so.
    let plain = ferret(dir).args(PAIR).args(["--bits", "8"]).output().unwrap();
    let text = String::from_utf8(plain.stdout).unwrap();
    assert!(text.contains("does not apply: membership was not drawn at random") && !text.contains("ALARM"), "{text}");
    let failed = ferret(dir).args(PAIR).args(["--fail-on-alarm"]).args(charged).output().unwrap();
    assert_eq!(failed.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&failed.stdout).contains("ALARM"));
    // The base model against itself: nothing to find, nothing charged.
    let mut same = PAIR;
    same[4] = "base";
    let out = json_of(dir, &[&same[..], &["--json"]].concat());
    assert_eq!(out["alarm"], false);
    let row = &out["attacks"][1];
    assert_eq!((row["attack"].as_str(), row["auc"].as_f64()), (Some("perplexity-ratio"), Some(0.5)));
}

#[test]
fn shadow_models_are_trained_once_and_sharpen_the_attack() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    world(dir);
    let settings = ["--shadow-epochs", "40", "--shadow-batch", "10", "--shadow-learning-rate", "5e-3"];
    let online =
        ["--shadows", "4", "--shadow-data", "other.jsonl", "--shadow-online", "--shadow-cache", "kept", "--json"];
    let run = |extra: &[&str]| json_of(dir, &[&PAIR[..], &settings, extra].concat());
    let found = run(&online);
    let auc = |found: &Value, name: &str| {
        let row = found["attacks"].as_array().unwrap().iter().find(|a| a["attack"] == name);
        row.unwrap_or_else(|| panic!("no {name}"))["auc"].as_f64().unwrap()
    };
    for name in ["lira-online", "lira-offline", "rmia-online", "rmia-offline"] {
        assert!(auc(&found, name) > 0.95, "{name}: {}", auc(&found, name));
    }
    assert_eq!(found["shadows"]["trained_on"], 64, "half of 80 candidates and 48 others");
    assert_eq!(std::fs::read_dir(dir.join("kept")).unwrap().count(), 4);
    let before = std::fs::read_dir(dir.join("kept")).unwrap().map(|e| e.unwrap().path()).collect::<Vec<_>>();
    let again = run(&[&online[..], &["--shadow-jobs", "1"]].concat());
    assert_eq!(again["attacks"], found["attacks"], "from the store, one at a time");
    let after = std::fs::read_dir(dir.join("kept")).unwrap().map(|e| e.unwrap().path()).collect::<Vec<_>>();
    assert_eq!(before, after);
    // FERRET's shadows are kept as transcripts; offline ones never see a candidate.
    let ferret =
        ["--shadows", "2", "--shadow-data", "other.jsonl", "--shadow-method", "ferret-2", "--shadow-cache", "f"];
    let found = run(&[&ferret[..], &["--json"]].concat());
    assert_eq!((&found["shadows"]["online"], &found["shadows"]["trained_on"]), (&json!(false), &json!(24)));
    let names: Vec<&Value> = found["attacks"].as_array().unwrap().iter().map(|a| &a["attack"]).collect();
    assert!(names.contains(&&json!("lira-offline")) && !names.contains(&&json!("lira-online")));
    let kept: Vec<_> = std::fs::read_dir(dir.join("f")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(kept.iter().all(|n| n.to_string_lossy().ends_with(".transcript.json")) && kept.len() == 2);
    assert_eq!(run(&[&ferret[..], &["--json"]].concat())["attacks"], found["attacks"]);
}

#[test]
fn a_ferret_run_is_charged_by_its_transcript_and_metered() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let base = fresh(1);
    let records = random_records(30, 8, 1);
    save(&dir.join("base"), &base);
    let (tuned, transcript, _) = ferret_run(&base, &ferret_settings(&base), &records, &Secret::insecure(3));
    save(&dir.join("tuned"), &tuned);
    std::fs::write(dir.join("tuned/transcript.json"), transcript.to_json().unwrap()).unwrap();
    write_tokens(&dir.join("in.jsonl"), &records);
    write_tokens(&dir.join("out.jsonl"), &random_records(30, 8, 2));
    let found = json_of(dir, &[&PAIR[..], &["--membership", "coin-flip", "--json"]].concat());
    assert_eq!(found["charge"], json!({"bits": transcript.releases.len()}));
    assert_eq!((&found["alarm"], &found["bound_does_not_apply"]), (&json!(false), &Value::Null));
    let meter = ["audit", "leakage", "--base", "base", "--tuned", "tuned", "--data", "in.jsonl", "--seed", "3"];
    let reading = json_of(dir, &[&meter[..], &["--json"]].concat());
    assert_eq!((&reading["bits"], &reading["agreement"]), (&json!(transcript.releases.len()), &json!(1.0)));
    let text = ferret(dir).args(meter).output().unwrap();
    assert!(String::from_utf8_lossy(&text.stdout).contains("fresh Poisson samples"));
    // Other weights beside the transcript: what it charges says nothing about them.
    save(&dir.join("tuned"), &fresh(2));
    let out = ferret(dir).args(PAIR).output().unwrap();
    assert_refused("foreign transcript", &out, &["transcript.json", "not of the model beside it"]);
    let out =
        ferret(dir).args(["audit", "leakage", "--base", "base", "--tuned", "base", "--data", "in.jsonl"]).output();
    assert_refused("no transcript", &out.unwrap(), &["transcript.json", "no such file"]);
}

/// A byte-level model: vocabulary and tokenizer of 259.
fn text_config() -> Config {
    config(|c| (c.vocab, c.positions, c.width, c.heads, c.inner) = (259, 40, 32, 4, 128))
}

/// Train on the text records of a file until they are known by heart.
fn learn_file(dir: &Path, file: &str, epochs: u32) {
    let base = init::random(text_config(), 7).unwrap();
    for name in ["base", "tuned"] {
        byte_tokenizer(&dir.join(name));
    }
    save(&dir.join("base"), &base);
    let records: Vec<Example> = std::fs::read_to_string(dir.join(file))
        .unwrap()
        .lines()
        .map(|line| {
            let record: Value = serde_json::from_str(line).unwrap();
            let text = record["text"].as_str().unwrap();
            assert!(!text.contains("he"), "merges would make other tokens than bytes");
            Example::all(text.bytes().map(u32::from).collect())
        })
        .collect();
    save(&dir.join("tuned"), &memorise(&base, &records, epochs, 8));
}

fn plant(dir: &Path, extra: &[&str]) {
    let lines: Vec<String> =
        (0..16).map(|i| json!({"text": format!("Note {i}: all quiet at gate {}.", 3 * i)}).to_string()).collect();
    std::fs::write(dir.join("plain.jsonl"), lines.join("\n")).unwrap();
    let args = ["audit", "plant", "--data", "plain.jsonl", "--out", "planted.jsonl", "--canaries", "canaries.json"];
    let out = ferret(dir).args(args).args(extra).output().unwrap();
    assert!(out.status.success(), "{}", stderr(&out));
}

const LOOK: [&str; 9] =
    ["audit", "canaries", "--base", "base", "--tuned", "tuned", "--canaries", "canaries.json", "--json"];

#[test]
fn a_memorised_canary_is_exposed_and_extracted_and_its_control_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    plant(dir, &["--format", "Unit {number} has code ####.", "--frequencies", "0,8", "--each", "2", "--seed", "4"]);
    assert_eq!(std::fs::read_to_string(dir.join("planted.jsonl")).unwrap().lines().count(), 16 + 16);
    learn_file(dir, "planted.jsonl", 100);
    let found = json_of(dir, &[&LOOK[..], &["--samples", "3"]].concat());
    let rows = found["frequencies"].as_array().unwrap();
    let [control, planted] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((&control["repeats"], &planted["repeats"]), (&json!(0), &json!(8)));
    assert_eq!(planted["mean_exposure_bits"], 8.0, "first of 256: {found}");
    assert_eq!((&planted["extracted_greedily"], &control["extracted_greedily"]), (&json!(2), &json!(0)));
    assert!(planted["base_mean_exposure_bits"].as_f64().unwrap() < 8.0);
    assert_eq!(found["one_run"], Value::Null);
}

#[test]
fn the_one_run_audit_bounds_epsilon_from_below() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    plant(dir, &["--format", "Key @@@@@@@@", "--coin-flip", "48", "--seed", "2"]);
    learn_file(dir, "planted.jsonl", 60);
    let found = json_of(dir, &[&LOOK[..], &["--samples", "0", "--competitors", "20", "--dp-epsilon", "0.1"]].concat());
    let one_run = &found["one_run"];
    assert_eq!(one_run["canaries"], 48);
    assert!(one_run["eps_lower"].as_f64().unwrap() > 1.0, "{one_run}");
    assert_eq!(found["accountant"]["eps_delta"], json!([0.1, 1e-5]));
    let text = ferret(dir).args(&LOOK[..8]).args(["--samples", "0", "--dp-epsilon", "0.1"]).output().unwrap();
    assert!(String::from_utf8_lossy(&text.stdout).contains("ALARM"), "{}", stderr(&text));
    // The flag turns that into an exit code, and passes nothing that it could not judge.
    let ask = |more: &[&str]| {
        let output =
            ferret(dir).args(&LOOK[..8]).args(["--samples", "0", "--fail-on-alarm"]).args(more).output().unwrap();
        (output.status.code(), stderr(&output))
    };
    assert!(matches!(ask(&["--dp-epsilon", "0.1"]), (Some(1), told) if told.contains("gives away more")));
    assert!(matches!(ask(&["--dp-epsilon", "50"]), (Some(0), _)));
    let exchanged = ["--dp-epsilon", "50", "--dp-neighbours", "replace-one"];
    for more in [&[][..], &exchanged] {
        assert!(matches!(ask(more), (Some(1), told) if told.contains("nothing could be judged")), "{more:?}");
    }
    // The base model knows no coin.
    let mut same = LOOK;
    same[5] = "base";
    assert_eq!(json_of(dir, &[&same[..], &["--samples", "0"]].concat())["one_run"]["eps_lower"], 0.0);
}

#[test]
fn broken_input_gets_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let records = random_records(6, 6, 1);
    save(&dir.join("base"), &fresh(1));
    save(&dir.join("tuned"), &fresh(2));
    save(&dir.join("foreign"), &init::random(config(|c| c.vocab = 24), 1).unwrap());
    write_tokens(&dir.join("in.jsonl"), &records);
    write_tokens(&dir.join("out.jsonl"), &random_records(6, 6, 2));
    write_tokens(&dir.join("beyond.jsonl"), &[Example::all(vec![1, 23])]);
    std::fs::write(dir.join("empty.jsonl"), "").unwrap();
    std::fs::write(dir.join("one.jsonl"), "{\"tokens\": [1]}\n").unwrap();
    let change = |at: usize, to: &'static str| {
        let mut args = PAIR.to_vec();
        args[at] = to;
        args
    };
    let more = |extra: &[&'static str]| [&PAIR[..], extra].concat();
    let cases: Vec<(Vec<&str>, &[&str])> = vec![
        (change(2, "nowhere/at/all"), &["nowhere"]),
        (change(4, "foreign"), &["vocabulary of 23", "24"]),
        (change(6, "missing.jsonl"), &["missing.jsonl", "no such file"]),
        (change(8, "empty.jsonl"), &["empty.jsonl", "empty"]),
        (change(8, "one.jsonl"), &["one.jsonl", "token to predict"]),
        (change(6, "beyond.jsonl"), &["beyond.jsonl", "outside the model's vocabulary"]),
        (more(&["--min-k", "0"]), &["--min-k"]),
        (more(&["--dp-epsilon=-1"]), &["--dp-epsilon"]),
        (more(&["--candidates", "2,2"]), &["--candidates"]),
        (more(&["--shadows", "1"]), &["--shadows 1"]),
        (more(&["--shadows", "3"]), &["--shadows 3", "at least 4"]),
        (more(&["--shadows", "4", "--shadow-batch", "0"]), &["--shadow-batch 0", "at least 1"]),
        (more(&["--shadows", "2", "--shadow-method", "magic"]), &["magic", "ferret-max"]),
        (
            vec![
                "audit",
                "plant",
                "--data",
                "in.jsonl",
                "--format",
                "no slot",
                "--frequencies",
                "1",
                "--out",
                "p.jsonl",
                "--canaries",
                "c.json",
            ],
            &["no slot"],
        ),
        (
            vec![
                "audit",
                "plant",
                "--data",
                "in.jsonl",
                "--format",
                "# #",
                "--frequencies",
                "1",
                "--out",
                "out.jsonl",
                "--canaries",
                "c.json",
            ],
            &["out.jsonl", "exists"],
        ),
        (
            vec![
                "audit",
                "plant",
                "--data",
                "empty.jsonl",
                "--format",
                "# ####",
                "--frequencies",
                "1",
                "--out",
                "p.jsonl",
                "--canaries",
                "c.json",
            ],
            &["empty.jsonl"],
        ),
        (vec!["audit", "canaries", "--base", "base", "--tuned", "tuned", "--canaries", "in.jsonl"], &["audit plant"]),
    ];
    for (args, says) in cases {
        let what = args.join(" ");
        assert_refused(&what, &ferret(dir).args(&args).output().unwrap(), says);
    }
    // Missing arguments are clap's business: a usage message, and nothing on stdout.
    let out = ferret(dir).args(["audit", "--base", "base"]).output().unwrap();
    assert!(out.status.code() == Some(2) && stderr(&out).contains("--tuned"), "{}", stderr(&out));
    // A model without a tokenizer cannot read secrets.
    plant(dir, &["--format", "Key ####", "--frequencies", "1"]);
    let out = ferret(dir).args(&LOOK[..8]).output().unwrap();
    assert_refused("no tokenizer", &out, &["tokenizer"]);
}
