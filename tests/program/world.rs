//! The embedded world: corpus, tokenizer, model.

use crate::io_support::{assert_refused, ferret, ok};
use ferret::backend::Cpu;
use ferret::data::synthetic::{self, Public, Split};
use ferret::data::{self, Example, LoadOptions, text};
use ferret::eval;
use ferret::model::checkpoint::{self, Checkpoint};
use ferret::model::tokenizer::Tokenizer;
use ferret::model::{Decoder, embedded};
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::path::Path;

const README: &str = include_str!("../../models/ferret-mini/README.md");

fn embedded_model() -> (Checkpoint, Tokenizer) {
    let checkpoint = checkpoint::load(embedded::NAME).unwrap();
    let tokenizer = Tokenizer::from_folder(&checkpoint.folder).unwrap().unwrap();
    tokenizer.check(&checkpoint.weights.config).unwrap();
    (checkpoint, tokenizer)
}

fn sha256(text: &str) -> String {
    Sha256::digest(text).iter().map(|b| format!("{b:02x}")).collect()
}

/// `First Last of Town`, from a question.
fn person(question: &str) -> String {
    let (before, after) = question.rsplit_once(" of ").unwrap();
    let mut words = before.rsplit(' ');
    let (last, first) = (words.next().unwrap(), words.next().unwrap());
    let town = after.split([' ', '?', '.']).next().unwrap();
    format!("{first} {last} of {town}")
}

#[test]
fn no_two_records_are_about_the_same_person() {
    let splits = [Split::Train, Split::Test, Split::Tuning, Split::Shadow(0), Split::Shadow(1), Split::Shadow(4092)];
    let (mut people, mut answers) = (HashSet::new(), HashSet::new());
    for split in splits {
        for record in synthetic::private_records(7, split, 3000).unwrap() {
            assert!(people.insert(person(&record.question)), "{record:?}");
            assert!(answers.insert(record.answer.clone()), "{record:?}");
            assert!(record.answer.contains(&record.secret), "{record:?}");
        }
    }
    assert_eq!(people.len(), splits.len() * 3000);
    assert!(synthetic::private_records(7, Split::Shadow(4093), 1).is_err());
    assert!(synthetic::private_records(7, Split::Train, (1 << 24) + 1).is_err());
}

#[test]
fn a_split_grows_at_its_end_and_the_seed_decides() {
    let some = synthetic::private_records(1, Split::Test, 20).unwrap();
    assert_eq!(some, synthetic::private_records(1, Split::Test, 100).unwrap()[..20]);
    let other = synthetic::private_records(2, Split::Test, 20).unwrap();
    assert!(some.iter().zip(&other).all(|(a, b)| a.question != b.question && a.answer != b.answer));
    assert_ne!(synthetic::public_text(1, Public::Train, 3), synthetic::public_text(2, Public::Train, 3));
    assert_ne!(synthetic::public_text(1, Public::Train, 3), synthetic::public_text(1, Public::Test, 3));
}

#[test]
fn the_corpus_never_changes() {
    let private = synthetic::to_jsonl(&synthetic::private_records(synthetic::SEED, Split::Train, 200).unwrap());
    let public = synthetic::public_text(synthetic::SEED, Public::Train, 200);
    assert_eq!(
        sha256(&private),
        "c462a6d1ef796be2cc820458b21fc74586f91178bda19f35c120ba3efca1f213",
        "{}",
        &private[..600]
    );
    assert_eq!(
        sha256(&public),
        "a0f45fefb12c180cb16bdf59c1fc507e8cb8331a202ec5d4c4e2ffc0223b365c",
        "{}",
        &public[..600]
    );
}

#[test]
fn the_tokenizer_loses_nothing() {
    let (_, tokenizer) = embedded_model();
    let private = synthetic::to_jsonl(&synthetic::private_records(synthetic::SEED, Split::Test, 50).unwrap());
    let public = synthetic::public_text(synthetic::SEED, Public::Test, 50);
    for text in [private.as_str(), &public, "", "  a\tb\r\n", "Ünïcödé — 東京 🦦", "\u{0}\u{7f}"] {
        assert_eq!(tokenizer.decode(&tokenizer.encode(text).unwrap()).unwrap(), text);
    }
    assert_eq!(tokenizer.encode("<|endoftext|>").unwrap(), [0]);
    let per_token = public.len() as f64 / tokenizer.encode(&public).unwrap().len() as f64;
    assert!(per_token > 3.5, "{per_token} characters a token");
}

fn perplexity(checkpoint: &Checkpoint, examples: &[Example]) -> f64 {
    let decoder = Decoder::new(Cpu::<f32>::new(), checkpoint.weights.clone()).unwrap();
    eval::token_mean(&eval::losses(&decoder, examples, |_| ()).unwrap()).0.exp()
}

/// The last cell of the README's row that begins with `row`.
fn stated(row: &str) -> f64 {
    let line = README.lines().find(|l| l.starts_with(&format!("| {row}"))).unwrap();
    line.trim_end_matches([' ', '|']).rsplit('|').next().unwrap().trim().parse().unwrap()
}

#[test]
fn the_embedded_model_is_what_its_readme_says() {
    let (checkpoint, tokenizer) = embedded_model();
    let (config, layout) = (&checkpoint.weights.config, &checkpoint.weights.layout);
    assert!((500_000..1_000_000).contains(&layout.scalars()), "{}", layout.scalars());
    assert!(README.contains(&format!("{} parameters", layout.scalars())));
    assert!(README.contains(&checkpoint::tensors_sha256(&checkpoint.weights)));

    let ids = tokenizer.encode_long(&synthetic::public_text(synthetic::SEED, Public::Test, 500)).unwrap();
    let windows = text::windows(&ids, config.positions, config.positions).unwrap();
    let (found, said) = (perplexity(&checkpoint, &windows), stated("500 public"));
    assert!((found / said - 1.0).abs() < 0.01, "{found}, and the README says {said}");

    let options = LoadOptions::new(config);
    let records = data::load_examples(Path::new("embedded:test:1000"), Some(&tokenizer), &options).unwrap();
    assert_eq!((records.examples.len(), records.truncated, records.without_target), (1000, 0, 0));
    let (found, said) = (perplexity(&checkpoint, &records.examples), stated("1000 private"));
    assert!((found / said - 1.0).abs() < 0.01, "{found}, and the README says {said}");
    assert!(found > 20.0, "{found}: nothing is left to learn");
}

#[test]
fn it_can_be_saved_like_any_other() {
    let (checkpoint, tokenizer) = embedded_model();
    let dir = tempfile::tempdir().unwrap();
    checkpoint::save(dir.path(), &checkpoint.weights, &checkpoint.save_options()).unwrap();
    let again = checkpoint::load_folder(dir.path()).unwrap();
    assert_eq!(checkpoint::tensors_sha256(&again.weights), checkpoint::tensors_sha256(&checkpoint.weights));
    let theirs = Tokenizer::from_folder(dir.path()).unwrap().unwrap();
    assert_eq!(theirs.encode("The password is old.").unwrap(), tokenizer.encode("The password is old.").unwrap());
}

#[test]
fn the_program_writes_the_corpus_it_embeds() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| ferret(dir.path()).args(args).output().unwrap();
    let made = ok(run(&["world", "--out", "w", "--records", "40", "--shadows", "2", "--paragraphs", "8", "--json"]));
    assert_eq!(made["splits"].as_array().unwrap().len(), 5);
    let mut files: Vec<_> = std::fs::read_dir(dir.path().join("w"))
        .unwrap()
        .map(|f| f.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    let private = ["shadow-0", "shadow-1", "test", "train", "tuning"].map(|s| format!("private-{s}.jsonl"));
    assert_eq!(files[..5], private);
    assert_eq!(files[5..], ["public-test.txt", "public-train.txt"]);
    let eval = |data: &str| ok(run(&["eval", "--model", "embedded", "--data", data, "--json"]));
    assert_eq!(eval("w/private-shadow-1.jsonl"), eval("embedded:shadow-1:40"));
    assert_eq!(eval("w/private-test.jsonl")["records"], 40);
    assert_refused("again", &run(&["world", "--out", "w"]), &["w", "not empty"]);
    assert_refused("split", &run(&["eval", "--model", "embedded", "--data", "embedded:tset"]), &["tset", "tuning"]);
    let none = run(&["eval", "--model", "embedded", "--data", "embedded:test:0"]);
    assert_refused("no records", &none, &["embedded:test:0", "at least 1"]);
    let stride = run(&["eval", "--model", "embedded", "--data", "embedded:test:5", "--stride", "8"]);
    assert_refused("stride", &stride, &["--stride", "plain text"]);
    assert_refused("count", &run(&["eval", "--model", "embedded", "--data", "embedded:test:x"]), &["embedded:test:x"]);
}

#[test]
fn a_trial_that_cannot_be_is_refused_in_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let trial = |more: &[&str]| {
        let args = ["world", "--trial", "--records", "4", "--batch", "2", "--json"];
        ferret(dir.path()).args(args).args(more).output().unwrap()
    };
    let cases: &[(&[&str], &str, i32)] = &[
        (&["--epochs", "2147483648"], "more than 100000000 steps", 2),
        (&["--epochs", "50000001"], "more than 100000000 steps", 2),
        (&["--epochs", "4294967295", "--learning-rate", "nan"], "--learning-rate NaN", 2),
        (&["--epochs", "1", "--learning-rate=-1"], "--learning-rate -1", 2),
        (&["--epochs", "1", "--learning-rate", "inf"], "--learning-rate inf", 2),
        (&["--epochs", "3", "--learning-rate", "1e30"], "diverged", 1),
    ];
    for (more, says, code) in cases {
        let output = trial(more);
        assert_refused(&format!("{more:?}"), &output, &[says]);
        assert_eq!(output.status.code(), Some(*code), "{more:?}");
    }
}

#[test]
fn training_without_privacy_learns_and_leaks() {
    let dir = tempfile::tempdir().unwrap();
    let trial = [
        "world",
        "--trial",
        "--records",
        "60",
        "--batch",
        "10",
        "--epochs",
        "12",
        "--learning-rate",
        "0.003",
        "--json",
    ];
    let out = ok(ferret(dir.path()).args(trial).output().unwrap());
    let at = |epoch: usize, key: &str| out["epochs"][epoch][key].as_f64().unwrap();
    assert!((at(0, "auc") - 0.5).abs() < 0.2, "{out}");
    assert!(at(12, "test_perplexity") < 0.5 * at(0, "test_perplexity"), "{out}");
    assert!(at(12, "auc") > 0.7, "{out}");
}
