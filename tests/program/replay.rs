//! A FERRET run is its transcript: replay against brute force, and the verbs `replay` and `verify`.

use crate::common::bits;
use crate::io_support::stderr;
use ferret::backend::{Cpu, Memory};
use ferret::method::ferret::replay::save;
use ferret::method::ferret::transcript::on_grid;
use ferret::method::ferret::{Cuts, MaskKind, Message, Release, Releases, Replayer, Settings, Transcript, replay};
use ferret::model::checkpoint::{self, Dtype, SaveOptions};
use ferret::model::init::Preset;
use ferret::model::{Config, Decoder, ParamId, Weights};
use ferret::optim::{Route, Schedule, Silent};
use ferret::rng::{Direction, DirectionStream, coin};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn config() -> Config {
    Config {
        vocab: 97,
        positions: 24,
        width: 16,
        layers: 2,
        heads: 2,
        kv_heads: 2,
        head_width: 8,
        inner: 64,
        eos: None,
        ..Preset::Tiny.config()
    }
}

fn base() -> Weights {
    let mut weights = Weights::zeros(config());
    for (i, t) in weights.tensors.iter_mut().enumerate() {
        DirectionStream::new(77, 0, i as u32, Direction::Sphere, t.len()).fill(0, t);
    }
    weights
}

/// Two tensors a group, 1.5 fires a step expected over 80 steps.
fn settings() -> Settings {
    let ids: Vec<ParamId> = base().layout.ids().collect();
    let members: Vec<Vec<ParamId>> = ids.chunks(2).map(<[_]>::to_vec).collect();
    Settings {
        epsilon: 0.8,
        records: 1000,
        batch: 10,
        steps: Some(80),
        clip: 1.5,
        learning_rate: 2e-3,
        weight_decay: 1e-2,
        seed: 12_345,
        ..Settings::paper("ferret-half", Cuts::of(&members).unwrap())
    }
}

/// Bits that no data made: the coin of another seed.
fn releases(settings: &Settings, steps_run: u32) -> Releases {
    let fires = settings.fires(steps_run);
    let bits = fires.iter().map(|&(t, g)| coin(999, t, g));
    match settings.release {
        Release::Gaussian { dither } => {
            let noisy = |(i, b): (usize, i8)| on_grid(f64::from(b) + dither * (i as f64 * 0.37).sin(), settings.clip);
            Releases::Scalars(bits.enumerate().map(noisy).collect())
        }
        _ => Releases::Bits(bits.collect()),
    }
}

/// A run as a trainer makes it: weights read at every fired step, releases applied one step at a time.
fn train(settings: &Settings, steps_run: u32) -> (Weights, Transcript) {
    let mut decoder = Decoder::new(Cpu::<f32>::new(), base()).unwrap();
    let (b, weights) = (&decoder.backend, &mut decoder.params);
    let releases = releases(settings, steps_run);
    let mut replayer = Replayer::new(&decoder.layout, settings).unwrap();
    let mut i = 0;
    for step in settings.fires(steps_run).chunk_by(|a, b| a.0 == b.0) {
        replayer.catch_up(b, step[0].0, weights);
        let now: Vec<(u32, Message)> = step
            .iter()
            .map(|f| {
                i += 1;
                let released = match &releases {
                    Releases::Bits(b) => Message::Bit(b[i - 1]),
                    Releases::Scalars(s) => Message::Scalar(s[i - 1]),
                };
                (f.1, released)
            })
            .collect();
        let directions: Vec<_> = step.iter().map(|f| replayer.plan().direction(f.0, f.1)).collect();
        replayer.step(b, step[0].0, &now, &directions, weights).unwrap();
    }
    replayer.catch_up(b, steps_run, weights);
    let weights = decoder.weights().unwrap();
    let transcript = Transcript {
        base_sha256: checkpoint::tensors_sha256(&base()),
        tuned_sha256: Some(checkpoint::tensors_sha256(&weights)),
        settings: settings.clone(),
        steps_run,
        releases,
    };
    (weights, transcript)
}

/// The run once more, from the definitions: every group at every step, whole directions, nothing lazy.
fn brute_force(s: &Settings, steps_run: u32) -> Vec<Vec<f32>> {
    let mut w = base().tensors;
    let members = s.groups.members(&s.tune.ids(&base().layout).unwrap()).unwrap();
    let released: Vec<f32> = match releases(s, steps_run) {
        Releases::Bits(b) => b.iter().map(|&b| f32::from(b) * s.clip as f32).collect(),
        Releases::Scalars(x) => x,
    };
    let fires: std::collections::HashMap<_, _> = s.fires(steps_run).into_iter().zip(released).collect();
    let mut state: Vec<Vec<[f32; 2]>> = w.iter().map(|t| vec![[0.0; 2]; t.len()]).collect();
    let mut powers = vec![(1.0f64, 1.0f64); members.len()];
    for step in 0..steps_run {
        let lr = s.schedule.rate(s.learning_rate, step, s.steps());
        for (g, ids) in members.iter().enumerate() {
            let scale = fires.get(&(step, g as u32));
            if scale.is_none() && (s.silent == Silent::None || s.route == Route::Direct) {
                continue;
            }
            let mut u = vec![0.0; ids.iter().map(|id| w[id.0].len()).sum()];
            DirectionStream::new(s.seed, step, g as u32, s.direction, u.len()).fill(0, &mut u);
            powers[g] = (powers[g].0 * 0.9, powers[g].1 * 0.999);
            let (c1, c2) = (1.0 - powers[g].0, 1.0 - powers[g].1);
            let places = ids.iter().flat_map(|id| (0..w[id.0].len()).map(|i| (id.0, i))).collect::<Vec<_>>();
            for ((t, i), u) in places.into_iter().zip(u) {
                let w = &mut w[t][i];
                if s.route == Route::Direct {
                    *w -= (lr * f64::from(scale.unwrap() * 1.0)) as f32 * u;
                    continue;
                }
                let g = scale.map_or(0.0, |scale| scale * u);
                let [m, v] = &mut state[t][i];
                *m = 0.9f32 * *m + (1.0f64 - 0.9) as f32 * g;
                *v = 0.999f32 * *v + (1.0f64 - 0.999) as f32 * g * g;
                *m = if m.abs() < 2f32.powi(-60) { 0.0 } else { *m };
                *v = if v.abs() < 2f32.powi(-100) { 0.0 } else { *v };
                let denominator = v.sqrt() * (1.0 / c2.sqrt()) as f32 + 1e-8;
                *w = *w * (1.0 - lr * s.weight_decay) as f32 - (lr / c1) as f32 * (*m / denominator);
            }
        }
    }
    w
}

#[test]
fn training_replay_and_brute_force_agree_to_the_bit() {
    type Edit = fn(&mut Settings);
    let edits: [(&str, Edit); 8] = [
        ("adamw zero", |_| {}),
        ("adamw none", |s| s.silent = Silent::None),
        ("direct", |s| {
            s.route = Route::Direct;
            s.weight_decay = 0.0;
        }),
        ("linear", |s| s.schedule = Schedule::Linear { warmup: 0.1 }),
        ("rademacher", |s| s.direction = Direction::Rademacher),
        ("exact", |s| s.mask = MaskKind::Exact),
        ("rr", |s| s.release = Release::Rr { flip: 0.055, unbiased: false }),
        ("gaussian", |s| s.release = Release::Gaussian { dither: 0.8 }),
    ];
    for (name, edit) in edits {
        let mut s = settings();
        edit(&mut s);
        for steps_run in [80, 33] {
            let (trained, transcript) = train(&s, steps_run);
            assert!(transcript.releases.len() > 10, "{name}: the test needs fires");
            let text = transcript.to_json().unwrap();
            let read = Transcript::from_json(&text, Path::new("t")).unwrap();
            assert_eq!(read, transcript);
            let replayed = replay(base(), &read, |_| {}).unwrap();
            assert_eq!(bits(&replayed.tensors), bits(&trained.tensors), "{name}: replay");
            assert_eq!(bits(&brute_force(&s, steps_run)), bits(&trained.tensors), "{name}: brute force");
            assert_ne!(bits(&base().tensors), bits(&trained.tensors));
        }
    }
}

#[test]
fn an_unbiased_bit_counts_more() {
    let mut s = settings();
    (s.route, s.weight_decay) = (Route::Direct, 0.0);
    let (plain, _) = train(&s, 80);
    s.release = Release::Rr { flip: 0.25, unbiased: true };
    let (double, _) = train(&s, 80);
    let moved = |w: &Weights| -> f64 {
        let pairs = w.tensors.iter().flatten().zip(base().tensors.into_iter().flatten()).map(|(a, b)| f64::from(a - b));
        pairs.map(|d| d * d).sum::<f64>().sqrt()
    };
    assert!((moved(&double) / moved(&plain) - 2.0).abs() < 1e-3);
}

#[test]
fn nothing_outside_the_alphabet_is_applied() {
    let s = settings();
    let mut decoder = Decoder::new(Cpu::<f32>::new(), base()).unwrap();
    let mut replayer = Replayer::new(&decoder.layout, &s).unwrap();
    let mut step = |step, releases: &[(u32, Message)]| {
        let known = releases.iter().map(|r| if r.0 < 5 { r.0 } else { 0 });
        let directions: Vec<_> = known.map(|g| replayer.plan().direction(step, g)).collect();
        let applied = replayer.step(&decoder.backend, step, releases, &directions, &mut decoder.params);
        let now = decoder.params.iter().map(|p| decoder.backend.download_weight(p).unwrap()).collect::<Vec<_>>();
        (applied, bits(&now) != bits(&base().tensors))
    };
    let bad: [&[(u32, Message)]; 7] = [
        &[(0, Message::Bit(1)), (1, Message::Bit(0))],
        &[(0, Message::Bit(2))],
        &[(0, Message::Scalar(1.0))],
        &[(0, Message::Scalar(f32::NAN))],
        &[(1, Message::Bit(1)), (0, Message::Bit(1))],
        &[(1, Message::Bit(1)), (1, Message::Bit(1))],
        &[(999, Message::Bit(1))],
    ];
    for releases in bad {
        assert!(matches!(step(5, releases), (Err(_), false)), "{releases:?}");
    }
    assert!(matches!(step(80, &[]), (Err(_), false)));
    assert!(matches!(step(5, &[(0, Message::Bit(1))]), (Ok(()), true)));
    assert!(step(5, &[(0, Message::Bit(1))]).0.is_err(), "a step is made once");
}

#[test]
fn a_scalar_off_the_grid_is_refused() {
    let s = Settings { release: Release::Gaussian { dither: 1.5 }, clip: 0.3, ..settings() };
    let (_, mut transcript) = train(&s, 80);
    transcript.check().unwrap();
    let Releases::Scalars(scalars) = &mut transcript.releases else { panic!("scalars") };
    scalars[0] = scalars[0].next_up();
    assert!(transcript.check().unwrap_err().to_string().contains("multiple of C"));
}

#[test]
fn the_run_is_pinned() {
    // A change of the stream's format or of any update shows here; old transcripts would no longer replay.
    let (_, transcript) = train(&settings(), 80);
    let pinned = "7ebd1fce7ae18ae27f793536b4f802faed9bf7f7eb6a56c85334af4d2aa4501e";
    assert_eq!(transcript.tuned_sha256.unwrap(), pinned);
}

struct Run {
    folder: tempfile::TempDir,
    base: PathBuf,
    tuned: PathBuf,
}

fn saved() -> Run {
    let folder = tempfile::tempdir().unwrap();
    let (base_dir, tuned_dir) = (folder.path().join("base"), folder.path().join("tuned"));
    checkpoint::save(&base_dir, &base(), &SaveOptions::fresh(Dtype::F32)).unwrap();
    let loaded = checkpoint::load_folder(&base_dir).unwrap();
    let (tuned, transcript) = train(&settings(), 80);
    save(&tuned_dir, &loaded, &tuned, &transcript).unwrap();
    Run { folder, base: base_dir, tuned: tuned_dir }
}

fn ferret(args: &[&dyn AsRef<std::ffi::OsStr>], threads: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ferret")).args(args).env("RAYON_NUM_THREADS", threads).output().unwrap()
}

#[test]
fn the_program_rebuilds_the_checkpoint_byte_for_byte() {
    let run = saved();
    let transcript = run.tuned.join("transcript.json");
    for threads in ["1", "2", "5"] {
        let out = run.folder.path().join(format!("rebuilt-{threads}"));
        let args: [&dyn AsRef<_>; 9] =
            [&"replay", &"--base", &run.base, &"--transcript", &transcript, &"--out", &out, &"--quiet", &"--json"];
        let output = ferret(&args, threads);
        assert!(output.status.success(), "{}", stderr(&output));
        let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(summary["steps"], 80);
        for file in ["model.safetensors", "config.json", "transcript.json"] {
            let (a, b) = (std::fs::read(out.join(file)).unwrap(), std::fs::read(run.tuned.join(file)).unwrap());
            assert!(a == b, "{file} differs with {threads} threads");
        }
        let again = ferret(&args, threads);
        assert!(!again.status.success(), "an existing folder must not be overwritten");
        let output = ferret(&[&"verify", &out, &"--base", &run.base, &"--json"], threads);
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()["verified"], true);
    }
}

#[test]
fn a_changed_weight_is_found() {
    let run = saved();
    let file = run.tuned.join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let output = ferret(&[&"verify", &run.tuned, &"--base", &run.base], "2");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("differs in 1 of"), "{}", stderr(&output));
}

#[test]
fn a_wrong_base_is_refused() {
    let run = saved();
    let other = run.folder.path().join("other");
    let mut weights = base();
    weights.tensors[3][2] += 1e-3;
    checkpoint::save(&other, &weights, &SaveOptions::fresh(Dtype::F32)).unwrap();
    let out = run.folder.path().join("out");
    let transcript = run.tuned.join("transcript.json");
    for args in [
        &[&"replay" as &dyn AsRef<_>, &"--base", &other, &"--transcript", &transcript, &"--out", &out][..],
        &[&"verify", &run.tuned, &"--base", &other],
    ] {
        let output = ferret(args, "2");
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains("give the one it was trained from"), "{}", stderr(&output));
    }
    assert!(!out.exists());
}

/// The transcript after `edit`, its checksum made to fit again, as someone who knows the format would.
fn forge(run: &Run, edit: impl Fn(&mut serde_json::Value)) -> Output {
    use sha2::{Digest, Sha256};
    let text = std::fs::read_to_string(run.tuned.join("transcript.json")).unwrap();
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    edit(&mut value);
    value["checksum"] = "".into();
    let sum = Sha256::digest(serde_json::to_string(&value).unwrap());
    value["checksum"] = sum.iter().map(|b| format!("{b:02x}")).collect::<String>().into();
    replay_text(run, &serde_json::to_string_pretty(&value).unwrap())
}

fn replay_text(run: &Run, text: &str) -> Output {
    let path = run.folder.path().join("forged.json");
    std::fs::write(&path, text).unwrap();
    let out = run.folder.path().join("forged");
    let output = ferret(&[&"replay", &"--base", &run.base, &"--transcript", &path, &"--out", &out], "2");
    assert_eq!(output.status.success(), out.exists(), "written if and only if accepted");
    output
}

#[test]
fn a_tampered_transcript_is_refused() {
    let run = saved();
    assert!(forge(&run, |_| {}).status.success(), "the forger's tools work");
    std::fs::remove_dir_all(run.folder.path().join("forged")).unwrap();
    type Edit = fn(&mut serde_json::Value);
    let edits: &[(&str, Edit)] = &[
        ("releases are listed", |t| t["bits"] = (t["bits"].as_str().unwrap().to_owned() + "+").into()),
        ("releases are listed", |t| t["bits"] = t["bits"].as_str().unwrap()[1..].into()),
        ("expected + and - only", |t| t["bits"] = ("0".to_owned() + &t["bits"].as_str().unwrap()[1..]).into()),
        ("not to the", |t| {
            let bits = t["bits"].as_str().unwrap();
            let first = if &bits[..1] == "+" { "-" } else { "+" };
            t["bits"] = (first.to_owned() + &bits[1..]).into();
        }),
        ("releases are listed", |t| t["settings"]["seed"] = 54_321.into()),
        ("p is", |t| t["settings"]["p"] = 0.01.into()),
        ("sampling_rate is", |t| t["settings"]["sampling_rate"] = 0.02.into()),
        ("releases are listed", |t| t["settings"]["epsilon"] = 0.4.into()),
        ("releases are listed", |t| t["settings"]["records"] = 1100.into()),
        ("not to the", |t| t["settings"]["learning_rate"] = 0.002_000_1.into()),
        ("not to the", |t| t["settings"]["direction"] = "rademacher".into()),
        ("not to the", |t| t["settings"]["silent"] = "none".into()),
        ("releases are listed", |t| t["steps_run"] = 40.into()),
        ("of 80 planned", |t| t["steps_run"] = 81.into()),
        ("fires is", |t| t["fires"] = 3.into()),
        ("trained from", |t| t["base_sha256"] = "0".repeat(64).into()),
        ("not to the", |t| t["tuned_sha256"] = "0".repeat(64).into()),
        ("hexadecimal", |t| t["tuned_sha256"] = "short".into()),
        ("unfinished", |t| t["tuned_sha256"] = serde_json::Value::Null),
        ("cannot be replayed", |t| {
            t["settings"]["payload"] = "true-gradient".into();
            t["bits"] = "".into();
        }),
        ("scalars", |t| t["scalars"] = vec![1.0].into()),
        ("unknown field", |t| t["extra"] = 1.into()),
        ("unknown field", |t| t["settings"]["extra"] = 1.into()),
        ("does not name groups", |t| t["settings"]["groups"] = "0x1".into()),
        ("is it another model", |t| t["settings"]["groups"] = "14x1".into()),
        ("version 3", |t| t["version"] = 3.into()),
        ("is no transcript", |t| t["format"] = "other".into()),
    ];
    for (sentence, edit) in edits {
        let output = forge(&run, edit);
        assert_eq!(output.status.code(), Some(1), "{sentence}");
        assert!(stderr(&output).contains(sentence), "expected \"{sentence}\", got: {}", stderr(&output));
    }
    // Edits by hand, the checksum left as it was: settings that no weight depends on.
    let text = std::fs::read_to_string(run.tuned.join("transcript.json")).unwrap();
    for (from, to) in
        [("ferret-half", "ferret-max"), ("\"poisson\"", "\"shuffle\""), ("\"epochs\": 1", "\"epochs\": 2")]
    {
        assert!(text.contains(from), "{text}");
        let output = replay_text(&run, &text.replace(from, to));
        assert!(stderr(&output).contains("was changed after it was written"), "{from}: {}", stderr(&output));
    }
    for cut in [0, 1, text.len() / 2, text.len() - 3] {
        assert_eq!(replay_text(&run, &text[..cut]).status.code(), Some(1));
    }
}

/// A folder whose transcript has one bit to show for `steps` steps of 1,000 groups.
fn endless(run: &Run, name: &str, (steps, steps_run): (u64, u64), epsilon: f64, mask: &str) -> PathBuf {
    let text = std::fs::read_to_string(run.tuned.join("transcript.json")).unwrap();
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    (value["bits"], value["fires"], value["steps_run"]) = ("+".into(), 1.into(), steps_run.into());
    let s = &mut value["settings"];
    (s["steps"], s["groups"], s["epsilon"]) = (steps.into(), "1000x1".into(), epsilon.into());
    s["mask"] = mask.into();
    let dir = run.folder.path().join(name);
    std::fs::create_dir(&dir).unwrap();
    for file in ["model.safetensors", "config.json"] {
        std::fs::copy(run.tuned.join(file), dir.join(file)).unwrap();
    }
    std::fs::write(dir.join("transcript.json"), serde_json::to_string_pretty(&value).unwrap()).unwrap();
    dir
}

#[cfg(unix)]
#[test]
fn a_small_transcript_of_endless_fires_is_refused_at_once_and_in_little_memory() {
    let run = saved();
    let (members, others) = (run.folder.path().join("in.jsonl"), run.folder.path().join("out.jsonl"));
    std::fs::write(&members, "{\"tokens\":[1,2,3]}\n").unwrap();
    std::fs::write(&others, "{\"tokens\":[4,5,6]}\n").unwrap();
    let all = (10_000_000, 10_000_000);
    for (name, sentence, steps, epsilon, mask) in [
        ("hundred-million", "slots", (100_000_000, 100_000_000), 1e12, "bernoulli"),
        ("certain", "more than 1 fires", all, 1e12, "bernoulli"),
        ("likely", "more than 1 fires", all, 6.9e7, "bernoulli"),
        ("exact", "more than 1 fires", all, 1e12, "exact"),
        ("drawn", "with mask exact", (10_000_000, 9), 6.9e7, "exact"),
    ] {
        let dir = endless(&run, name, steps, epsilon, mask);
        let at = |path: &Path| path.to_str().unwrap().to_owned();
        let (base, tuned) = (at(&run.base), at(&dir));
        for args in [
            format!("replay --base {base} --transcript {tuned}/transcript.json --out {tuned}/new"),
            format!("verify {tuned} --base {base}"),
            format!("audit --base {base} --tuned {tuned} --members {} --nonmembers {}", at(&members), at(&others)),
        ] {
            // Two gigabytes of address space: listed, the fires would take eighty and more.
            let limited = format!("ulimit -v 2000000; exec {} {args}", env!("CARGO_BIN_EXE_ferret"));
            let begun = std::time::Instant::now();
            let output = Command::new("sh").args(["-c", &limited]).env("RAYON_NUM_THREADS", "2").output().unwrap();
            assert!(begun.elapsed().as_secs_f64() < 5.0, "{name}: {args} took {:?}", begun.elapsed());
            assert_eq!(output.status.code(), Some(1), "{name}: {args}: {}", stderr(&output));
            assert!(stderr(&output).contains(sentence), "{name}: {args}: {}", stderr(&output));
        }
    }
}
