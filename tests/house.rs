//! The shape of the house: rooms in order, files of a readable size, licences that go together.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The rooms of src/, each of which may use only those before it. `lib.rs` has the tour.
const ROOMS: [&str; 22] = [
    "error", "guard", "progress", "hash", "fsio", "isa", "ranks", "rng", "kernel", "ops", "backend", "model", "data",
    "eval", "grad", "optim", "privacy", "method", "audit", "measure", "study", "cli",
];

/// Licences that a program under MIT or Apache-2.0 can be shipped with.
const LICENCES: [&str; 13] = [
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MPL-2.0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// Every source file with its path below src/ and its text.
fn library() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = Vec::new();
    sources(&root, &mut paths);
    paths.sort();
    let below = |p: &Path| p.strip_prefix(&root).unwrap().to_str().unwrap().replace('\\', "/");
    paths.iter().map(|p| (below(p), std::fs::read_to_string(p).unwrap())).collect()
}

/// What a line of code that is no comment says.
fn code(line: &str) -> &str {
    if line.trim_start().starts_with("//") { "" } else { line }
}

/// The rooms that a line of code names as `crate::room` or `crate::{room, room::name}`.
fn named(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for rest in code(line).split("crate::").skip(1) {
        let list = rest.strip_prefix('{').map_or(rest, |list| list.split('}').next().unwrap());
        let names = if rest.starts_with('{') { list.split(", ").collect() } else { vec![list] };
        found.extend(names.iter().map(|name| name.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap()));
    }
    found
}

#[test]
fn rooms_are_found_alone_and_in_lists() {
    assert_eq!(named("use crate::model::{Config, Decoder};"), ["model"]);
    assert_eq!(named("use crate::{backend::Backend, fsio};"), ["backend", "fsio"]);
    assert_eq!(named("let x = crate::rng::below(3, crate::isa::isa());"), ["rng", "isa"]);
    assert!(named("    // crate::cli is below").is_empty());
}

#[test]
fn a_room_uses_only_rooms_before_it() {
    let rank = |room: &str| ROOMS.iter().position(|r| *r == room);
    let mut seen = 0;
    for (path, text) in library() {
        let room = path.split(['/', '.']).next().unwrap();
        if matches!(room, "lib" | "main" | "tour") {
            continue;
        }
        let own = rank(room).unwrap_or_else(|| panic!("src/{path}: {room} is no room that this test knows"));
        // What a unit test compares with may lie in any room.
        let own_code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        for (number, line) in own_code.lines().enumerate() {
            for other in named(line) {
                // Names at the root (Error, Result, macros) belong to nobody.
                let Some(other_rank) = rank(other) else { continue };
                assert!(other_rank <= own, "src/{path}:{}: {room} comes before {other} and may not use it", number + 1);
                seen += 1;
            }
        }
    }
    assert!(seen > 500, "only {seen} uses found: is this test still reading the code?");
}

/// Sentences that are part of a statement's format, and spell flags: whoever verifies an old statement compares them.
const STATEMENTS: [&str; 3] = ["method/dense/statement.rs", "privacy/statement.rs", "privacy/statement/words.rs"];

#[test]
fn the_library_names_no_flag() {
    let flag = |text: &str| {
        text.match_indices("--").any(|(i, _)| {
            let before = text[..i].chars().next_back();
            // CSS names its variables `var(--name)` and `--fp-name`, and `ferret verb --flag` in backquotes is a command, not a setting.
            before.is_none_or(|c| c == ' ' || c == '"')
                && text[i + 2..].starts_with(|c: char| c.is_ascii_lowercase())
                && !text[i..].starts_with("--fp-")
        })
    };
    assert!(flag("give --delta") && flag("\"--batch {n}") && !flag("var(--ink)") && !flag("a -- b"));
    for (path, text) in library() {
        if path.starts_with("cli") || STATEMENTS.contains(&path.as_str()) {
            continue;
        }
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.contains("`ferret ")) {
            assert!(!flag(code(line)), "src/{path}:{}: {line}\nname the setting in backquotes", number + 1);
        }
    }
}

#[test]
fn only_the_program_draws_and_parses() {
    for (path, text) in library().iter().filter(|(path, _)| !path.starts_with("cli") && !path.ends_with("tests.rs")) {
        for (number, line) in text.lines().enumerate() {
            let line = code(line).trim();
            let derived = line == "#[cfg_attr(feature = \"cli\", derive(clap::ValueEnum))]";
            let named = ["clap", "indicatif::", "ctrlc::", "eprint"].iter().any(|name| line.contains(name));
            assert!(derived || !named, "src/{path}:{}: {line}", number + 1);
        }
    }
}

#[test]
fn a_file_can_be_read_in_one_sitting() {
    let mut paths = Vec::new();
    for room in ["src", "tests", "benches", "examples"] {
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(room), &mut paths);
    }
    assert!(paths.len() > 300, "{}", paths.len());
    for path in paths {
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= 400, "{} has {lines} lines: split it by subject", path.display());
    }
}

fn cargo() -> Command {
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    command
}

/// What is published builds without fixtures, and is small: the embedded model is half of it.
#[test]
fn the_package_is_small_and_has_no_fixtures() {
    let output = cargo().args(["package", "--list", "--allow-dirty", "--offline"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let list = String::from_utf8(output.stdout).unwrap();
    for name in
        ["README.md", "LICENSE-MIT", "LICENSE-APACHE", "src/lib.rs", "shaders/norm.wgsl", "examples/gradient.rs"]
    {
        assert!(list.lines().any(|line| line == name), "{name} is not in the package");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut bytes = 0;
    for name in list.lines() {
        assert!(!name.starts_with("tests/") && !name.starts_with(".ci/"), "{name} is in the package");
        // Cargo makes some files itself.
        bytes += std::fs::metadata(root.join(name)).map_or(0, |file| file.len());
    }
    assert!((1 << 20..7 << 20).contains(&bytes), "the package has {bytes} bytes");
}

/// Every package of the program as built for this system. What is built for other systems need not be here.
fn packages() -> Vec<Value> {
    let version = Command::new("rustc").arg("-vV").output().unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let output = cargo()
        .args(["metadata", "--format-version", "1", "--offline", "--locked", "--filter-platform", host])
        // What this build needed is here; what only other features need may not be.
        .args(cfg!(feature = "mpi").then_some("--features=mpi"))
        .args(cfg!(feature = "formats").then_some("--features=formats"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages: Vec<Value> = serde_json::from_value(metadata["packages"].take()).unwrap();
    assert!(packages.len() > 50);
    packages
}

#[test]
fn every_dependency_has_a_licence_that_goes_with_ours() {
    for package in packages() {
        let name = package["name"].as_str().unwrap();
        let expression = package["license"].as_str().unwrap_or_else(|| panic!("{name} names no licence"));
        assert!(allowed(expression), "{name}: {expression} is not on the list in this test");
    }
}

#[test]
fn no_dependency_wants_a_newer_rust_than_we_say() {
    let number = |text: &str| -> Vec<u32> { text.split('.').map(|part| part.parse().unwrap()).collect() };
    let ours = number(env!("CARGO_PKG_RUST_VERSION"));
    for package in packages() {
        let Some(theirs) = package["rust_version"].as_str() else { continue };
        assert!(number(theirs)[..2] <= ours[..2], "{} needs Rust {theirs}", package["name"]);
    }
}

/// Whether one of the alternatives of an SPDX expression, all of whose parts count, is on the list.
fn allowed(expression: &str) -> bool {
    let plain = expression.replace('/', " OR ").replace(['(', ')'], " ");
    let listed = |licence: &str| LICENCES.contains(&licence.trim());
    plain.split(" AND ").all(|part| part.split(" OR ").any(listed))
}

#[test]
fn alternatives_and_conjunctions_of_licences_are_understood() {
    assert!(allowed("MIT OR Apache-2.0") && allowed("MIT/Apache-2.0") && allowed("(MIT OR GPL-3.0) AND Unicode-3.0"));
    assert!(!allowed("GPL-3.0") && !allowed("MIT AND GPL-3.0") && !allowed("LGPL-2.1 OR GPL-2.0"));
}
