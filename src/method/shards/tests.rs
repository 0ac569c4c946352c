use super::*;
use crate::backend::Cpu;
use crate::data::{self, Example, LoadOptions, Unit};
use crate::method::dense;
use crate::method::ferret::{self, BatchPer, Cuts, Payload, Release};
use crate::method::training::{Request, Training};
use crate::method::{Run, Sensitive, Task};
use crate::model::{ParamId, Weights, checkpoint};
use crate::progress::{Progress, Unheard};
use crate::ranks::threads::{Thread, on, on_threads, threads};
use std::sync::atomic::{AtomicU64, Ordering};

fn base() -> checkpoint::Checkpoint<crate::kernel::Stored> {
    checkpoint::load_folder_stored(Path::new("tests/fixtures/gpt2_tiny")).unwrap()
}

/// Different records of different lengths, shard by shard.
fn shards(sizes: &[usize]) -> Vec<Vec<Example>> {
    let mut random = Secret::insecure(77).stream(crate::rng::SecretDomain::Sampling, 0, 0);
    let mut record = || {
        let len = 3 + random.below(12);
        Example::all((0..len).map(|_| random.below(100) as u32).collect())
    };
    sizes.iter().map(|&n| (0..n).map(|_| record()).collect()).collect()
}

fn ferret(records: usize, batch: u64, f: impl FnOnce(&mut ferret::Settings)) -> Method {
    let weights: Weights = base().weights.into_form();
    let ids: Vec<ParamId> = weights.layout.ids().collect();
    let groups = Cuts::of(&ids.chunks(5).map(<[ParamId]>::to_vec).collect::<Vec<_>>()).unwrap();
    let mut s = ferret::Settings {
        epsilon: 20.0,
        records: records as u64,
        batch,
        epochs: 3,
        micro_batch: 2,
        learning_rate: 1e-2,
        ..ferret::Settings::paper("ferret-max", groups)
    };
    f(&mut s);
    Method::Ferret(s)
}

/// The request of one rank.
fn request(ranks: Arc<Thread>, records: &[Example], method: &Method, out: &Path, resume: bool) -> Request {
    let mut own = Dataset::default();
    own.examples = records.to_vec();
    Request {
        base: base(),
        records: own,
        shards: true,
        held_out: None,
        method: method.clone(),
        stop: None,
        delta: 1e-5,
        out: out.to_owned(),
        insecure_seed: Some(5),
        log_private: false,
        recompute: false,
        save_every: 1,
        resume,
        restart_diverged: false,
        call: None,
        ranks,
    }
}

/// Train on ranks that have a shard each; every rank's end.
fn train(
    ranks: &[Arc<Thread>],
    shards: &[Vec<Example>],
    method: &Method,
    out: &Path,
    by: &dyn Progress,
) -> Vec<Result<()>> {
    on(ranks, |ranks| {
        let request = request(ranks.clone(), &shards[ranks.rank()], method, out, true);
        let mut training = Training::open(request, &Unheard)?;
        training.run(Cpu::<f32>::new(), by)?;
        training.close()
    })
}

fn all_ok(done: Vec<Result<()>>) {
    done.into_iter().for_each(|d| d.unwrap());
}

fn transcript(out: &Path) -> ferret::Transcript {
    let path = out.join("transcript.json");
    ferret::Transcript::from_json(&std::fs::read_to_string(&path).unwrap(), &path).unwrap()
}

/// By brute force: of five records on two ranks, every set of them is drawn as often as independent coins say.
#[test]
fn the_sample_of_all_shards_has_the_law_of_poisson_sampling() {
    let (sizes, steps) = ([2usize, 3], 20_000u32);
    let keys: Vec<ShardKey> = (0..2)
        .map(|rank| ShardKey::new(Some(1), Place { rank, ranks: 2, records_sha256: String::new() }).unwrap())
        .collect();
    let parts: Vec<Samples> =
        keys.iter().zip(sizes).map(|(key, own)| Samples::of_shard(key.secret(), own, 5, 2).unwrap()).collect();
    let mut counts = [0u32; 32];
    let mut pairs = 0;
    let mut last = 0usize;
    for step in 0..steps {
        let mut set = 0usize;
        for (part, first) in parts.iter().zip([0, 2]) {
            part.known(step, 0).unwrap().into_iter().for_each(|i| set |= 1 << (first + i));
        }
        counts[set] += 1;
        // The first record of the first shard now, the first of the second shard a step ago.
        pairs += u32::from(set & 1 != 0 && last & 4 != 0);
        last = set;
    }
    let (n, s) = (f64::from(steps), 0.4f64);
    for (set, count) in counts.into_iter().enumerate() {
        let k = set.count_ones() as i32;
        let p = s.powi(k) * (1.0 - s).powi(5 - k);
        let off = f64::from(count) - n * p;
        assert!(off.abs() < 5.0 * (n * p * (1.0 - p)).sqrt(), "set {set:05b}: {count} of {}", n * p);
    }
    assert!((f64::from(pairs) - n * s * s).abs() < 5.0 * (n * s * s).sqrt(), "{pairs}");
    // The rate is of all records, whoever has few of them.
    assert!(Samples::of_shard(keys[0].secret(), 6, 5, 2).is_err());
}

/// With all records in every batch nothing is left to chance: the sum over ranks is that of one process, every record in it once.
#[test]
fn every_record_counts_once() {
    let shards = shards(&[7, 1, 4]);
    let all = shards.concat();
    let dir = tempfile::tempdir().unwrap();
    let s = ferret(all.len(), all.len() as u64, |s| (s.batch_per, s.epochs) = (BatchPer::Bit, 15));
    let out = dir.path().join("ferret");
    all_ok(train(&threads(3), &shards, &s, &out, &Unheard));
    let Method::Ferret(settings) = &s else { unreachable!() };
    let weights: Weights = base().weights.into_form();
    let secret = Secret::insecure(5);
    let task = || Task {
        base: weights.clone(),
        base_sha256: checkpoint::tensors_sha256(&weights),
        settings: (),
        stop: None,
        secret: &secret,
        records: Sensitive::new(&all[..]),
    };
    let mut one = ferret::Trainer::new(Cpu::<f32>::new(), task().with(settings.clone()), None).unwrap();
    while one.step().unwrap().is_some() {}
    let (_, one, _) = one.end().unwrap();
    assert!(one.releases.len() > 20);
    assert_eq!(transcript(&out).releases, one.releases);

    // Of methods that promise nothing the mean is over all ranks' records too.
    let m = Method::Dense(dense::Settings {
        records: all.len() as u64,
        batch: all.len() as u64,
        epochs: 5,
        micro_batch: 2,
        weight_decay: 0.0,
        ..dense::Settings::usual(dense::Method::Nonprivate)
    });
    let out = dir.path().join("nonprivate");
    all_ok(train(&threads(3), &shards, &m, &out, &Unheard));
    let mut one = task().with(m).begin(Cpu::<f32>::new(), None).unwrap();
    while one.step().unwrap().is_some() {}
    let one: Weights = one.finish().unwrap().weights.into_form();
    let there: Weights = checkpoint::load_folder(&out).unwrap().weights;
    let length = |a: &Weights, b: &Weights| -> f64 {
        let both = a.tensors.iter().flatten().zip(b.tensors.iter().flatten());
        both.map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt()
    };
    let (moved, off) = (length(&one, &weights), length(&one, &there));
    assert!(moved > 0.01 && off < 1e-3 * moved, "off by {off} of {moved}");
}

/// What crosses in a step is as long whatever was sampled, is one number a fired group, and nothing else crosses at all.
#[test]
fn only_sums_cross_and_their_length_tells_nothing() {
    let shards = shards(&[9, 12, 3]);
    let dir = tempfile::tempdir().unwrap();
    // Three ranks, four records a batch: shards often have none of them.
    let s = ferret(24, 4, |_| ());
    let ranks = threads(3);
    let out = dir.path().join("tuned");
    all_ok(train(&ranks, &shards, &s, &out, &Unheard));
    let Method::Ferret(settings) = &s else { unreachable!() };
    let fires = settings.fires(u32::MAX);
    let widths: Vec<usize> = fires.chunk_by(|a, b| a.0 == b.0).map(|step| 8 * step.len()).collect();
    let seen = ranks[0].seen();
    let sums: Vec<&Vec<Vec<u8>>> = seen.iter().filter(|e| e.0 == "inner products").map(|e| &e.1).collect();
    assert_eq!(sums.len(), widths.len());
    for (given, width) in sums.iter().zip(&widths) {
        assert!(given.iter().all(|bytes| bytes.len() == *width));
    }
    // The samples did differ: the third rank's were empty and not.
    let empty = sums.iter().filter(|given| given[2].iter().all(|b| *b == 0)).count();
    assert!(empty > 2 && empty < sums.len() - 2, "{empty} of {}", sums.len());
    let mut names: Vec<&str> = seen.iter().map(|e| &e.0[..]).collect();
    names.sort();
    names.dedup();
    let expected = [
        "hashes of records",
        "how the run stands",
        "inner products",
        "key",
        "keys of shards are gone",
        "name of the state",
        "number of records",
        "result",
        "results are written",
        "salt",
        "state",
        "what binds the shards",
        "what the folder tells",
        "what the run is told",
    ];
    assert_eq!(names, expected);
    // Nor does what is told once hold a hash that others could make from a guess: of no exchange, of no shard.
    for (what, given) in &seen {
        for shard in &shards {
            let (hex, raw) = (
                examples_sha256(shard),
                Sha256::digest(shard[0].ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>()),
            );
            for bytes in given {
                let has = |needle: &[u8]| bytes.windows(needle.len()).any(|w| w == needle);
                assert!(!has(hex.as_bytes()) && !has(&raw[..8]), "{what}");
            }
        }
    }
    // The key of sampling stays where it is; the file goes.
    assert!((0..3).all(|rank| !key_path(&out, rank).exists()));
    let statement = std::fs::read_to_string(out.join("PRIVACY.md")).unwrap();
    assert!(
        statement.contains("The records lay on 3 ranks") && statement.contains("secure aggregation is not done"),
        "{statement}"
    );
}

/// Interrupts once it was asked so often.
struct After(AtomicU64);

impl Progress for After {
    fn advance(&self, _steps: u64) -> Result<()> {
        match self.0.fetch_sub(1, Ordering::SeqCst) {
            0..=1 => {
                self.0.store(1, Ordering::SeqCst);
                Err(Error::Interrupted("enough".into()))
            }
            _ => Ok(()),
        }
    }
}

#[test]
fn a_run_in_shards_goes_on_with_the_same_ranks_and_shards_alone() {
    let own = shards(&[6, 8]);
    let dir = tempfile::tempdir().unwrap();
    let s = ferret(14, 4, |s| s.release = Release::Rr { flip: 0.1, unbiased: false });
    let (one, out) = (dir.path().join("one"), dir.path().join("tuned"));
    all_ok(train(&threads(2), &own, &s, &one, &Unheard));
    let again = dir.path().join("again");
    all_ok(train(&threads(2), &own, &s, &again, &Unheard));
    assert_eq!(transcript(&again), transcript(&one));
    let stopped = train(&threads(2), &own, &s, &out, &After(AtomicU64::new(30)));
    assert!(
        stopped.iter().all(|d| matches!(d, Err(Error::Interrupted(_)))),
        "{:?}",
        stopped.iter().map(|d| d.as_ref().err().map(|e| e.to_string())).collect::<Vec<_>>()
    );
    assert!((0..2).all(|rank| key_path(&out, rank).is_file()));
    let refused = |shards: &[Vec<Example>], method: &Method, why: &str| {
        for end in train(&threads(shards.len()), shards, method, &out, &Unheard) {
            let said = end.unwrap_err().to_string();
            assert!(said.contains(why), "{said}");
        }
    };
    let swapped = [own[1][..6].to_vec(), [&own[1][6..], &own[0][..]].concat()];
    refused(&swapped, &s, "another shard");
    let three = [own[0].clone(), own[1][..5].to_vec(), own[1][5..].to_vec()];
    refused(&three, &s, "with as many ranks");
    let kept = std::fs::read(key_path(&out, 1)).unwrap();
    std::fs::remove_file(key_path(&out, 1)).unwrap();
    refused(&own, &s, "is not there");
    // The key of another run of the same rank and shard.
    let other = dir.path().join("other");
    let _ = train(&threads(2), &own, &s, &other, &After(AtomicU64::new(30)));
    std::fs::copy(key_path(&other, 1), key_path(&out, 1)).unwrap();
    refused(&own, &s, "began with other records");
    crate::fsio::write_private(&key_path(&out, 1), &kept).unwrap();
    all_ok(train(&threads(2), &own, &s, &out, &Unheard));
    assert_eq!(transcript(&out), transcript(&one));
    assert!((0..2).all(|rank| !key_path(&out, rank).exists()));
}

#[test]
fn shards_that_share_a_record_are_refused_by_every_rank() {
    let mut own = shards(&[6, 8, 5]);
    own[2][3] = own[0][1].clone();
    // What counts in the loss makes no other record of it.
    own[2][3].learn[1] = false;
    own[2][4] = own[0][1].clone();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("tuned");
    let s = ferret(19, 4, |_| ());
    for end in train(&threads(3), &own, &s, &out, &Unheard) {
        let said = end.unwrap_err().to_string();
        assert!(said.contains("ranks 0 and 2 have 1 records in common"), "{said}");
    }
    assert!(!out.exists() && std::fs::read_dir(dir.path()).unwrap().next().is_none());
    // Copies inside one shard are that rank's affair, and records without a target are nobody's.
    own[2] = vec![Example::all(vec![3]), own[2][0].clone(), own[2][0].clone(), Example::default(), own[2][1].clone()];
    own[0][0] = Example::all(vec![3]);
    all_ok(train(&threads(3), &own, &s, &out, &Unheard));
}

#[test]
fn a_user_in_two_shards_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let read = |name: &str, lines: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, lines).unwrap();
        let unit = Unit::User { most: None };
        data::load_examples(&path, None, &LoadOptions { unit, ..LoadOptions::new(&base().weights.config) }).unwrap()
    };
    let a = "{\"user\": \"ann\", \"tokens\": [1, 2, 3]}\n{\"user\": \"bob\", \"tokens\": [4, 5]}\n";
    let b = "{\"user\": \"cid\", \"tokens\": [1, 2, 3]}\n{\"user\": \"bob\", \"tokens\": [9, 5]}\n";
    let (a, b) = (read("a.jsonl", a), read("b.jsonl", b));
    for end in on_threads(2, |ranks| apart(&*ranks, if ranks.rank() == 0 { &a } else { &b })) {
        let said = end.unwrap_err().to_string();
        assert!(said.contains("ranks 0 and 1 have 1 users in common"), "{said}");
    }
    // The same words of two people are two people's.
    let c = read("c.jsonl", "{\"user\": \"cid\", \"tokens\": [1, 2, 3]}\n");
    all_ok(on_threads(2, |ranks| apart(&*ranks, if ranks.rank() == 0 { &a } else { &c })));
}

#[test]
fn what_would_tell_more_is_refused() {
    let s = ferret(20, 4, |_| ());
    check(&s, false).unwrap();
    let error = |method: &Method, logs| check(method, logs).unwrap_err().to_string();
    assert!(error(&s, true).contains("`log_private`"));
    assert!(error(&ferret(20, 4, |s| s.payload = Payload::TrueGradient), false).contains("true-gradient"));
    for sampler in [Sampler::Uniform, Sampler::Shuffle] {
        let s = ferret(20, 4, |s| s.sampler = sampler);
        assert!(error(&s, false).contains("set `sampler` poisson"));
        let key = ShardKey::new(Some(1), Place { rank: 0, ranks: 2, records_sha256: String::new() }).unwrap();
        assert!(Shard { key, records: 10 }.samples(&s.common()).is_err());
    }
    // The settings count all records, not those of one rank.
    let (own, dir) = (shards(&[6, 8]), tempfile::tempdir().unwrap());
    for end in train(&threads(2), &own, &ferret(6, 4, |_| ()), &dir.path().join("x"), &Unheard) {
        let said = end.unwrap_err().to_string();
        assert!(said.contains("14 records together, and the settings say 6"), "{said}");
    }
}
