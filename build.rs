//! The commit that a release is built from, for `ferret --version` and reports. Development builds have none: a commit would rebuild them.

use std::process::Command;

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok().filter(|o| o.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned()).filter(|text| !text.is_empty())
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("PROFILE").as_deref() != Ok("release") {
        return;
    }
    // Only where this package is a repository of its own: not the one that it may be unpacked in.
    let here = std::env::var("CARGO_MANIFEST_DIR").ok().and_then(|dir| std::fs::canonicalize(dir).ok());
    let top = git(&["rev-parse", "--show-toplevel"]).and_then(|dir| std::fs::canonicalize(dir).ok());
    if here.is_none() || here != top {
        return;
    }
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", name]) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    if let Some(commit) = git(&["rev-parse", "--short=10", "HEAD"]) {
        println!("cargo:rustc-env=FERRET_COMMIT={commit}");
    }
}
