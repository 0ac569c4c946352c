//! `--scales-from` and `--scales` as their users give them: a run, its replay, what it states, and what is refused.

use crate::io_support::kills::resume_to_the_same_files;
use crate::io_support::{TINY, ok, records, says, stderr, verb};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

fn train(method: &str, data: &Path, out: &Path, extra: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferret"));
    command.args(["train", "-e1", "--method", method, "--model", TINY, "--data", data.to_str().unwrap()]);
    command.args(["--out", out.to_str().unwrap(), "--epochs", "2", "--batch", "10", "--json"]);
    command.args(["--noise-multiplier", "1.3"]).args(extra);
    command
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn json_of(path: &Path) -> Value {
    serde_json::from_str(&read(path)).unwrap()
}

const ASSUMED: &str = "The scales on the sketch, one number for each tuned tensor, are settings, and public";

#[test]
fn a_run_with_scales_from_public_text_is_replayed_verified_and_states_what_it_rests_on() {
    let dir = tempfile::tempdir().unwrap();
    let (data, public) = (records(dir.path(), "records.jsonl", 3, 3), records(dir.path(), "public.jsonl", 5, 5));
    let public = public.to_str().unwrap();
    let adapter = &["--tune", "lora", "--lora-targets", "c_attn,c_fc,c_proj"][..];
    for (name, tune) in [("all", &[][..]), ("last", &["--tune", "last:1"]), ("adapter", adapter)] {
        let fixed = [&["--insecure-seed", "1", "--bits-per-step", "100"], tune].concat();
        let run = |name: &str, extra: &[&str]| {
            let out = dir.path().join(name);
            let output = train("ferret-k", &data, &out, &[&fixed[..], extra].concat()).output().unwrap();
            let told = stderr(&output);
            ok(output);
            (out, told)
        };
        let (out, told) = run(name, &["--scales-from", public, "--threads", "1"]);
        let transcript = json_of(&out.join("transcript.json"));
        assert_eq!(transcript["version"], 3);
        let scales: Vec<i64> =
            transcript["settings"]["scales"].as_array().unwrap().iter().map(|e| e.as_i64().unwrap()).collect();
        assert!(scales.iter().any(|e| *e != scales[0]), "{scales:?}");
        assert!(told.contains("the promise holds if they come from public text"), "{told}");
        // What the note tells is the same run, at any number of threads.
        let list = scales.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
        let given = format!("--scales={list}");
        assert!(told.contains(&format!("note: scales from {public}: {given}")), "{told}");
        let (same, _) = run(&format!("{name}-given"), &[&given, "--threads", "3"]);
        let (bare, _) = run(&format!("{name}-bare"), &[]);
        let weights = ["model.safetensors", "adapter_model.safetensors"];
        let file = *weights.iter().find(|file| out.join(file).exists()).unwrap();
        for file in [file, "transcript.json", "privacy.json"] {
            let bytes = |dir: &Path| std::fs::read(dir.join(file)).unwrap();
            assert!(bytes(&out) == bytes(&same) && bytes(&out) != bytes(&bare), "{name}: {file}");
        }
        let again = dir.path().join(format!("{name}-again"));
        let from = out.join("transcript.json");
        let replayed =
            verb(&["replay", "--base", TINY, "--transcript", from.to_str().unwrap(), "--out", again.to_str().unwrap()]);
        assert!(replayed.status.success(), "{}", stderr(&replayed));
        for file in [file, "transcript.json"] {
            assert!(std::fs::read(out.join(file)).unwrap() == std::fs::read(again.join(file)).unwrap(), "{file}");
        }
        // Stated, and checked: neither file may leave it out, and a run without scales does not say it.
        let verify = || verb(&["verify", out.to_str().unwrap(), "--base", TINY, "--json"]);
        let verified = ok(verify());
        assert_eq!((&verified["verified"], &verified["replayed"]), (&json!(true), &json!(true)));
        assert!(verified["not_checkable"].to_string().contains("that the scales came from public text"));
        let (path, page) = (out.join("privacy.json"), out.join("PRIVACY.md"));
        let (stated, said) = (read(&path), read(&page));
        assert!(
            stated.contains(ASSUMED) && said.contains(ASSUMED) && !read(&bare.join("PRIVACY.md")).contains(ASSUMED)
        );
        let mut less: Value = serde_json::from_str(&stated).unwrap();
        less["assumptions"].as_array_mut().unwrap().retain(|a| !a.as_str().unwrap().starts_with(ASSUMED));
        std::fs::write(&path, less.to_string()).unwrap();
        says(&verify(), "assumptions leaves out");
        std::fs::write(&path, &stated).unwrap();
        std::fs::write(&page, said.replace(ASSUMED, "All is well")).unwrap();
        says(&verify(), "does not say what privacy.json states");
    }
}

#[test]
fn a_run_with_scales_resumes_to_the_same_bits_and_not_with_others() {
    let dir = tempfile::tempdir().unwrap();
    let (data, public) = (records(dir.path(), "records.jsonl", 3, 3), records(dir.path(), "public.jsonl", 5, 5));
    let fixed = ["--insecure-seed", "1", "--checkpoint-every", "1", "--bits-per-step", "128", "--threads", "1"];
    let scaled = [&fixed[..], &["--scales-from", public.to_str().unwrap()]].concat();
    let longer = [&scaled[..], &["--epochs", "6"]].concat();
    resume_to_the_same_files(dir.path(), 10, |out, more| train("ferret-k", &data, out, &[&longer[..], more].concat()));
    // Stopped by hand, with other public text, or none, it is another run.
    let out = dir.path().join("cut");
    let mut child = train("ferret-k", &data, &out, &[&scaled[..], &["--epochs", "200"]].concat())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while !out.join("state/told.json").exists() {
        assert!(child.try_wait().unwrap().is_none(), "it was to be killed");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let one = dir.path().join("one.jsonl");
    std::fs::write(&one, "{\"tokens\": [1, 90, 3, 70, 5, 50, 7]}\n").unwrap();
    let on = ["--epochs", "200", "--resume"];
    let other = [&fixed[..], &["--scales-from", one.to_str().unwrap()], &on].concat();
    says(&train("ferret-k", &data, &out, &other).output().unwrap(), "was begun with scales [");
    let none = [&fixed[..], &on].concat();
    says(&train("ferret-k", &data, &out, &none).output().unwrap(), "now it is by default");
}

#[test]
fn dpsgd_takes_the_same_scales_and_says_what_it_rests_on() {
    let dir = tempfile::tempdir().unwrap();
    let (data, public) = (records(dir.path(), "records.jsonl", 3, 3), records(dir.path(), "public.jsonl", 5, 5));
    let public = public.to_str().unwrap();
    let fixed = ["--insecure-seed", "1", "--threads", "1", "--learning-rate", "1e-3"];
    let run = |method: &str, name: &str, extra: &[&str]| {
        let out = dir.path().join(name);
        ok(train(method, &data, &out, &[&fixed[..], extra].concat()).output().unwrap());
        out
    };
    let out = run("dpsgd", "tuned", &["--scales-from", public]);
    let record = json_of(&out.join("run.json"));
    let sketched = json_of(&run("ferret-k", "sketched", &["--scales-from", public]).join("transcript.json"));
    let scales = &record["settings"]["scales"];
    assert_eq!((&record["version"], scales), (&json!(3), &sketched["settings"]["scales"]));
    let list: Vec<String> = scales.as_array().unwrap().iter().map(Value::to_string).collect();
    let given = format!("--scales={}", list.join(","));
    let (same, bare) = (run("dpsgd", "given", &[&given]), run("dpsgd", "bare", &[]));
    for file in ["model.safetensors", "run.json", "privacy.json"] {
        let bytes = |dir: &Path| std::fs::read(dir.join(file)).unwrap();
        assert!(bytes(&out) == bytes(&same) && bytes(&out) != bytes(&bare), "{file}");
    }
    assert_eq!(json_of(&bare.join("run.json"))["version"], 2);
    // The promise is as without them.
    assert_eq!(json_of(&out.join("privacy.json"))["claims"], json_of(&bare.join("privacy.json"))["claims"]);
    let verify = || verb(&["verify", out.to_str().unwrap(), "--base", TINY, "--json"]);
    let verified = ok(verify());
    assert!(verified["not_checkable"].to_string().contains("that the scales came from public text"), "{verified}");
    let assumed = ASSUMED.replace("on the sketch", "on gradients");
    assert!(read(&out.join("PRIVACY.md")).contains(&assumed) && !read(&bare.join("PRIVACY.md")).contains(&assumed));
    // A record that leaves them out does not fit the statement, and one of another version not itself.
    let (path, mut less) = (out.join("run.json"), record);
    let mut short = less.clone();
    short["settings"]["scales"].as_array_mut().unwrap().pop();
    std::fs::write(&path, short.to_string()).unwrap();
    says(&verify(), "expected one for each of the");
    less["settings"].as_object_mut().unwrap().remove("scales");
    std::fs::write(&path, less.to_string()).unwrap();
    says(&verify(), "version 3 is not that of its settings");
    less["version"] = 2.into();
    std::fs::write(&path, less.to_string()).unwrap();
    says(&verify(), "assumptions says");
    says(
        &train("dpsgd", &data, &dir.path().join("own"), &["--scales-from", data.to_str().unwrap()]).output().unwrap(),
        "are trained on too",
    );
}

/// Both with scales from the program's own public text, and each held against the other with scales and without.
#[cfg(feature = "embedded")]
#[test]
fn a_study_compares_scaled_rows_with_dpsgds() {
    let dir = tempfile::tempdir().unwrap();
    let (grid, out) = (dir.path().join("grid.toml"), dir.path().join("out"));
    let text = "kind = \"ferret-k\"\nbits = []\ncandidates = 80\nbatches = [10]\nepochs = [1]\nbudgets = [1.0]\nseeds = 1\nlearning_rates = 1\n\
                only = [\"DPSGD\", \"DPSGD, scaled\", \"FERRET-k, 16 KB\", \"FERRET-k, 16 KB, scaled\"]\n";
    std::fs::write(&grid, text).unwrap();
    let args = ["study", "--grid", grid.to_str().unwrap(), "--out", out.to_str().unwrap(), "--jobs", "1", "--quiet"];
    let output = verb(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    let page = read(&out.join("index.html"));
    for said in ["a step reached perplexity", "a step and scales reached perplexity"] {
        assert!(page.contains(said), "{said}");
    }
    let sentences: Vec<&str> = page.split("At (1, ").filter(|part| part.contains("KB, DPSGD with scales ")).collect();
    assert!(!sentences.is_empty() && sentences.iter().all(|s| s.contains("and scales reached")), "{sentences:?}");
    assert!(read(&out.join("tables.txt")).contains("DPSGD, scaled"));
}

#[test]
fn shadow_models_take_the_scales_of_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let [data, public, others] = [("records.jsonl", 3), ("public.jsonl", 5), ("others.jsonl", 7)]
        .map(|(name, stride)| records(dir.path(), name, stride as u64, stride));
    let (out, cache) = (dir.path().join("tuned"), dir.path().join("shadows"));
    let with = ["--bits-per-step", "16", "--scales-from", public.to_str().unwrap()];
    ok(train("ferret-k", &data, &out, &with).output().unwrap());
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferret"));
    command.args(["audit", "--base", TINY, "--tuned", out.to_str().unwrap(), "--members", data.to_str().unwrap()]);
    command.args(["--nonmembers", others.to_str().unwrap(), "--json", "--quiet", "--shadows", "4"]);
    ok(command.args(["--shadow-cache", cache.to_str().unwrap()]).output().unwrap());
    let own = json_of(&out.join("transcript.json"));
    let mut shadows = 0;
    for entry in std::fs::read_dir(&cache).unwrap() {
        assert_eq!(json_of(&entry.unwrap().path())["settings"]["scales"], own["settings"]["scales"]);
        shadows += 1;
    }
    assert_eq!(shadows, 4);
}

#[test]
fn what_gives_no_scales_gets_a_sentence_and_no_folder() {
    let dir = tempfile::tempdir().unwrap();
    let (data, out) = (records(dir.path(), "records.jsonl", 3, 3), dir.path().join("tuned"));
    let public = records(dir.path(), "public.jsonl", 5, 5);
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    // The same records by another name, in another order and another form, and one of them among many.
    let lines = read(&data);
    let copy = file("copy.jsonl", &lines);
    let turned = format!("[{}]", lines.lines().rev().collect::<Vec<_>>().join(",\n"));
    let turned = file("turned.json", &turned);
    let among = file("among.jsonl", &format!("{}\n{}\n", read(&public), lines.lines().nth(17).unwrap()));
    let silent = file("silent.jsonl", "{\"tokens\": [3]}\n{\"tokens\": [9]}\n");
    let missing = dir.path().join("missing.jsonl").to_str().unwrap().to_owned();
    let link = dir.path().join("link.jsonl");
    std::os::unix::fs::symlink(&data, &link).unwrap();
    let trained_on = "are trained on too";
    for (from, sentence) in [
        (missing.as_str(), "there is no such file"),
        (data.to_str().unwrap(), trained_on),
        (link.to_str().unwrap(), trained_on),
        (&copy, trained_on),
        (&turned, trained_on),
        (&among, "1 of the 201 records"),
        (&silent, "token to predict"),
    ] {
        for more in [&[][..], &["--dry-run"]] {
            let extra = [&["--scales-from", from], more].concat();
            says(&train("ferret-k", &data, &out, &extra).output().unwrap(), sentence);
            assert!(!out.exists(), "{from}");
        }
    }
    let public = public.to_str().unwrap();
    for (extra, sentence) in [
        (&["--scales", "1,2"][..], "lists 2 numbers"),
        (&["--scales", "65"], "exponent of 65"),
        (&["--scales=-65"], "exponent of -65"),
        (&["--scales", "1000"], "1000"),
        (&["--scales", "0.5"], "0.5"),
        (&["--scales", "0", "--scales-from", public], "cannot be used with"),
        (&["--scales", "0,0", "--tune", "last:1"], "`scales`"),
    ] {
        says(&train("ferret-k", &data, &out, extra).output().unwrap(), &sentence.replace("`scales`", "--scales"));
        assert!(!out.exists(), "{extra:?}");
    }
    for method in ["dp-signsgd", "nonprivate", "signsgd", "ferret-max"] {
        for extra in [["--scales-from", public], ["--scales", "0"]] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_ferret"));
            command.args(["train", "--method", method, "--model", TINY, "--data", data.to_str().unwrap()]);
            command.args(["--out", out.to_str().unwrap()]).args(extra);
            says(&command.output().unwrap(), "--scales");
            assert!(!out.exists(), "{extra:?}");
        }
    }
}
