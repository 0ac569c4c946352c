//! Bars on a terminal, and silence elsewhere. The terminal is one that `script` (util-linux) makes; without it the half of
//! the tests that needs one says so and passes.

use std::path::Path;
use std::process::{Command, Output, Stdio};

const FERRET: &str = env!("CARGO_BIN_EXE_ferret");

/// Each verb that takes a while and needs no file, with what its bar says.
const VERBS: [(&str, &str); 3] = [
    ("eval --model embedded --data embedded:test:40", "records"),
    ("generate --model embedded --prompt The --max-tokens 60 --json", "tokens"),
    ("plan --method ferret-2 --epsilon 0.5 --records 2000 --batch 50 --epochs 2 --group-count 2", "accounting"),
];

fn piped(line: &str) -> Output {
    Command::new(FERRET).args(line.split(' ')).stdin(Stdio::null()).output().unwrap()
}

/// What the program writes on a terminal, stdout left out; none where there is no way to make one.
fn on_terminal(line: &str) -> Option<String> {
    let script = ["/usr/bin/script", "/bin/script"].into_iter().find(|p| Path::new(p).exists())?;
    let command = format!("stty cols 100; {FERRET} {line} >/dev/null");
    let out = Command::new(script)
        .args(["-qec", &command, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stdout));
    Some(String::from_utf8_lossy(&out.stdout).into_owned())
}

#[test]
fn nothing_is_drawn_where_there_is_no_terminal() {
    for (line, _) in VERBS {
        let out = piped(line);
        assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
        for bytes in [&out.stdout, &out.stderr] {
            assert!(!bytes.iter().any(|&b| b == b'\r' || b == 0x1b), "{line}");
        }
    }
}

#[test]
fn a_terminal_sees_a_bar_with_rate_and_estimate_unless_quiet() {
    for (line, what) in VERBS {
        let Some(seen) = on_terminal(line) else {
            eprintln!("skipped: there is no `script` to make a terminal");
            return;
        };
        assert!(seen.contains(what) && seen.contains("/s") && seen.contains(" left"), "{line}: {seen:?}");
        let seen = on_terminal(&format!("{line} --quiet")).unwrap();
        assert!(!seen.contains(" left") && !seen.contains('\u{1b}'), "{line}: {seen:?}");
    }
}

/// What stands beside the bar of a run: of a method that hides nothing its loss; of the others what follows from settings and seed.
#[test]
fn beside_the_bar_stands_what_may_be_shown() {
    let dir = tempfile::tempdir().unwrap();
    for (i, (line, shows)) in [
        ("--method nonprivate", "; loss "),
        ("--method qsgd", "; loss "),
        ("--method dpsgd --dp-epsilon 1", ", 1e-5)-DP so far"),
        ("--method ferret-max --epsilon 1", " of 8 bits"),
        ("--method ferret-k --dp-epsilon 1 --bits-per-step 64", " bits"),
        // Sampling is known, so nothing is promised on the way either.
        ("--method dpsgd --dp-epsilon 1 --insecure-seed 1", " left"),
    ]
    .into_iter()
    .enumerate()
    {
        let out = dir.path().join(i.to_string());
        let line = format!(
            "train {line} --model embedded --data embedded:train:120 --batch 20 --epochs 2 --out {}",
            out.display()
        );
        let Some(seen) = on_terminal(&line) else {
            eprintln!("skipped: there is no `script` to make a terminal");
            return;
        };
        assert!(seen.contains(shows), "{line}: {seen:?}");
        assert_eq!(seen.contains("loss"), shows.contains("loss"), "{line}: {seen:?}");
        assert_eq!(seen.contains("so far"), shows.contains("so far"), "{line}: {seen:?}");
    }
}
