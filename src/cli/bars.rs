//! Progress on stderr: bars where that is a terminal, nothing elsewhere.

use super::{interrupt, ranks};
use crate::error::{Error, Result};
use crate::fsio;
use crate::progress::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::borrow::Cow;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const STEPS: &str = "{prefix} {wide_bar} {pos}/{len} {per_sec}, {eta} left{msg}";
const BYTES: &str = "{prefix:24} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} ({eta})";

/// How long what stands beside a bar stays: some of it takes a moment to find.
const AGAIN: Duration = Duration::from_millis(200);

/// The library's [`Progress`] as bars. Stops the work once Ctrl-C was pressed.
pub struct Bars {
    quiet: bool,
    template: &'static str,
    /// Whether a finished bar goes away.
    clear: bool,
    /// What Ctrl-C leaves behind.
    stopped: &'static str,
    current: Mutex<Option<ProgressBar>>,
    /// Shown while work of unknown length goes on.
    working: Mutex<Option<Working>>,
    /// When what stands beside a bar was last asked for.
    told: Mutex<Option<Instant>>,
}

impl Bars {
    /// Bars of steps, and notes; nothing where it is `quiet`. `stopped` says what Ctrl-C leaves behind.
    pub const fn new(quiet: bool, stopped: &'static str) -> Self {
        Self {
            quiet,
            template: STEPS,
            clear: true,
            stopped,
            current: Mutex::new(None),
            working: Mutex::new(None),
            told: Mutex::new(None),
        }
    }

    /// Bars of bytes, which stay.
    pub const fn downloads() -> Self {
        let mut bars = Self::new(false, "stopped");
        bars.template = BYTES;
        bars.clear = false;
        bars
    }

    fn set(&self, bar: Option<ProgressBar>) {
        drop(self.working.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.told.lock().unwrap_or_else(PoisonError::into_inner).take();
        let before = std::mem::replace(&mut *self.current.lock().unwrap_or_else(PoisonError::into_inner), bar);
        match before {
            Some(bar) if self.clear => bar.finish_and_clear(),
            Some(bar) => bar.finish(),
            None => {}
        }
    }
}

impl Progress for Bars {
    fn begin(&self, what: &str, length: u64) {
        if length == 0 {
            self.set(None);
            let shown = working(what.to_owned(), self.quiet);
            *self.working.lock().unwrap_or_else(PoisonError::into_inner) = Some(shown);
            return;
        }
        self.set(Some(bar(length, self.template, self.quiet).with_prefix(what.to_owned())));
    }

    fn advance(&self, steps: u64) -> Result<()> {
        if let Some(bar) = &*self.current.lock().unwrap_or_else(PoisonError::into_inner) {
            bar.inc(steps);
        }
        if interrupt::asked() { Err(Error::Interrupted(self.stopped.into())) } else { Ok(()) }
    }

    fn beside(&self, text: &dyn Fn() -> String) {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(bar) = current.as_ref().filter(|bar| !bar.is_hidden()) else { return };
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_none_or(|then| then.elapsed() >= AGAIN) {
            let text = text();
            bar.set_message(if text.is_empty() { text } else { format!("; {text}") });
            *told = Some(Instant::now());
        }
    }

    fn end(&self) {
        self.set(None);
    }

    fn device(&self, name: &str) {
        if ranks::is_first() {
            fsio::tell(&format!("device: {name}"));
        }
    }

    fn note(&self, text: &str) {
        if !self.quiet && ranks::is_first() {
            fsio::tell(&format!("note: {text}"));
        }
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        self.set(None);
    }
}

/// A bar with rate and estimate on stderr; nothing where stderr is not a terminal or `quiet` is set.
pub fn progress(len: u64, what: &'static str, quiet: bool) -> ProgressBar {
    bar(len, "{prefix} {wide_bar} {pos}/{len} {per_sec}, {eta} left", quiet).with_prefix(what)
}

/// [`progress`] of work whose parts differ, in thousandths of it: a message says which part it is at.
pub fn progress_by_share(what: &'static str, quiet: bool) -> ProgressBar {
    bar(1000, "{prefix} {wide_bar} {percent} % {msg}, {elapsed} gone, {eta} left", quiet).with_prefix(what)
}

/// Stderr, of one rank; nothing where it is `quiet`.
fn target(quiet: bool) -> ProgressDrawTarget {
    if quiet || !ranks::is_first() { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr_with_hz(10) }
}

fn bar(len: u64, template: &str, quiet: bool) -> ProgressBar {
    let target = target(quiet);
    let style = ProgressStyle::with_template(template).expect("a valid template");
    ProgressBar::with_draw_target(Some(len), target).with_style(style)
}

/// Shows on stderr that work whose length is not known goes on, and for how long, until dropped. See [`working`].
#[must_use = "it is shown until it is dropped"]
pub struct Working {
    stop: Option<mpsc::Sender<()>>,
    shown: Option<JoinHandle<()>>,
}

/// Say that `what` is being done once it takes longer than a second; never where [`progress`] would show nothing.
pub fn working(what: impl Into<Cow<'static, str>>, quiet: bool) -> Working {
    let target = target(quiet);
    if target.is_hidden() {
        return Working { stop: None, shown: None };
    }
    let what = what.into();
    let (stop, stopped) = mpsc::channel::<()>();
    let shown = thread::spawn(move || {
        if stopped.recv_timeout(Duration::from_secs(1)) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        let style = ProgressStyle::with_template("{spinner} {prefix}, {elapsed}").expect("a valid template");
        let bar = ProgressBar::with_draw_target(None, target)
            .with_style(style)
            .with_prefix(what)
            .with_elapsed(Duration::from_secs(1));
        while stopped.recv_timeout(Duration::from_millis(100)) == Err(RecvTimeoutError::Timeout) {
            bar.tick();
        }
        bar.finish_and_clear();
    });
    Working { stop: Some(stop), shown: Some(shown) }
}

impl Drop for Working {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(shown) = self.shown.take() {
            let _ = shown.join();
        }
    }
}
