//! Which ranks are processes of this machine, and whether they still run.

use crate::fsio;

/// What tells the processes of this machine, whose numbers mean something here, from others; empty where it cannot be known.
pub(super) fn machine() -> String {
    let boot = fsio::read_text(std::path::Path::new("/proc/sys/kernel/random/boot_id")).unwrap_or_default();
    let space = std::fs::read_link("/proc/self/ns/pid").ok();
    match space {
        Some(space) if !boot.is_empty() => format!("{} {}", boot.trim(), space.display()),
        _ => String::new(),
    }
}

/// The other ranks on the machine of `rank`, with the numbers of their processes; `all` has a line for the machine and one for the number.
pub(super) fn neighbours(rank: usize, all: &[String]) -> Vec<(usize, u32)> {
    let read = |text: &String| text.split_once('\n').map(|(m, p)| (m.to_owned(), p.parse().unwrap_or(0)));
    let found: Vec<Option<(String, u32)>> = all.iter().map(read).collect();
    let Some(Some((own, _))) = found.get(rank) else { return Vec::new() };
    let near = |(i, of): (usize, &Option<(String, u32)>)| {
        of.as_ref()
            .filter(|(machine, process)| i != rank && !own.is_empty() && machine == own && *process > 0)
            .map(|of| (i, of.1))
    };
    found.iter().enumerate().filter_map(near).collect()
}

/// Whether a process runs: it is there, and is no zombie.
pub(super) fn is_alive(process: u32) -> bool {
    // The state follows the name, which is in brackets and may hold any.
    std::fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| {
        !matches!(stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next()), Some('Z' | 'X'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn only_processes_of_this_machine_are_looked_after() {
        let all = ["a\n10", "b\n11", "a\n12", "\n13", "a\nx"].map(str::to_owned);
        assert_eq!(neighbours(0, &all), [(2, 12)]);
        assert_eq!(neighbours(1, &all), []);
        assert_eq!(neighbours(3, &all), []);
        assert!(is_alive(std::process::id()) && !is_alive(u32::MAX));
        assert!(!machine().is_empty());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        // Over, and not asked after yet: a zombie.
        std::thread::sleep(Duration::from_millis(300));
        assert!(!is_alive(child.id()));
        child.wait().unwrap();
    }
}
